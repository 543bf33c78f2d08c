"""The lowest of things whose ranks change."""

from __future__ import annotations

from random import Random

import pytest

from naiad.broker.core.lowest import NOTES_MIN, NOTES_PER_THING_MAX, Lowest


class Thing:
    def __init__(self, rank: int) -> None:
        self.rank: int | None = rank


@pytest.mark.parametrize("seed", range(20))
def test_it_is_the_lowest_whatever_happened(seed: int) -> None:
    random = Random(seed)
    number = iter(range(10, 10**9))
    things = [Thing(next(number)) for _ in range(random.randint(1, 30))]
    lowest: Lowest[Thing] = Lowest(lambda thing: thing.rank, things)
    low = most = 0
    for _ in range(3000):
        kind = random.randrange(4)
        chosen = random.choice(things)
        if kind == 0:
            chosen.rank = next(number)  # it need not be told
        elif kind == 1:
            low -= 1
            chosen.rank = low
            lowest.note(chosen, things)
        elif kind == 2 and len(things) > 1:
            things.remove(chosen)
            chosen.rank = None
        else:
            things.append(Thing(next(number)))
            lowest.note(things[-1], things)
        assert lowest.find() is min(things, key=lambda thing: thing.rank or 0)
        most = max(most, len(things))
        assert len(lowest) <= max(NOTES_MIN, NOTES_PER_THING_MAX * most)


def test_all_come_in_order_and_stay_away_until_they_are_noted_again() -> None:
    things = [Thing(rank) for rank in (3, 1, 2)]
    lowest: Lowest[Thing] = Lowest(lambda thing: thing.rank, things)
    things[1].rank = 4
    found = [lowest.pop() for _ in range(4)]
    assert found == [things[2], things[0], things[1], None]
    lowest.note(things[0], things)
    assert lowest.find() is things[0]
