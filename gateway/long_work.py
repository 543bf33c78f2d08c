"""Work that takes long, a few milliseconds in each turn of the event loop, however much there is.

One step of one piece of work runs between two looks at everything else, so that all others of this
gateway are served meanwhile. Owns how many bytes may be worked on; knows nothing of the work.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator
from typing import Final, TypeVar

from naiad.gateway.error_text import over_budget

UNDER_WAY_BYTES_MAX: Final = 256 * 1024 * 1024
"""Of what is being read and written; beyond, requests are refused. A tensor takes up to five times
its size as text."""

T = TypeVar("T")
Steps = Generator[None, None, T]


def at_once(steps: Steps[T]) -> T:
    """What comes of them, for work that is known to be short."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            found: T = end.value
            return found


class LongWork:
    """Of one process."""

    def __init__(self) -> None:
        self._turn = asyncio.Lock()
        self._thread_turn = asyncio.Lock()
        self._under_way_bytes = 0

    async def in_thread(self, work: Callable[[], T]) -> T:
        """What comes of work that lets the event loop run beside it, one after the other.

        Raises what it raises.
        """
        async with self._thread_turn:
            return await asyncio.to_thread(work)

    async def run(self, size: int, steps: Steps[T]) -> T:
        """What comes of these steps, which work on `size` bytes.

        Raises Unavailable, and what they raise.
        """
        if self._under_way_bytes + size > UNDER_WAY_BYTES_MAX:
            raise over_budget(
                f"{self._under_way_bytes} bytes of JSON and typed contents are under way in this"
                f" gateway, {UNDER_WAY_BYTES_MAX} at most; use binary data"
            )
        self._under_way_bytes += size
        try:
            while True:
                async with self._turn:
                    try:
                        next(steps)
                    except StopIteration as end:
                        found: T = end.value
                        return found
                    await asyncio.sleep(0)
        finally:
            self._under_way_bytes -= size
            steps.close()
