"""The janitor with real processes: the dead are swept, the living are not."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

import pytest

from naiad.shm.janitor import Janitor
from naiad.shm.layout import RANDOM_BYTES, segment_name
from naiad.shm.objects import DIRECTORY
from support.shm_process import ShmProcess

Segments = Callable[[], list[str]]


def swept(janitor: Janitor, keep: tuple[str, ...] = ()) -> tuple[list[str], int]:
    """Everything that one whole pass removes."""
    keys: list[str] = []
    total = 0
    while True:
        removed, removed_bytes, is_complete = janitor.sweep(keep)
        keys += removed
        total += removed_bytes
        if is_complete:
            return keys, total


def later() -> float:
    """A clock that is a minute ahead, so that nothing has to wait for its age."""
    return time.time() + 60


def test_segments_of_the_killed_are_swept_and_no_others(server: str, segments: Segments) -> None:
    with (
        ShmProcess("own", server, "client", "100") as living,
        ShmProcess("own", server, "client", "3000000") as killed,
    ):
        dead = killed.regions
        assert sorted(segments()) == sorted(r.key for r in (*living.regions, *dead))
        killed.kill()
        keys, size = swept(Janitor(server, now_s=later))
        assert keys == [region.key for region in dead]
        assert size == sum(region.size for region in dead) == 4 << 20
        assert segments() == [living.regions[0].key]
        living.end()
        assert segments() == []


def test_a_dead_mappers_lock_is_none(server: str, segments: Segments) -> None:
    """Whoever merely maps a segment neither keeps it nor loses it."""
    with ShmProcess("own", server, "client", "100") as owner:
        with ShmProcess("map", region=owner.regions[0]) as mapper:
            mapper.kill()
        assert swept(Janitor(server, now_s=later))[0] == []
        owner.kill()
        assert len(swept(Janitor(server, now_s=later))[0]) == 1
        assert segments() == []


def test_the_young_are_left_alone(server: str, segments: Segments) -> None:
    with ShmProcess("own", server, "client", "100") as owner:
        owner.kill()
    assert swept(Janitor(server))[0] == []
    assert swept(Janitor(server, min_age_s=0))[0] != []
    assert segments() == []


def test_kept_keys_stay(server: str, segments: Segments) -> None:
    with ShmProcess("own", server, "worker", "100") as owner:
        owner.kill()
        key = owner.regions[0].key
    janitor = Janitor(server, now_s=later)
    assert swept(janitor, keep=(key,))[0] == []
    assert swept(janitor)[0] == [key]
    assert segments() == []


def test_other_servers_are_left_alone_unless_all_are_meant(server: str) -> None:
    with ShmProcess("own", server, "client", "100") as owner:
        owner.kill()
        key = owner.regions[0].key
    assert swept(Janitor(server + "x", now_s=later))[0] == []
    assert swept(Janitor(server[:-1], now_s=later))[0] == []
    assert swept(Janitor(server, now_s=later))[0] == [key]


@pytest.mark.parametrize(
    "name", ["naiad.{}.client.1", "naiad.{}.client.1.0123456789abcdef.x", "x{}"]
)
def test_names_that_are_not_ours_are_never_touched(server: str, name: str) -> None:
    path = f"{DIRECTORY}/{name.format(server)}"
    os.close(os.open(path, os.O_CREAT | os.O_RDWR, 0o600))
    try:
        assert swept(Janitor(server, now_s=later))[0] == []
        assert os.path.exists(path)
    finally:
        os.unlink(path)


def test_a_link_under_our_name_is_never_followed(server: str) -> None:
    path = DIRECTORY + segment_name(server, "client", 1, os.urandom(RANDOM_BYTES))
    os.symlink("/etc/passwd", path)
    try:
        assert swept(Janitor(server, now_s=later))[0] == []
        assert os.path.islink(path)
    finally:
        os.unlink(path)


def test_work_is_bounded_and_goes_on_where_it_ended(server: str, segments: Segments) -> None:
    keys = [segment_name(server, "client", 1, os.urandom(RANDOM_BYTES)) for _ in range(20)]
    for key in keys:
        os.close(os.open(DIRECTORY + key, os.O_CREAT | os.O_RDWR, 0o600))
    janitor = Janitor(server, now_s=later)
    removed, _, is_complete = janitor.sweep(entries_max=5)
    assert len(removed) <= 5
    assert not is_complete
    found = list(removed) + swept(janitor)[0]
    assert sorted(found) == sorted(keys)
    assert segments() == []


def test_two_janitors_at_once_remove_each_segment_once(server: str, segments: Segments) -> None:
    keys = [segment_name(server, "client", 1, os.urandom(RANDOM_BYTES)) for _ in range(50)]
    for key in keys:
        os.close(os.open(DIRECTORY + key, os.O_CREAT | os.O_RDWR, 0o600))
    first, second = Janitor(server, now_s=later), Janitor(server, now_s=later)
    found: list[str] = []
    is_complete = False
    while not is_complete:
        for janitor in (first, second):
            removed, _, is_complete = janitor.sweep(entries_max=7)
            found += removed
    found += swept(first)[0]
    assert sorted(found) == sorted(keys)
    assert segments() == []
