"""What a gateway process holds for its clients at once, and how much that may be. Pure."""

from __future__ import annotations

from naiad.gateway.error_text import over_budget


class Budget:
    """Bytes that this process holds of requests, from their arrival to their answer, and of answers
    that their clients do not take."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self.bytes = 0

    def take(self, size: int) -> None:
        """Raises Unavailable (budget_exceeded) when there is no room."""
        if self.bytes + size > self._bytes_max:
            raise over_budget(
                f"{self.bytes + size} bytes of requests are in flight in this gateway, at most"
                f" {self._bytes_max}"
            )
        self.bytes += size

    def give(self, size: int) -> None:
        self.bytes -= size

    def unread(self, before: int, now: int) -> int:
        """What waits of one client's answers is another amount now, which it returns. That may be
        beyond the limit: answers are there already. It is requests that are refused then."""
        self.bytes += now - before
        return now


class InFlight:
    """Calls that are not answered: `check_room`, then `begun`, then `ended`."""

    def __init__(self, count_max: int) -> None:
        self._count_max = count_max
        self.count = 0

    def check_room(self) -> None:
        """Raises Unavailable (budget_exceeded) when there is none for one more."""
        if self.count >= self._count_max:
            raise over_budget(
                f"{self.count} requests are in flight in this gateway, at most {self._count_max}"
            )

    def begun(self) -> None:
        self.count += 1

    def ended(self) -> None:
        """A call has its outcome, or nobody waits for it any more."""
        self.count -= 1
