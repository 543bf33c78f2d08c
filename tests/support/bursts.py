"""A process that sends in random bursts, for tests of waiting.

    python tests/support/bursts.py connect|bind ADDRESS COUNT SEED

Sends COUNT messages (each its number) over a DEALER and reads what comes back meanwhile, until it
has had an answer to each: after a burst it waits for all the answers, or for one, or for none, so
that the other side falls asleep again and again, at all possible moments.
"""

from __future__ import annotations

import random
import sys
from typing import Final

import zmq

BURST_MAX: Final = 12
PATIENCE_MS: Final = 30_000


def main() -> None:
    how, address, count, seed = sys.argv[1:]
    send(how, address, int(count), random.Random(seed))


def send(how: str, address: str, count: int, dice: random.Random) -> None:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    dealer = context.socket(zmq.DEALER)
    dealer.linger = 0
    if how == "bind":
        dealer.bind(address)
    else:
        dealer.connect(address)
    sent = answered = 0
    while answered < count:
        for _ in range(min(dice.randint(1, BURST_MAX), count - sent)):
            dealer.send(b"%d" % sent)
            sent += 1
        enough = sent if sent == count else answered + dice.choice((0, 1, sent - answered))
        while answered < enough or dealer.poll(0):
            if not dealer.poll(PATIENCE_MS):
                sys.exit(f"no answer to one of {sent} messages, {answered} were answered")
            dealer.recv_multipart()
            answered += 1
    context.destroy(0)


if __name__ == "__main__":
    main()
