"""Who has which bytes of an arena: an allocator of ranges in segments. Pure.

Owns the bookkeeping only: it never sees memory, creates no segment and asks no clock. Its caller
adds a segment when `needs` says so and removes those that `trimmable` names.

Prior art: two-level segregated fit (TLSF). Free blocks lie in bins by size, a bitmap finds the
first bin that is large enough, and neighbours merge when freed: all in constant time. In front of
it, each size keeps a short stack of freed blocks that are not merged at once, because the next
request mostly has the size of the last one; they merge as soon as an allocation finds no room.
"""

from __future__ import annotations

from collections import defaultdict
from enum import IntEnum
from functools import lru_cache
from typing import Final, NamedTuple

from naiad.protocol.errors import InternalError
from naiad.shm.layout import ALIGNMENT_BYTES, REGION_BYTES_MAX, aligned_up, power_of_two_up

SEGMENT_BYTES_MIN: Final = 1 << 20
STACK_BLOCKS_MAX: Final = 64
"""Freed blocks of one size that stay unmerged."""

_STEPS: Final = 16
"""Sizes per power of two: a range wastes at most a sixteenth."""
_make: Final = tuple.__new__


class Range(NamedTuple):
    """`size` bytes at `offset` of a segment. No two ranges ever have the same `generation`."""

    segment: int
    offset: int
    size: int
    generation: int


class Use(IntEnum):
    """What a block is for."""

    FREE = 0
    """In a bin, merged with its free neighbours."""
    STACKED = 1
    """Free, but kept unmerged for the next range of this size."""
    LENT = 2
    """Somebody reads or writes it, or may still."""


_FREE: Final = Use.FREE
_STACKED: Final = Use.STACKED
_LENT: Final = Use.LENT
"""Their names as globals: looking a member up in its class costs as much as a small call."""


class _Block:
    """A piece of a segment; pieces are linked in the order of their offsets."""

    __slots__ = ("after", "before", "capacity", "generation", "index", "offset", "segment", "use")

    def __init__(
        self, segment: int, offset: int, capacity: int, before: _Block | None, after: _Block | None
    ) -> None:
        self.segment = segment
        self.offset = offset
        self.capacity = capacity
        self.before = before
        self.after = after
        self.use = _FREE
        self.index = 0
        """Its class of sizes since it was last cut for a range."""
        self.generation = 0


@lru_cache(maxsize=1024)
def size_index(size: int) -> int:
    """The smallest class of sizes that holds `size` bytes."""
    units = (size + 63) >> 6 or 1
    if units < _STEPS:
        return units
    shift = units.bit_length() - 5
    return (shift << 4) + ((units + (1 << shift) - 1) >> shift)


def index_size(index: int) -> int:
    """Bytes of a range of this class."""
    if index < 2 * _STEPS:
        return index * ALIGNMENT_BYTES
    shift = (index >> 4) - 1
    return ((index - (shift << 4)) << shift) * ALIGNMENT_BYTES


def _bin_index(capacity: int) -> int:
    """The largest class of sizes that a free block of `capacity` bytes can serve."""
    units = capacity >> 6
    if units < _STEPS:
        return units
    shift = units.bit_length() - 5
    return (shift << 4) + (units >> shift)


class Arena:
    """Ranges in segments that grow up to `limit_bytes` together."""

    def __init__(self, limit_bytes: int, segment_bytes_min: int = SEGMENT_BYTES_MIN) -> None:
        assert 0 < segment_bytes_min <= limit_bytes < REGION_BYTES_MAX
        assert segment_bytes_min % ALIGNMENT_BYTES == 0
        self.limit_bytes = limit_bytes
        self.segment_bytes_min = segment_bytes_min
        self.total_bytes = 0
        self.used_bytes = 0
        """Lent, rounding included."""
        self.peak_bytes = 0
        """Highest used_bytes since the last `trimmable`."""
        self._segments: dict[int, _Block] = {}
        self._sizes: dict[int, int] = {}
        self._lent: dict[int, _Block] = {}
        self._bins: defaultdict[int, dict[_Block, None]] = defaultdict(dict)
        self._filled_bins = 0
        self._stacks: defaultdict[int, list[_Block]] = defaultdict(list)
        self._generation = 0

    # --- ranges ------------------------------------------------------------------------------

    def allocate(self, size: int) -> Range | None:
        """A range of `size` bytes that the caller now owns; None when no segment has room."""
        index = size_index(size)
        stack = self._stacks[index]
        block = stack.pop() if stack else self._carved(index)
        if block is None:
            return None
        self._generation = generation = self._generation + 1
        block.use = _LENT
        block.generation = generation
        self._lent[generation] = block
        self.used_bytes = used = self.used_bytes + block.capacity
        if used > self.peak_bytes:
            self.peak_bytes = used
        return _make(Range, (block.segment, block.offset, size, generation))

    def release(self, given: Range) -> None:
        """The range is free again.

        Raises InternalError for a range that is not held: its bytes may be somebody else's by now.
        """
        segment, offset, _, generation = given
        block = self._lent.get(generation)
        if block is None or block.offset != offset or block.segment != segment:
            raise _stale(given)
        del self._lent[generation]
        self.used_bytes -= block.capacity
        stack = self._stacks[block.index]
        if len(stack) < STACK_BLOCKS_MAX:
            block.use = _STACKED
            stack.append(block)
        else:
            self._merge(block)

    def holds(self, given: Range) -> bool:
        """Whether the range is still lent."""
        block = self._lent.get(given.generation)
        return block is not None and (block.segment, block.offset) == (given.segment, given.offset)

    @property
    def range_count(self) -> int:
        return len(self._lent)

    # --- segments ----------------------------------------------------------------------------

    def needs(self, size: int) -> int:
        """Bytes of a new segment so that `size` can be allocated; 0: the limit forbids it.

        As large as everything so far, so that n bytes take log n segments, in powers of two.
        """
        room = self.limit_bytes - self.total_bytes
        least = index_size(size_index(size))
        wanted = max(power_of_two_up(max(least, self.total_bytes)), self.segment_bytes_min)
        if wanted <= room:
            return wanted
        smallest = max(power_of_two_up(least), self.segment_bytes_min)
        if smallest <= room:
            return smallest
        return least if least <= room else 0

    def add_segment(self, segment: int, size: int) -> None:
        """A new segment of `size` bytes, a multiple of ALIGNMENT_BYTES, under an unused id."""
        assert segment not in self._segments
        assert size > 0
        assert size == aligned_up(size)
        block = _Block(segment, 0, size, None, None)
        self._segments[segment] = block
        self._sizes[segment] = size
        self.total_bytes += size
        self._insert(block)

    def remove_segment(self, segment: int) -> None:
        """Forget a segment that has no range in it."""
        self._merge_stacks()
        block = self._segments[segment]
        if block.use is not _FREE or block.after is not None:
            raise InternalError(f"segment {segment} cannot be removed: ranges in it are in use")
        self._remove(block)
        del self._segments[segment]
        self.total_bytes -= self._sizes.pop(segment)

    def trimmable(self, low_bytes: int) -> tuple[int, ...]:
        """Empty segments that were not needed since the last call, largest first.

        What remains holds at least `low_bytes`, and one and a half times the peak since the last
        call (large ranges do not fit every gap); so called once a minute it keeps what one minute
        of traffic used.
        """
        self._merge_stacks()
        keep_bytes = max(low_bytes, self.peak_bytes + self.peak_bytes // 2)
        self.peak_bytes = self.used_bytes
        remaining = self.total_bytes
        out = []
        for segment, size in sorted(self._sizes.items(), key=lambda item: -item[1]):
            block = self._segments[segment]
            if block.use is _FREE and block.after is None and remaining - size >= keep_bytes:
                remaining -= size
                out.append(segment)
        return tuple(out)

    def segments(self) -> dict[int, int]:
        """Bytes of every segment, by id."""
        return dict(self._sizes)

    # --- blocks ------------------------------------------------------------------------------

    def _carved(self, index: int) -> _Block | None:
        """A block of exactly this class, cut from the smallest bin that surely fits."""
        filled = self._filled_bins >> index
        if not filled:
            if not any(self._stacks.values()):
                return None
            self._merge_stacks()
            filled = self._filled_bins >> index
            if not filled:
                return None
        found = index + (filled & -filled).bit_length() - 1
        block = next(reversed(self._bins[found]))
        self._remove(block)
        wanted = index_size(index)
        rest = block.capacity - wanted
        if rest:
            block.capacity = wanted
            cut = _Block(block.segment, block.offset + wanted, rest, block, block.after)
            if block.after is not None:
                block.after.before = cut
            block.after = cut
            self._insert(cut)
        block.index = index
        return block

    def _merge_stacks(self) -> None:
        stacks, self._stacks = self._stacks, defaultdict(list)
        for stack in stacks.values():
            for block in stack:
                self._merge(block)

    def _merge(self, block: _Block) -> None:
        """Into a bin, as one block with the free neighbours."""
        before, after = block.before, block.after
        if after is not None and after.use is _FREE:
            self._remove(after)
            self._join(block, after)
        if before is not None and before.use is _FREE:
            self._remove(before)
            self._join(before, block)
            block = before
        self._insert(block)

    def _join(self, first: _Block, second: _Block) -> None:
        first.capacity += second.capacity
        first.after = second.after
        if second.after is not None:
            second.after.before = first

    def _insert(self, block: _Block) -> None:
        block.use = _FREE
        index = _bin_index(block.capacity)
        self._bins[index][block] = None
        self._filled_bins |= 1 << index

    def _remove(self, block: _Block) -> None:
        index = _bin_index(block.capacity)
        bin_ = self._bins[index]
        del bin_[block]
        if not bin_:
            self._filled_bins &= ~(1 << index)

    def check_invariants(self) -> None:
        """Every byte of every segment belongs to exactly one block, and every sum is right."""
        used = lent = 0
        stacked = {block for stack in self._stacks.values() for block in stack}
        binned = {block for bin_ in self._bins.values() for block in bin_}
        for segment, size in self._sizes.items():
            offset, before = 0, None
            block: _Block | None = self._segments[segment]
            while block is not None:
                assert (block.segment, block.offset, block.before) == (segment, offset, before)
                assert block.capacity > 0
                assert block.capacity % ALIGNMENT_BYTES == 0
                assert (block in binned) == (block.use is _FREE)
                assert (block in stacked) == (block.use is _STACKED)
                if block.use is _FREE:
                    assert before is None or before.use is not _FREE, "unmerged neighbours"
                    assert block in self._bins[_bin_index(block.capacity)]
                elif block.use is not _STACKED:
                    assert self._lent[block.generation] is block
                    lent += 1
                    used += block.capacity
                offset += block.capacity
                before, block = block, block.after
            assert offset == size, f"segment {segment}: blocks cover {offset} of {size} bytes"
        assert lent == len(self._lent)
        assert used == self.used_bytes
        assert self.total_bytes == sum(self._sizes.values()) <= self.limit_bytes
        assert self._segments.keys() == self._sizes.keys()
        for index, bin_ in self._bins.items():
            assert bool(bin_) == bool(self._filled_bins >> index & 1)


def _stale(given: Range) -> InternalError:
    return InternalError(
        f"stale range of {given.size} bytes at {given.offset} of segment {given.segment} "
        f"(generation {given.generation}): it was released before"
    )
