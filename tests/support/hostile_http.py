"""One process of hostile HTTP clients: `python -m support.hostile_http HOST PORT WHAT SEED COUNT`.

WHAT is `verbs` (every verb on every route, with strings of any kind), `bodies` (well framed
requests with spoiled content) or `wire` (any bytes). Prints how often what was answered, and the
first of each answer of 500 and above with the seed that makes it again, as a line of JSON.
"""

from __future__ import annotations

import json
import os
import random
import selectors
import socket
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from typing import Final

from support.hostile_requests import ROUTES, VERBS, Hostile, nonsense, path, request, wire, written

NICENESS: Final = 10
"""Attackers have processors of their own; here they take them from their victim."""
SIDE_BY_SIDE: Final = 64
WIRE_SECONDS: Final = 0.25
"""For answers to bytes that may not be a whole request."""
PATIENCE_S: Final = 30.0


class Answers:
    """`statuses` by number, "closed" for none; `faults`: text to the request that had it first."""

    def __init__(self) -> None:
        self.statuses: Counter[str] = Counter()
        self.faults: dict[str, str] = {}

    def count(self, status: str, text: bytes, asked: bytes) -> None:
        self.statuses[status] += 1
        if status.startswith("5"):
            words = f"{status} {text[:160].decode(errors='replace')}"
            self.faults.setdefault(words, repr(asked[:600]))


class Connection:
    """Kept alive while the server does."""

    def __init__(self, place: tuple[str, int]) -> None:
        self._place = place
        self._socket: socket.socket | None = None

    def ask(self, given: Hostile, answers: Answers) -> None:
        data = written(given)
        for _ in range(2):  # the first may meet a connection that has just been closed
            is_new = self._socket is None
            one = self._socket or socket.create_connection(self._place, PATIENCE_S)
            self._socket = one
            try:
                one.sendall(data)
                status, text, closes = _answer(one, is_head=given.verb == "HEAD")
            except OSError:
                status, text, closes = "closed", b"", True
            if closes:
                one.close()
                self._socket = None
            if status != "closed" or is_new:
                break
        answers.count(status, text, data)


def _answer(one: socket.socket, *, is_head: bool) -> tuple[str, bytes, bool]:
    """(status, body, whether the server closes)."""
    found = b""
    while b"\r\n\r\n" not in found:
        piece = one.recv(65_536)
        if not piece:
            return "closed", found, True
        found += piece
    head, _, body = found.partition(b"\r\n\r\n")
    lowered = head.lower()
    size = int(lowered.partition(b"\r\ncontent-length:")[2].partition(b"\r\n")[0] or b"0")
    while len(body) < size and not is_head:
        piece = one.recv(65_536)
        if not piece:
            return "closed", body, True
        body += piece
    return head[9:12].decode(), body, b"connection: close" in lowered


def verbs(chance: random.Random, count: int) -> Iterator[Hostile]:
    """In turn, every verb of every route; and paths that are none."""
    done = 0
    while True:
        for route in (*ROUTES, ""):
            for verb in VERBS:
                if done == count:
                    return
                done += 1
                target = path(chance, route, 0.5) if route else "/" + nonsense(chance)
                body = nonsense(chance).encode() if chance.random() < 0.3 else b""
                yield Hostile(verb, target, {}, body)


def send_wire(place: tuple[str, int], chance: random.Random, count: int, answers: Answers) -> None:
    """Many at a time, each on a connection of its own."""
    for start in range(0, count, SIDE_BY_SIDE):
        with selectors.DefaultSelector() as selector:
            asked: dict[socket.socket, bytes] = {}
            for _ in range(min(SIDE_BY_SIDE, count - start)):
                one = socket.create_connection(place, PATIENCE_S)
                data = wire(chance)
                asked[one] = data
                with suppress(OSError):  # refused before all of it was sent
                    one.sendall(data)
                selector.register(one, selectors.EVENT_READ)
            end = time.monotonic() + WIRE_SECONDS
            while selector.get_map() and (left := end - time.monotonic()) > 0:
                for key, _ in selector.select(left):
                    _take(key.fileobj, asked, answers, selector)  # type: ignore[arg-type]
            for one in tuple(asked):
                answers.count("silent", b"", asked.pop(one))
                one.close()


def _take(
    one: socket.socket,
    asked: dict[socket.socket, bytes],
    answers: Answers,
    selector: selectors.BaseSelector,
) -> None:
    try:
        found = one.recv(65_536)
    except OSError:
        found = b""
    status = found[9:12].decode(errors="replace") if found.startswith(b"HTTP/1.1 ") else "closed"
    answers.count(status, found.partition(b"\r\n\r\n")[2], asked.pop(one))
    selector.unregister(one)
    one.close()


def main() -> None:
    host, port, what, seed, count = sys.argv[1:]
    os.nice(NICENESS)
    place = (host, int(port))
    chance = random.Random(int(seed))
    answers = Answers()
    if what == "wire":
        send_wire(place, chance, int(count), answers)
    else:
        connection = Connection(place)
        if what == "verbs":
            given = verbs(chance, int(count))
        else:
            given = (request(chance) for _ in range(int(count)))
        for one in given:
            connection.ask(one, answers)
    print(json.dumps({"statuses": answers.statuses, "faults": answers.faults}), flush=True)


if __name__ == "__main__":
    main()
