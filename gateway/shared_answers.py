"""The same question of many clients at once is asked once: what a model is, what it has done.

Who asks is told nothing older than their question: a question that has been sent to the broker is
over for those who come then, and they share the next. So of each question one is asked and one
waits, however many clients ask. Owns nothing but these two.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable
from typing import Any, TypeVar, cast

T = TypeVar("T")


class SharedAnswers:
    """Of one process, in its event loop."""

    def __init__(self) -> None:
        self._asked: dict[Hashable, asyncio.Task[Any]] = {}
        self._next: dict[Hashable, asyncio.Task[Any]] = {}
        """Wait for the one that is asked."""

    async def get(self, question: Hashable, ask: Callable[[], Awaitable[T]]) -> T:
        """What `ask` returns, or raises, when it is called after this. It may be another's who has
        the same question; an end of this wait ends no other's."""
        task = self._next.get(question)
        if task is None:
            task = asyncio.get_running_loop().create_task(self._ask(question, ask))
            self._next[question] = task
        return cast(T, await asyncio.shield(task))

    async def _ask(self, question: Hashable, ask: Callable[[], Awaitable[T]]) -> T:
        before = self._asked.get(question)
        if before is not None:
            await asyncio.wait((before,))
        task = self._asked[question] = self._next.pop(question)
        try:
            return await ask()
        finally:
            if self._asked[question] is task:
                del self._asked[question]
