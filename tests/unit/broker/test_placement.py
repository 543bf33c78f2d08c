"""Instances on GPUs: which device each wants, and which slots are asked for."""

from __future__ import annotations

from typing import Any

import pytest

from naiad.broker.core import events as e
from naiad.broker.core.world import Limits
from naiad.protocol import messages as m
from naiad.shm.cuda.key import cuda_region
from support.simulated_bench import CLIENT, Bench, Json, config

A, B = "gpu:GPU-a", "gpu:GPU-b"


def bench(**limits: Any) -> Bench:
    return Bench(gpus=(A, B), limits=Limits(**limits))


def groups(*found: Json, name: str = "m") -> Json:
    """A config as the repository helper leaves it: kinds and GPUs are decided."""
    return config(name, instance_group=[{"name": f"{name}_{i}", **g} for i, g in enumerate(found)])


def on(*gpus: int, count: int = 1) -> Json:
    return {"kind": "KIND_GPU", "gpus": list(gpus), "count": count}


def placed(at: Bench, name: str = "m") -> list[tuple[str, str, int]]:
    return [(one.name, one.device, one.device_id) for one in at.model(name).instances]


def reason(at: Bench) -> str:
    (row,) = at.control("status")["models"]
    return str(row["reason"])


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        ([on(0)], [("m_0_0_gpu0", A, 0)]),
        ([on(1, count=2)], [("m_0_0_gpu1", B, 1), ("m_0_1_gpu1", B, 1)]),
        ([on(0, 1)], [("m_0_0_gpu0", A, 0), ("m_0_0_gpu1", B, 1)]),
        ([on(1, 1)], [("m_0_0_gpu1", B, 1)]),
        ([on(1), {"kind": "KIND_CPU"}], [("m_0_0_gpu1", B, 1), ("m_1_0", "cpu", 0)]),
        ([{"kind": "KIND_MODEL"}], [("m_0_0", "cpu", 0)]),
    ],
)
def test_each_instance_wants_one_device(
    found: list[Json], expected: list[tuple[str, str, int]]
) -> None:
    at = bench()
    at.load(groups(*found))
    assert placed(at) == expected


def test_slots_are_asked_for_by_gpu_with_a_spare_each() -> None:
    at = bench(spares=1)
    at.load(groups(on(0, 1, count=2), {"kind": "KIND_CPU", "count": 1}))
    wanted = {want.device: want.slots for want in at.wanted}
    assert wanted == {"cpu": 2, A: 3, B: 3}


def test_nobody_asks_for_slots_on_a_gpu_that_no_model_wants() -> None:
    at = bench()
    at.load(config())
    assert {want.device: want.slots for want in at.wanted} == {"cpu": 2, A: 0, B: 0}


def test_an_instance_goes_to_a_slot_of_its_own_gpu() -> None:
    at = bench()
    at.load(groups(on(1)))
    at.worker()
    at.worker(A)
    assert [one.slot for one in at.model().instances] == [None]
    slot = at.worker(B)
    (load,) = [one for one in at.told[slot] if type(one) is m.Load]
    assert (load.instance_name, load.kind, load.device_id) == ("m_0_0_gpu1", "KIND_GPU", 1)


def test_the_status_names_the_gpu_that_is_waited_for() -> None:
    at = bench()
    at.load(groups(on(0, 1)))
    at.worker(A)
    assert reason(at) == f"waiting for 1 slots on {B}"


def test_threads_are_shared_by_the_instances_of_all_gpus() -> None:
    at = bench(cores=16)
    at.load(groups(on(0, 1, count=2)))
    assert at.model().threads == 4


# --- memory of a GPU -------------------------------------------------------------------------

NO_ROOM = ("unavailable", "it needs 400 bytes, 200 are free", True)
FAILED = ("load_failed", "initialize raised", False)


def loading(at: Bench) -> list[str]:
    return [one.name for one in at.world.instances.values() if one.state == "LOADING"]


def loads(at: Bench, slot: int) -> list[m.Load]:
    return [one for one in at.told[slot] if type(one) is m.Load]


def test_new_instances_are_loaded_one_by_one_on_each_gpu() -> None:
    at = bench()
    at.load(groups(on(0, 1, count=2)))
    at.load(groups(on(0), name="n"))
    slots = [at.worker(device) for device in (A, A, A, B, B)]
    assert loading(at) == ["m_0_0_gpu0", "m_0_0_gpu1"]
    at.loaded(slots[0])
    assert loading(at) == ["m_0_1_gpu0", "m_0_0_gpu1"]
    at.loaded(slots[1], error=FAILED)
    assert "n_0_0_gpu0" in loading(at)


def test_a_load_that_hangs_keeps_others_off_its_gpu_for_a_minute() -> None:
    at = bench()
    at.load(groups(on(0)))
    at.load(groups(on(0), name="n"))
    at.worker(A)
    at.worker(A)
    at.wait(59 * 10**9)
    assert loading(at) == ["m_0_0_gpu0"]
    at.wait(10**9)
    assert loading(at) == ["m_0_0_gpu0", "n_0_0_gpu0"]


def test_the_status_says_who_waits_for_whom() -> None:
    at = bench()
    at.load(groups(on(0, count=2)))
    first = at.worker(A)
    assert reason(at) == f"waiting for 1 slots on {A}"
    at.worker(A)
    assert reason(at) == f"waiting while another instance is loaded on {A}"
    at.loaded(first)
    assert reason(at) == ""


def test_on_the_cpu_all_load_at_once() -> None:
    at = bench()
    at.load(groups({"kind": "KIND_CPU", "count": 3}))
    for _ in range(3):
        at.worker()
    assert len(loading(at)) == 3


def test_what_the_first_instance_took_is_told_to_the_next() -> None:
    at = bench()
    at.load(groups(on(0, count=2)))
    first, second = at.worker(A), at.worker(A)
    assert loads(at, first)[0].gpu_bytes == 0
    at.loaded(first, gpu_bytes=400)
    assert loads(at, second)[0].gpu_bytes == 400


def test_the_next_is_told_the_most_that_any_instance_took() -> None:
    """What is free is measured while others take and free memory: one may seem to take nothing."""
    at = bench()
    at.load(groups(on(0, count=4)))
    slots = [at.worker(A) for _ in range(4)]
    told = []
    for slot, took in zip(slots, (400, 0, 500, 300), strict=True):
        told.append(loads(at, slot)[0].gpu_bytes)
        at.loaded(slot, gpu_bytes=took)
    assert told == [0, 400, 400, 500]


def test_new_instances_do_not_wait_for_one_that_comes_back() -> None:
    """What it takes is known."""
    at = bench()
    (slot,) = served_on_a(at, "m")
    at.dies(slot)
    at.worker(A)
    assert loading(at) == ["m_0_0_gpu0"]
    at.load(groups(on(0), name="n"))
    at.worker(A)
    assert sorted(loading(at)) == ["m_0_0_gpu0", "n_0_0_gpu0"]


def test_a_worker_that_died_is_replaced_while_another_model_loads() -> None:
    at = bench()
    (slot,) = served_on_a(at, "m")
    at.load(groups(on(0), name="n"))
    at.worker(A)
    assert loading(at) == ["n_0_0_gpu0"]
    at.dies(slot)
    at.worker(A)
    assert sorted(loading(at)) == ["m_0_0_gpu0", "n_0_0_gpu0"]


def served_on_a(at: Bench, name: str, count: int = 1) -> list[int]:
    at.load(groups(on(0, count=count), name=name))
    slots = [at.worker(A) for _ in range(count)]
    for slot in slots:
        at.loaded(slot)
    return slots


def test_an_instance_without_room_leaves_the_others_serving_and_is_tried_again() -> None:
    at = bench()
    call = at.load(groups(on(0, count=2)))
    first, second = at.worker(A), at.worker(A)
    at.loaded(first)
    at.loaded(second, error=NO_ROOM)
    late = at.model().instances[1]
    at.dies(second)
    assert (at.model().state, late.state) == ("READY", "BACKOFF")
    assert any("m_0_1_gpu0 does not serve: it needs 400 bytes" in line for line in at.logs)
    assert reason(at) == f"1 instances do not fit, such as m_0_1_gpu0: {NO_ROOM[1]}"
    at.ask(1)
    at.finish(first)
    assert at.is_answered(1)
    at.wait(Limits().slot_wait_ns)
    assert at.replies[501, call] == (None, {})
    slot = at.worker(A)
    assert loads(at, slot), "after a second there may be room"
    at.loaded(slot)
    assert late.serves
    assert reason(at) == ""


def without_room(at: Bench, slot: int) -> tuple[int, int]:
    """The instance that is loaded there finds no room; the slot where it is tried again, and after
    how many seconds."""
    at.loaded(slot, error=NO_ROOM)
    return come_back(at, slot)


def come_back(at: Bench, slot: int) -> tuple[int, int]:
    """The worker dies; the slot where its instance is loaded again, and after how many seconds."""
    at.dies(slot)
    slot = at.worker(A)
    begun_ns = at.now_ns
    while not loads(at, slot):
        at.wait(10**9)
    return slot, (at.now_ns - begun_ns) // 10**9


def test_tries_for_room_become_rare() -> None:
    at = bench()
    at.load(groups(on(0, count=2)))
    first, slot = at.worker(A), at.worker(A)
    at.loaded(first)
    pauses = []
    for _ in range(9):
        slot, pause = without_room(at, slot)
        pauses.append(pause)
    assert pauses == [1, 2, 4, 8, 16, 32, 60, 60, 60]
    assert at.model().state == "READY"


def test_after_one_that_found_room_tries_are_frequent_again() -> None:
    at = bench()
    (slot,) = served_on_a(at, "m")
    for _ in range(2):
        slot, _pause = come_back(at, slot)
        pauses = []
        for _ in range(3):
            slot, pause = without_room(at, slot)
            pauses.append(pause)
        assert pauses == [1, 2, 4]
        at.loaded(slot)


def test_a_model_without_any_room_says_so_and_is_tried_again() -> None:
    at = bench()
    at.load(groups(on(0)))
    slot = at.worker(A)
    at.loaded(slot, error=NO_ROOM)
    at.dies(slot)
    model = at.model()
    assert (model.state, model.reason) == ("UNAVAILABLE", NO_ROOM[1])
    at.wait(3 * 10**9)
    at.loaded(at.worker(A))
    assert model.state == "READY"


def test_one_that_served_comes_back_when_there_is_room_again() -> None:
    at = bench()
    (slot,) = served_on_a(at, "m")
    at.dies(slot)
    for _ in range(8):  # more than its crash budget
        slot = at.worker(A)
        while not loads(at, slot):
            at.wait(10**9)
        at.loaded(slot, error=NO_ROOM)
        at.dies(slot)
    assert at.model().state == "READY"
    assert at.model().instances[0].state == "BACKOFF"


def test_a_gpu_that_no_model_wants_any_more_gets_no_new_slots() -> None:
    at = bench(spares=1)
    (slot,) = served_on_a(at, "m")
    at.control("unload", model="m")
    at.dies(slot, ordered=True)
    wanted = {want.device: want.slots for want in at.wanted}
    assert wanted == {"cpu": 1, A: 0, B: 0}


# --- memory of clients on a GPU ----------------------------------------------------------------


def asked_with(at: Bench, device: int) -> tuple[str, str] | None:
    """The error of a request whose input lies on this GPU, if it has one."""
    at.client()
    number = at.world.number()
    region = cuda_region(bytes(64), 4096, device, "frames", region_id=number)
    at.do(e.RegionOffered(CLIENT, number, region, None))
    source = m.Tensor("X", "UINT8", (4,), int(m.Place.REGION), number, 0, 4)
    at.do(e.RequestsArrived(CLIENT, (at.request(number, inputs=(source,)),), []))
    answers = at.answers[CLIENT, number]
    return answers[0].error[:2] if answers and answers[0].error else None


@pytest.mark.parametrize(
    ("found", "device", "beyond"),
    [
        ([on(1)], 1, ""),
        ([on(1)], 0, "GPU 1"),
        ([on(0, 1)], 1, ""),
        ([on(0), {"kind": "KIND_CPU"}], 1, ""),
        ([{"kind": "KIND_CPU"}], 1, ""),
        ([on(0), {"kind": "KIND_CPU"}], 0, ""),
    ],
)
def test_memory_of_a_gpu_is_for_instances_that_see_it(
    found: list[Json], device: int, beyond: str
) -> None:
    at = bench()
    at.load(groups(*found))
    for instance in at.model().instances:
        at.loaded(at.worker(instance.device))
    error = asked_with(at, device)
    if not beyond:
        assert error is None
        return
    assert error is not None
    assert f"region 'frames' is on GPU {device}, and 'm' has instances on {beyond}," in error[1]
