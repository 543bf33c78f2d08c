"""Results that lie in workers' memory, from their arrival until nobody reads them any more. Pure.

Owns which leases a session holds and which RELEASE is due. A lease is (region id, request id).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from naiad.client.calls import Message
from naiad.client.requests import LEASE
from naiad.protocol import messages as m
from naiad.protocol.codec import encode

LEASES_MAX: Final = 2048
"""Beyond, results are copied out of workers' memory: HELLO must be able to name every lease."""
LEASES_PER_MESSAGE_MAX: Final = 2048

Lease = tuple[int, int]


class Leases:
    """The leases of one session."""

    def __init__(self) -> None:
        self.held: set[Lease] = set()
        """To be read only."""
        self.due: list[Lease] = []
        """Ended, and the broker has not been told."""

    @property
    def is_full(self) -> bool:
        return len(self.held) > LEASES_MAX

    def release(self, leases: Iterable[Lease]) -> None:
        """These are no longer read; those that ended before are passed over."""
        for lease in leases:
            if lease in self.held:
                self.held.discard(lease)
                self.due.append(lease)

    def give_back(self, answer: m.InferAnswer) -> None:
        """Nobody reads this answer, whose leases are held."""
        self.release({(tensor[4], answer.id) for tensor in answer.outputs if tensor[3] == LEASE})

    def refuse(self, answer: m.InferAnswer) -> None:
        """The answer goes to nobody: its leases end, unless the same were delivered before."""
        for tensor in answer.outputs:
            lease = (tensor[4], answer.id)
            if tensor[3] == LEASE and lease not in self.held:
                self.due.append(lease)

    def messages(self) -> list[Message]:
        """What to send now."""
        due, self.due = self.due, []
        return [
            [encode(m.Release(tuple(due[start : start + LEASES_PER_MESSAGE_MAX])))]
            for start in range(0, len(due), LEASES_PER_MESSAGE_MAX)
        ]
