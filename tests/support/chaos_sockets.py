"""Garbage below ZeroMQ: bytes on the Unix socket itself, from peers that do not speak ZMTP at all.

`python -m support.chaos_sockets RUN_DIR SEED COUNT` makes so many connections to both sockets, some
of which stay open without a word until its stdin ends; says "held" when the last one is made.
"""

from __future__ import annotations

import contextlib
import random
import socket
import struct
import sys
from collections.abc import Callable
from typing import Final

from naiad.protocol.endpoints import Endpoints

SIGNATURE: Final = b"\xff\0\0\0\0\0\0\0\x01\x7f"
HELD_MAX: Final = 200
"""Connections kept open with their handshake unfinished."""
TIMEOUT_S: Final = 5.0


def greeting(mechanism: bytes = b"NULL", version: bytes = b"\x03\x01", as_server: int = 0) -> bytes:
    """The 64 bytes with which each side of a ZMTP 3 connection begins."""
    return SIGNATURE + version + mechanism.ljust(20, b"\0") + bytes([as_server]) + bytes(31)


def command(name: bytes, body: bytes) -> bytes:
    """A ZMTP command frame."""
    content = bytes([len(name)]) + name + body
    if len(content) < 256:
        return b"\x04" + bytes([len(content)]) + content
    return b"\x06" + struct.pack(">Q", len(content)) + content


def ready(socket_type: bytes = b"DEALER", extra: bytes = b"") -> bytes:
    key = b"Socket-Type"
    body = bytes([len(key)]) + key + struct.pack(">I", len(socket_type)) + socket_type
    return command(b"READY", body + extra)


def noise(rng: random.Random) -> bytes:
    return rng.randbytes(rng.choice((1, 10, 64, 5_000)))


def half_greeting(rng: random.Random) -> bytes:
    return greeting()[: rng.randrange(1, 64)]


def old_greeting(rng: random.Random) -> bytes:
    """ZMTP 1 and 2, and versions that never were."""
    return rng.choice(
        (b"\x01\0", b"\x05\0abcd", SIGNATURE + b"\x01\x05\0\0", SIGNATURE + b"\xff\0")
    )


def wrong_mechanism(rng: random.Random) -> bytes:
    return greeting(rng.choice((b"PLAIN", b"CURVE", b"GSSAPI", b"", b"null", b"\xff" * 20)))


def wrong_handshake(rng: random.Random) -> bytes:
    """A good greeting, then not what should follow."""
    huge = struct.pack(">I", 2**32 - 1)
    return greeting() + rng.choice(
        (
            ready(rng.choice((b"PUB", b"REQ", b"NO", b"", b"\0" * 200, b"ROUTER"))),
            ready(extra=b"\x08Identity" + struct.pack(">I", 300) + b"i" * 300),
            ready(extra=b"\x08Identity" + huge),
            ready(extra=rng.randbytes(40)),
            command(b"READY", b""),
            command(b"ERROR", b"\x03no!"),
            command(b"NO", rng.randbytes(20)),
            b"\x04\x00",
            b"\x00\x05hello",
            b"\x06" + struct.pack(">Q", 2**63) + b"x" * 100,
            rng.randbytes(100),
        )
    )


def wrong_frames(rng: random.Random) -> bytes:
    """A finished handshake, then frames that are too long, commands, or nonsense."""
    return (
        greeting()
        + ready()
        + rng.choice(
            (
                b"\x02" + struct.pack(">Q", 2**63 - 1) + b"x" * 1_000,
                b"\x02" + struct.pack(">Q", 2**40) + b"x" * 1_000,
                b"\x02" + struct.pack(">Q", 2**64 - 1),
                b"\x01\0" * 3_000,
                b"\x00\x00" * 100,
                b"\xff" * 100,
                command(b"PING", b"\xff\xff" + b"c" * 16),
                command(b"PING", b""),
                command(b"SUBSCRIBE", b"x"),
                command(b"READY", b""),
                b"\x01\x05hello",
                b"\x00\x03\x92\x01\x02" * 50,
            )
        )
    )


MAKERS: Final[tuple[Callable[[random.Random], bytes], ...]] = (
    noise, half_greeting, old_greeting, wrong_mechanism, wrong_handshake, wrong_frames,
    lambda rng: b"",
)  # fmt: skip


def main() -> None:
    run_dir, seed, count = sys.argv[1:]
    endpoints = Endpoints(run_dir)
    rng = random.Random(int(seed))
    held: list[socket.socket] = []
    for number in range(int(count)):
        path = endpoints.workers_path if number % 2 else endpoints.clients_path
        one = socket.socket(socket.AF_UNIX)
        one.connect(path)  # waits while too many others wait to be accepted
        one.settimeout(TIMEOUT_S)
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            one.sendall(rng.choice(MAKERS)(rng))
        if len(held) < HELD_MAX and rng.random() < 0.2:
            held.append(one)
        else:
            one.close()
    print("held", flush=True)
    sys.stdin.read()
    for one in held:
        one.close()


if __name__ == "__main__":
    main()
