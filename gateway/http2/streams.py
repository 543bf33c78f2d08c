"""What a connection knows of one stream, and what it tells of it. Pure."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Any, Final, Protocol

STREAM_WINDOW_BYTES: Final = 4 * 1024 * 1024
"""What a client may send on a stream before it is told that it may go on."""


class Sink(Protocol):
    """What a connection tells while it receives. Streams are told apart by their numbers."""

    def begun(self, stream: int, head: Any, *, is_ended: bool) -> None:
        """A request's head has come. `is_ended`: nothing follows."""

    def arrived(self, stream: int, data: memoryview, *, is_ended: bool) -> None:
        """More of its body; copy what is kept. Say `taken` sooner or later."""

    def was_reset(self, stream: int) -> None:
        """The client does not want an answer any more."""

    def drained(self, stream: int) -> None:
        """Everything that was given for this stream has gone into frames."""


@dataclass(slots=True)
class Stream:
    send_credit: int = 0
    """What may be sent beyond the window that every stream begins with. Apart from that one, so
    that a new size of it is no work for each of thousands of streams."""
    receive_window: int = STREAM_WINDOW_BYTES
    untold: int = 0
    """Taken bytes that the client has not been told of."""
    is_ended: bool = False
    """By the client."""
    end: bytes | None = None
    """The block of trailers that follows `unsent`."""
    unsent: deque[memoryview] | None = None
    unsent_bytes: int = 0
