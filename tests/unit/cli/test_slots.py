"""Slots: how many, under which names, and how soon after a death."""

from naiad.cli.slots import (
    BACK_OFF_NS_MAX,
    NS,
    SLOTS_PER_DEVICE_MAX,
    WORD_WAIT_NS,
    BackOff,
    SlotTable,
)

GPU = "gpu:GPU-1234"


def names(table: SlotTable, now_ns: int = 0) -> list[str]:
    return [start.slot for start in table.due(now_ns)]


def test_nothing_is_started_unasked() -> None:
    table = SlotTable()
    assert names(table) == []
    assert table.deadline_ns() is None


def test_what_is_missing_is_started_once() -> None:
    table = SlotTable()
    table.want("cpu", 2, ("onnxruntime",))
    table.want(GPU, 1, ())
    assert table.deadline_ns() == 0
    starts = table.due(0)
    assert [start.slot for start in starts] == ["cpu-0", "cpu-1", "gpu-GPU-1234-0"]
    assert starts[0].preload == ("onnxruntime",)
    assert starts[2].device == GPU
    assert table.deadline_ns() is None
    assert names(table) == []


def test_old_names_of_mig_devices_are_names_of_files_too() -> None:
    table = SlotTable()
    table.want("gpu:MIG-GPU-8932/1/0", 1, ())
    (start,) = table.due(0)
    assert (start.slot, start.device) == ("gpu-MIG-GPU-8932_1_0-0", "gpu:MIG-GPU-8932/1/0")


def test_a_freed_name_is_used_again() -> None:
    table = SlotTable()
    table.want("cpu", 3, ())
    table.due(0)
    assert table.exited("cpu-1", 5, is_early=False) == 0
    assert names(table, 5) == ["cpu-1"]


def test_fewer_wanted_starts_nothing_and_ends_nothing() -> None:
    table = SlotTable()
    table.want("cpu", 2, ())
    table.due(0)
    table.want("cpu", 1, ())
    table.exited("cpu-0", 0, is_early=False)
    assert names(table) == []


def test_a_wish_without_bound_is_bounded() -> None:
    table = SlotTable()
    table.want("cpu", 10**9, ())
    assert len(table.due(0)) == SLOTS_PER_DEVICE_MAX


def test_early_deaths_wait_longer_and_longer_but_a_healthy_life_forgives() -> None:
    back_off = BackOff()
    delays = [back_off.delay_ns(is_early=True) for _ in range(12)]
    assert delays[:4] == [0, NS // 10, NS // 5, 2 * NS // 5]
    assert delays == sorted(delays)
    assert delays[-1] == BACK_OFF_NS_MAX
    assert back_off.delay_ns(is_early=False) == 0
    assert back_off.delay_ns(is_early=True) == 0


def test_one_device_waits_while_the_other_does_not() -> None:
    table = SlotTable()
    table.want("cpu", 1, ())
    table.want(GPU, 1, ())
    table.due(0)
    table.exited("cpu-0", 0, is_early=True)
    table.due(0)
    delay_ns = table.exited("cpu-0", 10, is_early=True)
    table.exited("gpu-GPU-1234-0", 10, is_early=False)
    assert names(table, 10) == ["gpu-GPU-1234-0"]
    assert table.deadline_ns() == 10 + delay_ns
    assert names(table, 10 + delay_ns) == ["cpu-0"]


def test_after_a_clean_end_there_is_time_to_say_that_fewer_are_wanted() -> None:
    table = SlotTable()
    table.want("cpu", 2, ())
    table.due(0)
    assert table.exited("cpu-0", 10, is_early=False, is_clean=True) == WORD_WAIT_NS
    assert table.due(10) == []
    assert table.deadline_ns() == 10 + WORD_WAIT_NS
    table.want("cpu", 1, ())
    assert table.due(10 + WORD_WAIT_NS) == []
    table.want("cpu", 2, ())
    assert [start.slot for start in table.due(10 + WORD_WAIT_NS)] == ["cpu-0"]
