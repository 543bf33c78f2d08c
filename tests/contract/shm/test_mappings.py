"""Other processes' regions by id."""

from __future__ import annotations

import os
import weakref
from collections.abc import Iterator

import pytest

from naiad.protocol.errors import Code, ProtocolError, RequestError
from naiad.shm.layout import RANDOM_BYTES, segment_name
from naiad.shm.mapped_memory import MappedMemory
from naiad.shm.mappings import Mappings
from naiad.shm.objects import DIRECTORY
from naiad.shm.segment import Segment


@pytest.fixture
def segments(server: str) -> Iterator[list[Segment]]:
    """Three segments of 4096 bytes with ids 1, 2 and 3, each full of its id."""
    made = []
    for ident in (1, 2, 3):
        key = segment_name(server, "client", os.getpid(), os.urandom(RANDOM_BYTES))
        made.append(Segment.create(key, 4096, region_id=ident))
        made[-1].view[:] = bytes([ident]) * 4096
    yield made
    for segment in made:
        segment.close()


@pytest.fixture
def mappings(segments: list[Segment]) -> Iterator[Mappings]:
    with Mappings(writable=True) as found:
        found.define(segment.region for segment in segments)
        yield found


def test_regions_are_mapped_at_first_use_only(mappings: Mappings) -> None:
    assert (len(mappings), mappings.open_count) == (3, 0)
    for _ in range(3):
        assert bytes(mappings.view(2, 5, 3)) == b"\2\2\2"
    assert mappings.open_count == 1
    assert mappings.copy(3, 0, 2) == b"\3\3"


def test_an_unknown_region_is_not_found_in_tritons_words(mappings: Mappings) -> None:
    with pytest.raises(RequestError, match=r"^Unable to find shared memory region: '9'$") as caught:
        mappings.view(9, 0, 1)
    assert caught.value.code is Code.NOT_FOUND


def test_an_id_never_changes_its_meaning(mappings: Mappings, segments: list[Segment]) -> None:
    mappings.define([segments[0].region])
    with pytest.raises(ProtocolError, match="a new region needs a new id"):
        mappings.define([segments[0].region._replace(size=1)])


def test_what_is_forgotten_is_unknown(mappings: Mappings) -> None:
    mappings.view(1, 0, 1)
    assert mappings.forget([1, 2, 77]) == ()
    assert 1 not in mappings
    assert mappings.open_count == 0
    with pytest.raises(RequestError):
        mappings.view(1, 0, 1)


def test_a_view_outlives_forgetting(mappings: Mappings) -> None:
    view = mappings.view(1, 0, 4)
    assert mappings.forget([1]) == (1,)
    assert bytes(view) == b"\1\1\1\1"


def test_regions_of_owners_that_gave_them_up_are_forgotten(
    mappings: Mappings, segments: list[Segment]
) -> None:
    mappings.view(1, 0, 1)
    assert mappings.forget_unlinked() == ()
    segments[0].unlink()
    assert mappings.forget_unlinked() == (1,)
    assert (len(mappings), mappings.open_count) == (2, 0)


def test_open_mappings_are_bounded(segments: list[Segment]) -> None:
    with Mappings(writable=False, mappings_max=2) as mappings:
        mappings.define(segment.region for segment in segments)
        for ident in (1, 2, 3, 1, 2, 3):
            assert bytes(mappings.view(ident, 0, 1)) == bytes([ident])
            assert mappings.open_count <= 2


def test_a_region_that_may_only_be_read_is_mapped_for_that(segments: list[Segment]) -> None:
    region = segments[0].region
    os.chmod(DIRECTORY + region.key, 0o400)
    with Mappings(writable=True) as mappings:
        mappings.define([region])
        assert bytes(mappings.view(1, 0, 1)) == b"\1"
        if os.geteuid():  # root may write everything
            with pytest.raises(RequestError, match="only be read"):
                mappings.view(1, 0, 1, writable=True)


def test_a_reader_cannot_write(segments: list[Segment]) -> None:
    with Mappings(writable=False) as mappings:
        mappings.define([segments[0].region])
        with pytest.raises(RequestError, match="only be read"):
            mappings.view(1, 0, 1, writable=True)


def goodbyes(mappings: Mappings, ident: int, left: list[int]) -> None:
    """Note in `left` that a region is about to be unmapped, if it still can be read then."""
    memory = mappings.view(ident, 0, 1).obj
    assert type(memory) is MappedMemory
    reference = weakref.ref(memory)

    def leave() -> None:
        found = reference()
        assert found is not None
        left.append(found[0])

    memory.before_unmap(leave)


def test_a_device_is_told_before_forgotten_memory_is_unmapped(mappings: Mappings) -> None:
    left: list[int] = []
    goodbyes(mappings, 1, left)
    goodbyes(mappings, 2, left)
    assert mappings.forget([1]) == ()
    assert left == [1]
    view = mappings.view(2, 0, 1)
    assert mappings.forget([2]) == (2,)
    assert left == [1]
    del view
    assert left == [1, 2]


def test_a_device_is_told_when_mappings_make_room(segments: list[Segment]) -> None:
    left: list[int] = []
    with Mappings(writable=True, mappings_max=1) as mappings:
        mappings.define(segment.region for segment in segments)
        for ident in (1, 2, 3):
            goodbyes(mappings, ident, left)
        assert left == [1, 2]


def test_a_device_is_told_when_a_table_is_dropped(segments: list[Segment]) -> None:
    """As a worker does with that of a broker that died."""
    left: list[int] = []
    mappings = Mappings(writable=True)
    mappings.define(segment.region for segment in segments)
    goodbyes(mappings, 3, left)
    del mappings
    assert left == [3]
