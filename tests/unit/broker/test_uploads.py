"""Folders of files that came with loads: kept as long as a load or a version needs them."""

from __future__ import annotations

from typing import Any

import pytest

from naiad.broker.core import events as e
from naiad.broker.core.uploads import SWEEP_NS, Uploads
from naiad.broker.core.world import Limits, World
from naiad.protocol.errors import Code, RequestError
from support.simulated_bench import CLIENT, Bench, config

FIRST, SECOND = 32 * "a", 32 * "b"


class Watching(Bench):
    """A bench whose broker allows files, and that knows which folders are left."""

    def __init__(self, **how: Any) -> None:
        self.folders: set[str] = set()
        super().__init__(**how)

    def _take(self, actions: list[e.Action]) -> None:
        for action in actions:
            if type(action) is e.KeepUploads:
                assert not action.kept & set(action.dropped)
                self.folders -= set(action.dropped)
        super()._take(actions)

    def bring(self, upload: str, payload: bytes = b"{}") -> int:
        self.folders.add(upload)
        return self.ask_control("load", payload, model="m", upload=upload)


@pytest.fixture
def bench() -> Watching:
    return Watching(allow_files=True)


def test_a_folder_is_looked_into_and_stays_while_its_version_serves(bench: Watching) -> None:
    bench.bring(FIRST)
    assert (bench.scans[-1].upload, bench.scans[-1].override) == (FIRST, "{}")
    bench.scanned(config())
    bench.loaded(bench.worker())
    bench.control("unload", model="m")
    assert bench.folders == {FIRST}  # its worker has not ended
    (slot,) = bench.world.slots
    bench.dies(slot, ordered=True)
    assert bench.folders == set()


def test_the_next_load_takes_the_place_of_the_last_one(bench: Watching) -> None:
    bench.bring(FIRST)
    bench.scanned(config())
    first = bench.worker()
    bench.loaded(first)
    bench.bring(SECOND)
    bench.scanned(config(), edition="1")
    bench.loaded(bench.worker())
    assert bench.folders == {FIRST, SECOND}
    bench.dies(first, ordered=True)
    assert bench.folders == {SECOND}


@pytest.mark.parametrize(
    "entry",
    [
        {"faults": ["wrong"]},
        {"missing": "no such model there"},
    ],
)
def test_a_load_that_fails_needs_its_folder_no_more(bench: Watching, entry: dict[str, Any]) -> None:
    call = bench.bring(FIRST)
    bench.scanned(config(), **entry)
    assert bench.replies[CLIENT, call][0] is not None
    assert bench.folders == set()


def test_what_is_refused_at_once_is_removed_at_once(bench: Watching) -> None:
    call = bench.bring(FIRST, b"")
    error = bench.replies[CLIENT, call][0]
    assert error is not None
    assert "'config' must be specified" in error.message
    assert bench.folders == set()
    with pytest.raises(RequestError, match="32 hexadecimal digits"):
        bench.control("load", model="m", upload="../x")


def test_without_the_flag_files_are_refused() -> None:
    bench = Watching()
    call = bench.bring(FIRST)
    error = bench.replies[CLIENT, call][0]
    assert error is not None
    assert error.code is Code.UNSUPPORTED
    assert "--allow-file-override" in error.message
    assert bench.folders == set()


def test_a_restarted_broker_keeps_what_it_serves(bench: Watching) -> None:
    bench.bring(FIRST)
    bench.scanned(config())
    bench.loaded(bench.worker())
    again = bench.restarted()
    (model,) = again.world.models.values()
    assert [one.upload for one in model.versions.values()] == [FIRST]
    assert again.scheduler.snapshot()["models"][0]["upload"] == FIRST


def test_only_so_many_loads_with_files_are_served() -> None:
    world = World(incarnation=1, server="s", first_number=1, limits=Limits())
    uploads = Uploads(world, True)
    for number in range(65):
        uploads.take(f"{number:032x}")
    with pytest.raises(Exception, match="64 loads with files"):
        uploads.check("{}")


@pytest.mark.parametrize("is_allowed", [True, False])
def test_folders_whose_load_never_came_are_looked_for_again_and_again(is_allowed: bool) -> None:
    bench = Watching(allow_files=is_allowed)
    if is_allowed:
        bench.bring(FIRST)
    looked: list[frozenset[str]] = []
    for _ in range(3):
        bench.now_ns += SWEEP_NS
        looked += [one.kept for one in bench.do() if type(one) is e.KeepUploads]
    assert looked == ([frozenset({FIRST})] * 3 if is_allowed else [])
