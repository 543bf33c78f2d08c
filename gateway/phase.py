"""Whether a gateway serves: SERVING, then LEAVING (not ready, but serving), then CLOSED."""

from __future__ import annotations

from enum import Enum

from naiad.gateway.plane import draining


class _State(Enum):
    SERVING = "serving"
    LEAVING = "leaving"
    CLOSED = "closed"


class Phase:
    """The state of one gateway process; moves forward only."""

    def __init__(self) -> None:
        self._state = _State.SERVING

    @property
    def is_serving(self) -> bool:
        """Whether new clients should come here."""
        return self._state is _State.SERVING

    def leave(self) -> None:
        """From now on not ready, so that load balancers look elsewhere; requests are served."""
        if self._state is _State.SERVING:
            self._state = _State.LEAVING

    def close(self) -> None:
        """From now on new requests are refused; what runs is finished."""
        self._state = _State.CLOSED

    def check_open(self) -> None:
        """Raises Unavailable (draining) once closed."""
        if self._state is _State.CLOSED:
            raise draining()
