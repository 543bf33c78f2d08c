"""The one number to scale on: idle, busy, overloaded, and what is known at first."""

from __future__ import annotations

import pytest

from naiad.metrics.saturation import NS, WINDOW_NS, Busy, Saturation


def full(of: Saturation, *instances: int, pending: int = 0, rows_max: int = 1) -> float:
    return of.of([*instances], pending=pending, rows_max=rows_max)


def test_at_first_only_what_runs_now_is_known() -> None:
    one = Saturation()
    one.observe(5 * NS, {1: Busy(100, True), 2: Busy(7 * NS, False)})
    assert full(one, 1) == 1.0
    assert full(one, 2) == 0.0
    assert full(one, 1, 2) == 0.5


def test_the_share_of_busy_time_since_the_last_look() -> None:
    one = Saturation()
    one.observe(100 * NS, {1: Busy(1 * NS, False), 2: Busy(0, False)})
    one.observe(104 * NS, {1: Busy(4 * NS, False), 2: Busy(1 * NS, False)})
    assert full(one, 1) == pytest.approx(0.75)
    assert full(one, 1, 2) == pytest.approx(0.5)


def test_what_waits_is_added_in_full_batches_per_instance() -> None:
    one = Saturation()
    one.observe(1 * NS, {1: Busy(0, True), 2: Busy(0, True)})
    assert full(one, 1, 2, pending=48, rows_max=8) == pytest.approx(1 + 3)
    assert full(one, pending=4, rows_max=2) == pytest.approx(2), "nobody serves: it all waits"


def test_the_window_moves() -> None:
    one = Saturation()
    busy_ns = 0
    for tenth in range(1, 1000):
        now_ns = tenth * NS // 10
        busy_ns += NS // 10 if tenth > 800 else 0  # idle for 80 s, then busy for 20
        one.observe(now_ns, {1: Busy(busy_ns, True)})
        if tenth == 800 + 5 * (WINDOW_NS // NS):
            assert 0.3 < full(one, 1) < 0.6
    assert full(one, 1) == pytest.approx(1.0)


def test_a_share_is_never_out_of_bounds() -> None:
    one = Saturation()
    one.observe(1 * NS, {1: Busy(9 * NS, True)})
    one.observe(2 * NS, {1: Busy(3 * NS, False), 2: Busy(8 * NS, True)})
    assert full(one, 1) == 0.0, "an estimate of what was running was too high"
    assert full(one, 2) == 1.0, "a new instance, counted before the first look"
