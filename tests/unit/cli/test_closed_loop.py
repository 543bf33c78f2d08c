"""The arithmetic of `naiad perf`."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from naiad.cli import closed_loop
from naiad.cli.closed_loop import Tally, shares
from naiad.cli.failure import CommandFailed
from naiad.cli.perf_inputs import random_inputs
from naiad.protocol.errors import ModelError

NOTHING: dict[str, Any] = {"model_stats": []}


def begun_ns() -> int:
    """When the warm-up of whatever was made by now is over."""
    return time.perf_counter_ns() + 10**12


def statistics(**parts: int) -> dict[str, Any]:
    known = ("success", "queue", "compute_input", "compute_infer", "compute_output")
    return {"model_stats": [{"inference_stats": {p: {"ns": parts.get(p, 0)} for p in known}}]}


def test_shares_are_of_what_was_gained() -> None:
    before = statistics(success=1000, queue=900)
    after = statistics(
        success=2000, queue=1150, compute_input=100, compute_infer=300, compute_output=100
    )
    assert shares(before, after) == (0.25, 0.5)
    assert shares(after, after) == (0.0, 0.0)
    assert shares(NOTHING, NOTHING) == (0.0, 0.0)


def test_the_warm_up_does_not_count() -> None:
    tally = Tally(1.0)
    tally.samples.append(10**9)
    tally.tick(0)
    assert len(tally.samples) == 1
    tally.tick(begun_ns())
    assert len(tally.samples) == 0
    tally.samples.extend(range(1000, 101_000, 1000))
    found = tally.measurement(4, NOTHING, NOTHING)
    assert (found.concurrency, found.errors) == (4, 0)
    assert (found.p50_us, found.p90_us, found.p99_us) == pytest.approx((50.5, 90.1, 99.0), abs=0.1)


def test_who_gets_no_turn_for_long_still_measures_the_whole_time() -> None:
    tally = Tally(0.2)
    late_ns = begun_ns()
    assert late_ns < tally.end_ns, "nothing may end before it counted"
    tally.tick(late_ns)
    assert tally.end_ns == late_ns + 200_000_000


def test_very_many_latencies_are_counted_in_classes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(closed_loop, "SAMPLES_MAX", 1000)
    tally = Tally(1.0)
    tally.tick(begun_ns())
    generator = np.random.default_rng(1)
    every = generator.integers(50_000, 5_000_000, 10_500)
    for chunk in np.split(every, 21):
        tally.samples.extend(int(value) for value in chunk)
        tally.tick(begun_ns())
        assert len(tally.samples) < 1000
    found = tally.measurement(1, NOTHING, NOTHING)
    expected = np.percentile(every, (50, 90, 99)) / 1e3
    assert (found.p50_us, found.p90_us, found.p99_us) == pytest.approx(expected, rel=0.02)


def test_nothing_but_errors_ends_it() -> None:
    tally = Tally(1.0)
    fault = ModelError("no")
    for _ in range(closed_loop.FAILURES_MAX - 1):
        tally.failed(fault)
    with pytest.raises(CommandFailed, match="the last: no"):
        tally.failed(fault)


@pytest.mark.parametrize("datatype", ["FP32", "FP16", "INT8", "UINT64", "BOOL", "BYTES", "BF16"])
def test_random_inputs_fit_the_model(datatype: str) -> None:
    metadata = {"name": "m", "inputs": [{"name": "x", "datatype": datatype, "shape": [-1, 3]}]}
    assert random_inputs(metadata, {})["x"].shape == (1, 3)
    assert random_inputs(metadata, {"x": (4, 3)})["x"].shape == (4, 3)
    first, again = random_inputs(metadata, {})["x"], random_inputs(metadata, {})["x"]
    np.testing.assert_array_equal(first, again)


@pytest.mark.parametrize("shape", [(10**14,), (10**22, 16), (2,) * 33])
def test_inputs_that_fit_nowhere_are_refused(shape: tuple[int, ...]) -> None:
    metadata = {"name": "m", "inputs": [{"name": "x", "datatype": "BYTES", "shape": [-1]}]}
    with pytest.raises(CommandFailed, match="too large to make up"):
        random_inputs(metadata, {"x": shape})


class BrokenOff:
    """A client whose user presses Ctrl-C, and whose end completes what is unanswered."""

    def __init__(self) -> None:
        self.callbacks: list[Callable[[Any], None]] = []
        self.submitted = 0

    def submit(self, request: object, callback: Callable[[Any], None]) -> None:
        self.submitted += 1
        self.callbacks.append(callback)

    def drive(self) -> bool:
        raise KeyboardInterrupt

    def exception(self) -> BaseException:
        return RuntimeError("given up")


def test_what_is_in_flight_at_ctrl_c_is_neither_counted_nor_sent_again() -> None:
    client: Any = BrokenOff()
    tally = Tally(1.0)
    with pytest.raises(KeyboardInterrupt):
        closed_loop.closed_loop(client, [client, client], tally, lambda: None)
    for callback in client.callbacks:
        callback(client)
    assert (client.submitted, tally.errors, len(tally.samples)) == (2, 0, 0)
