"""Gathering and scattering: whatever the batch, every request's bytes come from it and go to it."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from naiad.worker.backends.tensorrt.flight import cuts
from naiad.worker.backends.tensorrt.profiles import Profile, Range, chosen
from support import engines, fake_cudart
from support.backend_requests import Served, place
from support.engines import load, put_plan

ROWS_MAX = 12


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    device = fake_cudart.reset()
    folder: Path = tmp_path_factory.mktemp("engines") / "affine"
    profiles = [{"x": [[1, 4], [2, 4], [ROWS_MAX, 4]]}]
    yield load(put_plan(engines.write_affine(folder), profiles), {"max_batch_size": ROWS_MAX})
    device.close()


batches = st.lists(st.tuples(st.integers(1, 5), st.sampled_from(["none", "exact", "small"])))


@given(batches.filter(lambda batch: 0 < sum(rows for rows, _ in batch) <= ROWS_MAX), st.integers(0))
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.filter_too_much])
def test_every_request_gets_its_own_rows(
    served: Served, batch: list[tuple[int, str]], seed: int
) -> None:
    numbers = np.random.default_rng(seed)
    arrays = [numbers.standard_normal((rows, 4)).astype(np.float32) for rows, _ in batch]
    places = [
        None if kind == "none" else place(rows * 16 if kind == "exact" else rows * 16 - 1)
        for rows, kind in batch
    ]
    requests = [
        served.request({"x": array}, places={} if own is None else {"y": own})
        for array, own in zip(arrays, places, strict=True)
    ]
    answers = served.answers(*requests)
    for array, answer, own, (rows, kind) in zip(arrays, answers, places, batch, strict=True):
        np.testing.assert_array_equal(answer["y"], 2 * array + 1)
        if own is not None:
            written = own.view(np.float32).reshape(rows, 4) if kind == "exact" else None
            assert not own.any() if written is None else np.array_equal(written, 2 * array + 1)


@given(st.lists(st.integers(0, 100)), st.integers(0, 10_000))
def test_cuts_cover_the_buffer_without_a_gap(rows: list[int], row_bytes: int) -> None:
    places = cuts(rows, row_bytes)
    assert [end - begin for begin, end in places] == [count * row_bytes for count in rows]
    assert [begin for begin, _ in places] == [0, *(end for _, end in places)][: len(rows)]


sizes = st.tuples(st.integers(1, 9), st.integers(1, 9))


@given(st.lists(st.tuples(sizes, sizes, sizes), min_size=2, max_size=5), sizes)
def test_the_nearest_profile_that_admits_is_chosen(
    triples: list[tuple[tuple[int, int], ...]], shape: tuple[int, int]
) -> None:
    profiles = []
    for index, triple in enumerate(triples):
        axes = [sorted(axis) for axis in zip(*triple, strict=True)]
        profiles.append(Profile(index, {"x": Range(*zip(*axes, strict=True))}, {}))
    admits = [p for p in profiles if p.misfit({"x": shape}, {}) is None]
    if not admits:
        with pytest.raises(Exception, match="failed to find any Optimization Profile"):
            chosen(profiles, {"x": shape}, {}, "m_0")
        return
    best = chosen(profiles, {"x": shape}, {}, "m_0")
    own = profiles[best].distance({"x": shape}, {})
    assert profiles[best] in admits
    assert all(own <= p.distance({"x": shape}, {}) for p in admits)


def test_of_equally_near_profiles_the_first_is_chosen() -> None:
    ranges = {"x": Range((1,), (4,), (8,))}
    values = {"s": Range((1,), (2,), (9,))}
    near = {"s": Range((1,), (6,), (9,))}
    profiles = [Profile(3, ranges, values), Profile(5, ranges, values), Profile(7, ranges, near)]
    assert chosen(profiles, {"x": (4,)}, {"s": (2,)}, "m_0") == 0
    assert chosen(profiles, {"x": (4,)}, {"s": (6,)}, "m_0") == 2
