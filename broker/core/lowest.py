"""The lowest of some things whose ranks change: a heap that is corrected when it is looked at.

A rank that rises costs nothing: the heap's note of it is too low, is found at the top and put right
there. Whoever lowers one, or adds a thing, says so. Knows nothing of what it holds.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Collection, Iterable
from typing import Any, Final, Generic, TypeVar

NOTES_MIN: Final = 64
NOTES_PER_THING_MAX: Final = 4
"""Beyond both, notes are made anew: things that are gone or noted twice leave theirs behind."""

T = TypeVar("T")


class Lowest(Generic[T]):
    """`rank_of` tells a thing's rank, numbers or tuples of them, or None when it is gone for good.

    `things` are those that are there at the beginning.
    """

    __slots__ = ("_count", "_notes", "_rank_of")

    def __init__(self, rank_of: Callable[[T], Any], things: Iterable[T]) -> None:
        self._rank_of = rank_of
        self._notes: list[tuple[Any, int, T]] = []
        self._count = 0
        self._fill(things)

    def __len__(self) -> int:
        """How many notes there are."""
        return len(self._notes)

    def note(self, thing: T, among: Collection[T]) -> None:
        """It is new, or its rank may have fallen. `among` are all there are now."""
        self._count += 1
        heapq.heappush(self._notes, (self._rank_of(thing), self._count, thing))
        if len(self._notes) > max(NOTES_MIN, NOTES_PER_THING_MAX * len(among)):
            self._fill(among)

    def find(self) -> T:
        """The lowest, which stays. There must be one."""
        notes = self._notes
        while True:
            noted, _, thing = notes[0]
            rank = self._rank_of(thing)
            if rank == noted:
                return thing
            if rank is None:
                heapq.heappop(notes)
            else:
                self._count += 1
                heapq.heapreplace(notes, (rank, self._count, thing))

    def pop(self) -> T | None:
        """The next one in the order of ranks, to be noted again later; None after the last.

        One that was noted twice comes twice.
        """
        notes = self._notes
        while notes:
            noted, _, thing = heapq.heappop(notes)
            rank = self._rank_of(thing)
            if rank == noted:
                return thing
            if rank is not None:
                self._count += 1
                heapq.heappush(notes, (rank, self._count, thing))
        return None

    def _fill(self, things: Iterable[T]) -> None:
        self._notes = [(self._rank_of(one), number, one) for number, one in enumerate(things)]
        self._count = len(self._notes)
        heapq.heapify(self._notes)
