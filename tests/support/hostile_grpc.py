"""One process of hostile gRPC clients: `python -m support.hostile_grpc HOST PORT WHAT SEED COUNT`.

WHAT is `messages` (calls whose messages are spoiled), `frames` (connections whose bytes are) or
`floods` (COUNT rounds of every flood there is). Prints what came of it as a line of JSON.
"""

from __future__ import annotations

import json
import os
import random
import select
import selectors
import socket
import struct
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Final

import hpack

from naiad.gateway.http2 import frames as f
from support.hostile_frames import FLOODS, call, conversation, head

NICENESS: Final = 10
SIDE_BY_SIDE: Final = 64
FRAMES_SECONDS: Final = 0.25
FLOOD_SECONDS: Final = 1.0
FLOOD_BYTES_MAX: Final = 64 * 2**20
PATIENCE_S: Final = 30.0
LET_ON: Final = 2**30

Place = tuple[str, int]


class Channel:
    """One connection; `ask` sends calls and gathers how they ended."""

    def __init__(self, place: Place) -> None:
        self._socket = socket.create_connection(place, PATIENCE_S)
        self._socket.sendall(f.PREFACE + f.settings({}) + f.window_update(0, LET_ON))
        self._stream = 1
        self._decoder = hpack.Decoder()
        self._buffer = b""
        self.is_open = True

    def ask(self, chance: random.Random, count: int, statuses: Counter[str]) -> None:
        first = self._stream
        self._stream += 2 * count
        asked = [call(chance, stream) for stream in range(first, self._stream, 2)]
        self._socket.sendall(b"".join(asked))
        open_ones = set(range(first, self._stream, 2))
        while open_ones:
            kind, flags, stream, content = self._frame()
            if kind == f.GOAWAY:
                statuses["goaway"] += 1
                self.is_open = False
                return
            if kind == f.HEADERS:
                fields = dict(self._decoder.decode(content, raw=True))
                if flags & f.END_STREAM:
                    open_ones.discard(stream)
                    statuses[_status(fields)] += 1
            elif kind == f.RST_STREAM and stream in open_ones:
                open_ones.discard(stream)
                statuses["reset"] += 1

    def ask_one(self, method: str, body: bytes, *fields: tuple[bytes, bytes]) -> str:
        """Send one call, as fast as the server takes it; how it ended."""
        stream = self._stream
        self._stream += 2
        self._socket.sendall(f.frame(f.HEADERS, f.END_HEADERS, stream, head(method, *fields)))
        windows = {0: f.WINDOW_AT_FIRST, stream: f.WINDOW_AT_FIRST}
        sent = 0
        while True:
            size = min(len(body) - sent, f.FRAME_BYTES_MAX, *windows.values())
            if size > 0:
                flags = f.END_STREAM if sent + size == len(body) else 0
                self._socket.sendall(f.frame(f.DATA, flags, stream, body[sent : sent + size]))
                sent += size
                windows = {number: left - size for number, left in windows.items()}
                continue
            kind, flags, number, content = self._frame()
            if kind == f.WINDOW_UPDATE:
                windows[number] += int.from_bytes(content, "big")
            elif kind == f.SETTINGS:
                for key, value in struct.iter_unpack("!HI", content):
                    if key == f.INITIAL_WINDOW_SIZE:
                        windows[stream] += value - f.WINDOW_AT_FIRST
            elif kind == f.HEADERS:
                found = dict(self._decoder.decode(content, raw=True))
                if flags & f.END_STREAM:
                    return _status(found)
            elif kind in (f.RST_STREAM, f.GOAWAY):
                return "reset" if kind == f.RST_STREAM else "goaway"

    def _frame(self) -> tuple[int, int, int, bytes]:
        while True:
            buffer = self._buffer
            size = int.from_bytes(buffer[:3], "big")
            if len(buffer) >= f.HEAD_BYTES + size and len(buffer) >= f.HEAD_BYTES:
                self._buffer = buffer[f.HEAD_BYTES + size :]
                stream = int.from_bytes(buffer[5:9], "big")
                return buffer[3], buffer[4], stream, buffer[9 : 9 + size]
            piece = self._socket.recv(1 << 18)
            if not piece:
                raise ConnectionError("closed without a goodbye")
            self._buffer += piece

    def close(self) -> None:
        self._socket.close()


def _status(fields: dict[bytes, bytes]) -> str:
    status = fields.get(b"grpc-status", b"http " + fields.get(b":status", b"?")).decode()
    if status in ("2", "13"):
        return f"{status} {fields.get(b'grpc-message', b'').decode()[:100]}"
    return status


def messages(place: Place, chance: random.Random, count: int) -> Counter[str]:
    statuses: Counter[str] = Counter()
    channel = Channel(place)
    for start in range(0, count, SIDE_BY_SIDE):
        if not channel.is_open:
            channel.close()
            channel = Channel(place)
        channel.ask(chance, min(SIDE_BY_SIDE, count - start), statuses)
    channel.close()
    return statuses


def frames(place: Place, chance: random.Random, count: int) -> Counter[str]:
    """What the last frame was of each connection that was closed in time, or "open"."""
    ends: Counter[str] = Counter()
    for start in range(0, count, SIDE_BY_SIDE):
        with selectors.DefaultSelector() as selector:
            found: dict[socket.socket, bytes] = {}
            for _ in range(min(SIDE_BY_SIDE, count - start)):
                one = socket.create_connection(place, PATIENCE_S)
                found[one] = b""
                with suppress(OSError):
                    one.sendall(conversation(chance))
                selector.register(one, selectors.EVENT_READ)
            end = time.monotonic() + FRAMES_SECONDS
            while selector.get_map() and (left := end - time.monotonic()) > 0:
                for key, _ in selector.select(left):
                    one = key.fileobj  # type: ignore[assignment]
                    piece = b""
                    with suppress(OSError):
                        piece = one.recv(65_536)
                    found[one] += piece
                    if not piece:
                        selector.unregister(one)
                        ends[_goodbye(found.pop(one))] += 1
                        one.close()
            for one in found:
                ends["open"] += 1
                one.close()
    return ends


def _goodbye(found: bytes) -> str:
    """The error code of the goodbye in the bytes of a connection."""
    code = "closed"
    while len(found) >= f.HEAD_BYTES:
        size = int.from_bytes(found[:3], "big")
        if found[3] == f.GOAWAY:
            code = f"goaway {int.from_bytes(found[13:17], 'big')}"
        found = found[f.HEAD_BYTES + size :]
    return code


def flood(place: Place, make: Callable[[], Iterator[bytes]]) -> str:
    """Send it as fast as it is taken; how the server answered."""
    found = b""
    sent = 0
    end = time.monotonic() + FLOOD_SECONDS
    with socket.create_connection(place, PATIENCE_S) as one:
        one.settimeout(FLOOD_SECONDS)
        try:
            for data in make():
                if sent > FLOOD_BYTES_MAX or time.monotonic() > end:
                    break
                one.sendall(data)
                sent += len(data)
                while select.select([one], [], [], 0)[0]:
                    piece = one.recv(1 << 18)
                    if not piece:
                        return _goodbye(found)
                    found += piece
            while piece := one.recv(1 << 18):
                found += piece
        except TimeoutError:
            return "open"
        except OSError:
            pass
    return _goodbye(found)


def floods(place: Place, rounds: int) -> Counter[str]:
    ends: Counter[str] = Counter()
    for _ in range(rounds):
        for make in FLOODS:
            ends[f"{make.__name__}: {flood(place, make)}"] += 1
    return ends


def main() -> None:
    host, port, what, seed, count = sys.argv[1:]
    os.nice(NICENESS)
    place = (host, int(port))
    chance = random.Random(int(seed))
    if what == "messages":
        found = messages(place, chance, int(count))
    elif what == "frames":
        found = frames(place, chance, int(count))
    else:
        found = floods(place, int(count))
    print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
