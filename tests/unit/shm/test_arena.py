"""The allocator against a model of it, and its promises one by one."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    multiple,
    rule,
)

from naiad.protocol.errors import InternalError
from naiad.shm.arena import STACK_BLOCKS_MAX, Arena, Range, index_size, size_index

KIB = 1024
MIB = 1024 * KIB


@pytest.fixture
def arena() -> Iterator[Arena]:
    """One segment of 64 KiB, limit 1 MiB."""
    arena = Arena(MIB, 64 * KIB)
    arena.add_segment(1, 64 * KIB)
    yield arena
    arena.check_invariants()


def allocated(arena: Arena, size: int) -> Range:
    found = arena.allocate(size)
    assert found is not None
    return found


@given(st.integers(0, 2**40))
def test_a_class_of_sizes_wastes_at_most_a_sixteenth(size: int) -> None:
    index = size_index(size)
    capacity = index_size(index)
    assert size <= capacity <= max(64, size + 63, (size + 63) * 17 // 16)
    assert capacity % 64 == 0
    assert size_index(capacity) == index
    assert index == 1 or index_size(index - 1) < max(size, 1)


def test_ranges_are_aligned_and_do_not_overlap(arena: Arena) -> None:
    sizes = [1, 63, 64, 65, 1000, 4096, 5000, 0]
    ranges = sorted(allocated(arena, size) for size in sizes)
    assert all(found.offset % 64 == 0 for found in ranges)
    for first, second in pairwise(ranges):
        assert first.offset + max(first.size, 1) <= second.offset


def test_a_full_arena_says_none_and_serves_again_after_a_release(arena: Arena) -> None:
    whole = allocated(arena, 64 * KIB)
    assert arena.allocate(1) is None
    arena.release(whole)
    assert allocated(arena, 64 * KIB).offset == 0


def test_freed_neighbours_merge(arena: Arena) -> None:
    ranges = [allocated(arena, KIB) for _ in range(64)]
    assert arena.allocate(1) is None
    for found in ranges[::2] + ranges[1::2]:
        arena.release(found)
    assert allocated(arena, 64 * KIB).size == 64 * KIB


def test_more_freed_blocks_than_a_stack_holds_merge_at_once() -> None:
    arena = Arena(MIB, MIB)
    arena.add_segment(1, MIB)
    ranges = [allocated(arena, KIB) for _ in range(STACK_BLOCKS_MAX * 2)]
    for found in ranges:
        arena.release(found)
        arena.check_invariants()
    assert arena.range_count == 0


def test_the_last_freed_range_is_reused_first(arena: Arena) -> None:
    """Its bytes are still in the processor's cache."""
    first, second = allocated(arena, 5000), allocated(arena, 5000)
    arena.release(first)
    arena.release(second)
    assert allocated(arena, 5000).offset == second.offset


@pytest.mark.parametrize("stale", ["released", "reused", "forged offset", "forged segment", "none"])
def test_a_stale_range_is_an_error_and_never_other_peoples_bytes(arena: Arena, stale: str) -> None:
    given = allocated(arena, 100)
    other = None
    if stale in ("released", "reused"):
        arena.release(given)
    if stale == "reused":
        other = allocated(arena, 100)
        assert other.offset == given.offset
    if stale == "forged offset":
        given = given._replace(offset=given.offset + 64)
    if stale == "forged segment":
        given = given._replace(segment=2)
    if stale == "none":
        given = Range(1, 0, 100, 99)
    used = arena.used_bytes
    assert not arena.holds(given)
    with pytest.raises(InternalError, match="stale"):
        arena.release(given)
    assert arena.used_bytes == used
    assert other is None or arena.holds(other)


def test_needs_doubles_up_to_the_limit() -> None:
    arena = Arena(16 * MIB, MIB)
    grown: list[int] = []
    while size := arena.needs(100 * KIB):
        arena.add_segment(len(grown), size)
        grown.append(size // MIB)
    assert grown == [1, 1, 2, 4, 8]
    assert arena.needs(1) == 0


def test_needs_takes_less_when_the_limit_is_near() -> None:
    arena = Arena(20 * MIB, MIB)
    arena.add_segment(1, 16 * MIB)
    assert arena.needs(2 * MIB) == 2 * MIB
    assert arena.needs(3 * MIB) == 4 * MIB
    assert arena.needs(4 * MIB + 1) == 0
    arena.add_segment(2, 1 * MIB)
    assert arena.needs(3 * MIB) == 3 * MIB


@given(st.integers(0, 1 << 30))
def test_what_needs_says_is_enough(size: int) -> None:
    arena = Arena(1 << 31)
    arena.add_segment(1, arena.needs(size))
    assert arena.allocate(size) is not None


def test_trimmable_keeps_the_peak_of_the_last_period() -> None:
    arena = Arena(16 * MIB, MIB)
    for segment, size in enumerate((1, 1, 2, 4, 8)):
        arena.add_segment(segment, size * MIB)
    for found in [allocated(arena, 4 * MIB), allocated(arena, 5 * MIB)]:
        arena.release(found)
    assert arena.trimmable(0) == (2,), "14 of 16 MiB are one and a half times 9, rounded up"
    assert arena.trimmable(MIB) == (4, 3, 2, 0), "nothing was used since: all but the low mark"
    for segment in (4, 3, 2, 0):
        arena.remove_segment(segment)
    assert arena.total_bytes == MIB


def test_trimmable_spares_segments_in_use(arena: Arena) -> None:
    lent = allocated(arena, 10)
    assert arena.trimmable(0) == ()
    with pytest.raises(InternalError, match="in use"):
        arena.remove_segment(1)
    arena.release(lent)
    arena.trimmable(0)
    assert arena.trimmable(0) == (1,)
    arena.remove_segment(1)
    assert arena.total_bytes == 0
    assert arena.allocate(10) is None


class ArenaAgainstModel(RuleBasedStateMachine):
    """The model: a set of held ranges; no two of one segment may ever overlap."""

    held = Bundle("held")
    dead = Bundle("dead")

    @initialize()
    def start(self) -> None:
        self.arena = Arena(MIB, 16 * KIB)
        self.next_segment = 0
        self.model: set[Range] = set()
        self.sizes: dict[int, int] = {}

    @rule(target=held, size=st.one_of(st.integers(0, 200 * KIB), st.sampled_from([64, 600, 9000])))
    def allocate(self, size: int) -> object:
        found = self.arena.allocate(size)
        if found is None:
            needed = self.arena.needs(size)
            if not needed:
                return multiple()
            assert needed + sum(self.sizes.values()) <= MIB
            self.next_segment += 1
            self.sizes[self.next_segment] = needed
            self.arena.add_segment(self.next_segment, needed)
            found = self.arena.allocate(size)
            assert found is not None, "what needs() said was not enough"
        assert found.size == size
        assert 0 <= found.offset <= found.offset + size <= self.sizes[found.segment]
        for other in self.model:
            assert other.generation < found.generation
            assert (
                other.segment != found.segment
                or other.offset + max(other.size, 1) <= found.offset
                or found.offset + max(size, 1) <= other.offset
            ), f"{found} overlaps {other}"
        self.model.add(found)
        return found

    @rule(target=dead, given=consumes(held))
    def release(self, given: Range) -> Range:
        self.arena.release(given)
        self.model.remove(given)
        return given

    @rule(given=dead)
    def release_twice(self, given: Range) -> None:
        with pytest.raises(InternalError):
            self.arena.release(given)

    @rule(low=st.integers(0, MIB))
    def trim(self, low: int) -> None:
        peak = self.arena.peak_bytes
        for segment in self.arena.trimmable(low):
            assert all(found.segment != segment for found in self.model)
            self.arena.remove_segment(segment)
            del self.sizes[segment]
            assert sum(self.sizes.values()) >= max(low, peak)

    @invariant()
    def agrees_with_the_model(self) -> None:
        self.arena.check_invariants()
        assert self.arena.segments() == self.sizes
        assert self.arena.range_count == len(self.model)
        assert all(self.arena.holds(found) for found in self.model)
        capacities = [index_size(size_index(found.size)) for found in self.model]
        assert self.arena.used_bytes == sum(capacities)


TestArenaAgainstModel = ArenaAgainstModel.TestCase
TestArenaAgainstModel.settings = settings(max_examples=60, stateful_step_count=40)
