"""Whether a gateway process serves: first all is as usual, then it leaves, then it is closed."""

from __future__ import annotations

from naiad.gateway.plane import draining


class Phase:
    """One for a process, shared by everything that listens in it; moves forward only.

    Attributes, because every request looks:
        is_serving: whether new clients should come here. False: not ready, so that load balancers
            look elsewhere; requests are served all the same.
        is_open: whether new requests are taken. False: what runs is finished, nothing else begun.
    """

    __slots__ = ("is_open", "is_serving")

    def __init__(self) -> None:
        self.is_serving = True
        self.is_open = True

    def leave(self) -> None:
        """From now on not ready."""
        self.is_serving = False

    def close(self) -> None:
        """From now on new requests are refused."""
        self.is_serving = self.is_open = False

    def check_open(self) -> None:
        """Raises Unavailable (draining) once closed."""
        if not self.is_open:
            raise draining()
