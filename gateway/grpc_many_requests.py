"""gRPC calls with messages both ways: a stream's requests to iterate over, and `write` for answers.

Owns messages that nobody has read yet, and holds up both ends: a client whose messages are not
read may send no more, and who writes waits for a client that takes too little. What is answered is
for others to say (see grpc_stream).
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any, Final

from naiad.client.requests import Buffer
from naiad.gateway.grpc_call import Asked, Door, WorkingCall
from naiad.gateway.grpc_codec.messages import PREFIX_BYTES

UNREAD_BYTES_MAX: Final = 4 * 1024 * 1024
"""Messages of a stream that wait to be read; beyond, its client may not send more."""
UNSENT_BYTES_MAX: Final = 1024 * 1024
"""Of a stream's answers; beyond, its writer waits."""


class ManyRequestsCall(WorkingCall):
    """A call with messages both ways: an asynchronous iterator of requests, with `write`."""

    def __init__(self, door: Door, asked: Asked) -> None:
        super().__init__(door, asked)
        self._messages: deque[tuple[bool, Buffer]] = deque()
        self._unread_bytes = 0
        self._untaken_bytes = 0
        """Arrived, and the client was not told that it may go on."""
        self._is_ended = False
        self._reader: asyncio.Future[None] | None = None
        self._writer: asyncio.Future[None] | None = None

    def feed(self, data: memoryview, *, is_ended: bool) -> None:
        self._untaken_bytes += len(data)
        super().feed(data, is_ended=is_ended)
        self._take()

    def _take(self) -> None:
        if self._unread_bytes <= UNREAD_BYTES_MAX and self._untaken_bytes:
            self._door.http2.taken(self.stream, self._untaken_bytes)
            self._untaken_bytes = 0
            self._door.send_soon()

    def _message(self, is_compressed: bool, content: Buffer) -> None:
        self._unread_bytes += len(content)
        self._messages.append((is_compressed, content))
        self._door.owes()
        _wake(self._reader)

    def _ended(self) -> None:
        self._is_ended = True
        _wake(self._reader)

    def __aiter__(self) -> ManyRequestsCall:
        return self

    async def __anext__(self) -> Buffer:
        while not self._messages:
            if self._is_ended:
                raise StopAsyncIteration
            self._reader = self._loop.create_future()
            await self._reader
        is_compressed, content = self._messages.popleft()
        self._unread_bytes -= len(content)
        # Whoever reads it counts it himself from here on.
        self._give(min(self._held_bytes, PREFIX_BYTES + len(content)))
        self._take()
        found = await self._plain(is_compressed, content)
        if is_compressed:
            self._give(len(found))
        return found

    async def write(self, *parts: bytes | memoryview) -> None:
        """Send an item, and wait while the client takes too little."""
        if self.send(*parts) > UNSENT_BYTES_MAX and not self.is_done:
            self._writer = self._loop.create_future()
            await self._writer

    def drained(self) -> None:
        """The client has taken what was sent."""
        _wake(self._writer)


def _wake(waiter: asyncio.Future[Any] | None) -> None:
    if waiter is not None and not waiter.done():
        waiter.set_result(None)
