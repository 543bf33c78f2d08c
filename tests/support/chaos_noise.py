"""A process that sends garbage: `python -m support.chaos_noise RUN_DIR clients|workers SEED COUNT`.

Over ZeroMQ, on connections of several manners. Says again and again how many messages it has sent
so far, and how often it was answered what, as a line of JSON. On workers.sock a mutation may be a
good SLOT_HELLO: then the broker kills this process when the connection ends, as it would a worker,
and whoever started it starts another.
"""

from __future__ import annotations

import json
import random
import signal
import sys
from collections import Counter
from enum import Enum
from typing import Final

import zmq

from naiad.protocol import messages as m
from naiad.protocol.codec import decode, encode
from naiad.protocol.endpoints import Endpoints
from naiad.protocol.errors import Code
from support.chaos_garbage import Garbage

MODEL: Final = "echo"
MESSAGES_PER_CONNECTION: Final = (1, 10, 200)
MESSAGES_PER_LINE: Final = 50
PROBE: Final = 2**40 + 7
"""The number of a call that is answered if the session still lives."""
LINGER_MS: Final = 10_000
WAIT_MS_MAX: Final = 20_000


class Manner(Enum):
    """How one connection behaves."""

    POLITE = 1
    """Begins a session whenever it has none, and reads everything: this gets deepest."""
    HASTY = 2
    """Sends on and on, and reads what happens to be there."""
    DEAF = 3
    """Reads nothing at all."""


class Noise:
    """Sends and counts."""

    def __init__(self, run_dir: str, which: str, seed: int) -> None:
        endpoints = Endpoints(run_dir)
        self._address = endpoints.workers if which == "workers" else endpoints.clients
        self._has_sessions = which == "clients"
        self._garbage = Garbage(seed, to_workers=which == "workers", model=MODEL)
        self._random = random.Random(seed + 1)
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self.answers: Counter[str] = Counter()
        self.sent = 0

    def run(self, count: int) -> None:
        while self.sent < count:
            socket = self._context.socket(zmq.DEALER)
            socket.linger = LINGER_MS  # what was sent arrives also when nobody waits for an answer
            socket.sndtimeo = WAIT_MS_MAX
            socket.connect(self._address)
            manner = self._random.choice(list(Manner))
            self._converse(socket, manner, self._random.choice(MESSAGES_PER_CONNECTION))
            socket.close()
        self._context.term()

    def tell(self) -> None:
        print(json.dumps({"sent": self.sent, **self.answers}), flush=True)

    def _converse(self, socket: zmq.Socket[bytes], manner: Manner, count: int) -> None:
        is_new = self._has_sessions
        for _ in range(count):
            if is_new:
                socket.send_multipart(self._garbage.hello())
                is_new = False
            socket.send_multipart(self._garbage.next())
            self.sent += 1
            if self.sent % MESSAGES_PER_LINE == 0:
                self.tell()
            if manner is Manner.HASTY:
                while socket.poll(0):
                    self._read(socket)
            elif manner is Manner.POLITE and self._has_sessions:
                socket.send(encode(m.Control(PROBE, "live", {})))
                is_new = not self._lives(socket)

    def _lives(self, socket: zmq.Socket[bytes]) -> bool:
        """Read up to the probe's answer: whether it was a good one."""
        while True:
            assert socket.poll(WAIT_MS_MAX), "the broker does not answer"
            match self._read(socket):
                case m.Reply(call) if call == PROBE:
                    return True
                case m.Refused(_, text) if "expected HELLO" in text:
                    return False
                case m.Refused(Code.ALREADY_EXISTS):
                    return False  # an id used twice ends the session: the probe may go with it
                case _:
                    continue

    def _read(self, socket: zmq.Socket[bytes]) -> m.Message:
        header, *payload = socket.recv_multipart()
        message = decode(header, [len(frame) for frame in payload])
        kind = type(message).__name__
        self.answers[f"{kind} {message.code}" if isinstance(message, m.Refused) else kind] += 1
        return message


def main() -> None:
    run_dir, which, seed, count = sys.argv[1:]
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)  # the broker's wish for a stack dump
    noise = Noise(run_dir, which, int(seed))
    noise.run(int(count))
    noise.tell()


if __name__ == "__main__":
    main()
