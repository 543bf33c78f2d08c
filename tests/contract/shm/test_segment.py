"""Segments and mappings: what they promise, and what they refuse."""

from __future__ import annotations

import gc
import mmap
import os
import stat
import subprocess
import sys
from collections.abc import Callable

import numpy as np
import pytest

from naiad.protocol.errors import Code, InternalError, RequestError
from naiad.protocol.messages import Region
from naiad.shm.janitor import Janitor
from naiad.shm.layout import RANDOM_BYTES, segment_name
from naiad.shm.objects import (
    DIRECTORY,
    describe,
    free_bytes,
    is_same,
    total_bytes,
    verified,
)
from naiad.shm.segment import Mapping, Segment
from support.shm_process import PYTHON_PATH, ShmProcess

SIZE = 100_000
WHOLE_DIRECTORY = 1 << 20


def test_what_the_owner_writes_the_other_reads_and_back(key: str) -> None:
    with Segment.create(key, SIZE) as segment, Mapping.open(segment.region, writable=True) as other:
        segment.view[10:15] = b"hello"
        assert bytes(other.slice(10, 5)) == b"hello"
        other.slice(10, 5, writable=True)[:] = b"world"
        assert bytes(segment.view[10:15]) == b"world"
        assert other.copy(10, 5) == b"world"


def test_every_byte_is_there_at_creation(key: str) -> None:
    with Segment.create(key, SIZE, populate=False):
        found = os.stat(DIRECTORY + key)
        assert found.st_size == SIZE
        assert found.st_blocks * 512 >= SIZE


@pytest.mark.parametrize("mode", [0o600, 0o660])
def test_the_mode_does_not_depend_on_the_umask(key: str, mode: int) -> None:
    before = os.umask(0o077)
    try:
        with Segment.create(key, SIZE, mode=mode):
            assert stat.S_IMODE(os.stat(DIRECTORY + key).st_mode) == mode
    finally:
        os.umask(before)


def test_a_name_is_used_once(key: str) -> None:
    with Segment.create(key, SIZE) as first:
        with pytest.raises(InternalError, match="unique"):
            Segment.create(key, SIZE)
        assert is_same(first.region)


def test_close_unlinks_and_is_harmless_twice(key: str) -> None:
    segment = Segment.create(key, SIZE)
    assert segment.close()
    assert segment.close()
    assert not os.path.exists(DIRECTORY + key)


def test_views_outlive_close_and_unmap_with_the_last(key: str) -> None:
    segment = Segment.create(key, SIZE)
    mapping = Mapping.open(segment.region, writable=True)
    array = np.frombuffer(mapping.slice(0, 8), np.uint8)
    view = segment.view[:8]
    view[:] = b"12345678"
    assert not segment.close()
    assert not mapping.close()
    assert array.tobytes() == bytes(view) == b"12345678"
    mapped = view.obj
    assert isinstance(mapped, mmap.mmap)
    view.release()
    mapped.close()


def test_a_segment_that_is_dropped_unclosed_leaves_no_name(key: str) -> None:
    region = Segment.create(key, SIZE).region
    gc.collect()
    assert not is_same(region)


def test_a_process_that_exits_without_closing_leaves_no_name(key: str) -> None:
    program = f"""
from naiad.shm.segment import Segment
kept = Segment.create({key!r}, 4096)
view = kept.view[1:]
raise SystemExit(3)
"""
    environment = {**os.environ, "PYTHONPATH": PYTHON_PATH}
    done = subprocess.run([sys.executable, "-c", program], env=environment, check=False)
    assert done.returncode == 3
    assert not os.path.exists(DIRECTORY + key)


def test_only_the_name_of_the_same_object_is_unlinked(key: str) -> None:
    first = Segment.create(key, SIZE)
    assert first.unlink()
    assert not first.unlink()
    second = Segment.create(key, SIZE)
    assert not first.unlink()
    first.close()
    assert is_same(second.region)
    os.unlink(DIRECTORY + key)
    assert not second.unlink()
    second.close()


def test_a_forked_child_does_not_unlink_its_parents_segment(server: str, key: str) -> None:
    with Segment.create(key, SIZE) as segment:
        child = os.fork()
        if not child:
            segment.close()
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        assert is_same(segment.region)
        swept = Janitor(server, min_age_s=0).sweep(entries_max=WHOLE_DIRECTORY)
        assert swept == ((), 0, True), "the parent's lock is still there"


# --- ranges ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("offset", "size"),
    [(SIZE, 0), (SIZE, 1), (-1, 1), (0, SIZE + 1), (1, SIZE), (0, 2**63), (2**63, 1), (1, -1)],
)
def test_ranges_outside_are_refused(key: str, offset: int, size: int) -> None:
    with Segment.create(key, SIZE) as segment, Mapping.open(segment.region, writable=True) as other:
        for use in (other.slice, other.copy):
            with pytest.raises(RequestError, match=r"^Invalid offset") as caught:
                use(offset, size)
            assert caught.value.code is Code.INVALID_ARGUMENT


def test_offsets_need_no_alignment(key: str) -> None:
    with Segment.create(key, SIZE) as segment, Mapping.open(segment.region, writable=True) as other:
        segment.view[4097:4100] = b"odd"
        assert bytes(other.slice(4097, 3)) == b"odd"


def test_reading_does_not_allow_writing(key: str) -> None:
    with Segment.create(key, SIZE) as segment, Mapping.open(segment.region, writable=False) as read:
        with pytest.raises(TypeError):
            read.slice(0, 1)[0] = 1
        with pytest.raises(RequestError, match=f"'{key}' may only be read") as caught:
            read.slice(0, 1, writable=True)
        assert caught.value.code is Code.PERMISSION_DENIED


def test_the_slice_of_a_writable_mapping_is_read_only_unless_asked(key: str) -> None:
    with (
        Segment.create(key, SIZE) as segment,
        Mapping.open(segment.region, writable=True) as other,
        pytest.raises(TypeError),
    ):
        other.slice(0, 1)[0] = 1


# --- truncation ------------------------------------------------------------------------------


def test_truncation_before_a_read_is_that_requests_error(key: str) -> None:
    with Segment.create(key, SIZE) as segment, Mapping.open(segment.region, writable=True) as other:
        os.truncate(DIRECTORY + key, 5000)
        assert other.current_size() == 5000
        assert len(other.slice(0, 5000)) == 5000
        for use in (other.slice, other.copy):
            with pytest.raises(RequestError, match="do not truncate") as caught:
                use(4000, 2000)
            assert caught.value.code is Code.REGION_TRUNCATED
            assert f"region '{key}' had 100000 bytes" in caught.value.message
            assert "has 5000 now" in caught.value.message
        os.truncate(DIRECTORY + key, SIZE)
        assert len(other.slice(4000, 2000)) == 2000


def test_truncation_before_the_first_map_is_an_error(key: str) -> None:
    with Segment.create(key, SIZE) as segment:
        os.truncate(DIRECTORY + key, 0)
        with pytest.raises(RequestError) as caught:
            Mapping.open(segment.region, writable=False)
        assert caught.value.code is Code.REGION_TRUNCATED


def test_a_grown_region_is_used_as_it_was_registered(key: str) -> None:
    with Segment.create(key, SIZE) as segment, Mapping.open(segment.region, writable=True) as other:
        os.truncate(DIRECTORY + key, 2 * SIZE)
        assert other.current_size() == SIZE
        with pytest.raises(RequestError, match=rf"^Invalid offset for .* region: '{key}'"):
            other.slice(SIZE, 1)
        with pytest.raises(RequestError, match=rf"^Invalid offset \+ byte size .*: '{key}'"):
            other.copy(1, SIZE)


# --- what is opened --------------------------------------------------------------------------


def test_a_replaced_segment_is_not_opened(key: str) -> None:
    with Segment.create(key, SIZE) as first:
        old = first.region
        first.unlink()
        with Segment.create(key, SIZE):
            with pytest.raises(RequestError, match="replaced") as caught:
                Mapping.open(old, writable=False)
            assert caught.value.code is Code.NOT_FOUND
            assert not is_same(old)


def test_other_users_segments_are_opened_only_when_allowed(key: str) -> None:
    uid = os.geteuid()
    with Segment.create(key, SIZE) as segment:
        with pytest.raises(RequestError, match=f"belongs to user {uid}") as caught:
            Mapping.open(segment.region, writable=False, uids=(uid + 1,))
        assert caught.value.code is Code.PERMISSION_DENIED
        Mapping.open(segment.region, writable=False, uids=(uid + 1, uid)).close()


def test_a_missing_key_is_an_error_in_tritons_words(foreign_key: str) -> None:
    for use in (
        lambda: describe(foreign_key),
        lambda: Mapping.open(Region(1, foreign_key, 1, 1, 1), writable=False),
    ):
        with pytest.raises(
            RequestError, match=r"^Unable to open shared memory region: '/t"
        ) as caught:
            use()
        assert caught.value.code is Code.NOT_FOUND


def _directory(path: str) -> None:
    os.mkdir(path)


def _link(path: str) -> None:
    os.symlink("/etc/passwd", path)


def _fifo(path: str) -> None:
    os.mkfifo(path)


@pytest.mark.parametrize("make", [_directory, _link, _fifo])
def test_what_is_no_shared_memory_is_refused_without_blocking(
    foreign_key: str, make: Callable[[str], None]
) -> None:
    path = DIRECTORY + foreign_key
    make(path)
    try:
        found = os.lstat(path)
        region = Region(1, foreign_key, found.st_dev, found.st_ino, max(found.st_size, 1))
        for use in (
            lambda: describe(foreign_key),
            lambda: Mapping.open(region, writable=False),
            lambda: Mapping.open(region, writable=True),
        ):
            with pytest.raises(RequestError, match=r"^Unable to open shared memory region"):
                use()
    finally:
        os.rmdir(path) if make is _directory else os.unlink(path)


def test_a_region_of_no_bytes_cannot_be_mapped(foreign_key: str) -> None:
    os.close(os.open(DIRECTORY + foreign_key, os.O_CREAT | os.O_RDWR, 0o600))
    region = describe(foreign_key).region
    assert region.size == 0
    with pytest.raises(RequestError, match="no usable size"):
        Mapping.open(region, writable=False)


def test_describe_says_what_is_there(foreign_key: str) -> None:
    with open(DIRECTORY + foreign_key, "wb") as file:
        file.truncate(SIZE)
    owner = describe(foreign_key.lstrip("/"))
    found = os.stat(DIRECTORY + foreign_key)
    assert owner.region == Region(0, foreign_key, found.st_dev, found.st_ino, SIZE)
    assert owner.uid == os.geteuid()


def test_what_a_client_says_of_its_own_arena_is_verified(key: str) -> None:
    mine = (os.geteuid(),)
    with Segment.create(key, SIZE, region_id=3) as segment:
        region = segment.region
        assert verified(region, mine) == region
        assert verified(region._replace(size=SIZE - 1), mine).size == SIZE - 1
        for wrong, code in [
            (region._replace(inode=region.inode + 1), Code.NOT_FOUND),
            (region._replace(device=region.device + 1), Code.NOT_FOUND),
            (region._replace(size=SIZE + 1), Code.REGION_TRUNCATED),
            (region._replace(key=region.key + "x"), Code.PERMISSION_DENIED),
        ]:
            with pytest.raises(RequestError) as caught:
                verified(wrong, mine)
            assert caught.value.code is code
        with pytest.raises(RequestError, match=f"expected {mine[0] + 1}") as caught:
            verified(region, (mine[0] + 1,))
        assert caught.value.code is Code.PERMISSION_DENIED
    with pytest.raises(RequestError) as caught:
        verified(region, mine)
    assert caught.value.code is Code.NOT_FOUND


def test_an_arena_that_goes_while_it_is_looked_at_is_refused(
    key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked = describe

    def removed_after(*arguments: object, **how: object) -> object:
        found = looked(*arguments, **how)  # type: ignore[arg-type]
        os.unlink(DIRECTORY + key)
        return found

    with Segment.create(key, SIZE, region_id=3) as segment:
        monkeypatch.setattr("naiad.shm.objects.describe", removed_after)
        with pytest.raises(RequestError) as caught:
            verified(segment.region, (os.geteuid(),))
    assert caught.value.code is Code.NOT_FOUND


def test_a_workers_arena_cannot_be_registered(server: str) -> None:
    key = segment_name(server, "worker", os.getpid(), os.urandom(RANDOM_BYTES))
    with (
        Segment.create(key, SIZE) as segment,
        pytest.raises(RequestError, match="a worker's") as caught,
    ):
        verified(segment.region, (os.geteuid(),))
    assert caught.value.code is Code.PERMISSION_DENIED


def test_our_own_names_are_described_only_from_inside(key: str) -> None:
    with Segment.create(key, SIZE) as segment:
        with pytest.raises(RequestError, match="reserved"):
            describe(key)
        with pytest.raises(RequestError, match="reserved"):
            Mapping.open(segment.region, writable=False, foreign=True)
        assert describe(key, foreign=False).region == segment.region


def test_a_mapping_lives_on_when_its_owner_is_killed(server: str) -> None:
    with ShmProcess("own", server, "client", str(SIZE)) as owner:
        region = owner.regions[0]
        with Mapping.open(region, writable=False) as mapping:
            owner.kill()
            assert bytes(mapping.slice(0, SIZE)) == b"a" * SIZE
        os.unlink(DIRECTORY + region.key)


def test_capacity_is_that_of_the_file_system() -> None:
    assert free_bytes() > 0
    assert total_bytes() >= 0
