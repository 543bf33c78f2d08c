"""Work in steps (naiad.gateway.long_work), done to its end."""

from __future__ import annotations

from typing import TypeVar

from naiad.gateway.long_work import Steps

T = TypeVar("T")


def ended(steps: Steps[T]) -> tuple[T, int]:
    """What comes of them, and how many pauses there were for others."""
    count = 0
    while True:
        try:
            next(steps)
            count += 1
        except StopIteration as end:
            found: T = end.value
            return found, count
