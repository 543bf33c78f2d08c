"""Instances on GPUs: which device each wants, and which slots are asked for."""

from __future__ import annotations

from typing import Any

import pytest

from naiad.broker.core.world import Limits
from naiad.protocol import messages as m
from support.simulated_bench import Bench, Json, config

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
    assert {want.device for want in at.wanted} == {"cpu"}


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
    (row,) = at.control("status")["models"]
    assert row["reason"] == f"waiting for 1 slots on {B}"


def test_threads_are_shared_by_the_instances_of_all_gpus() -> None:
    at = bench(cores=16)
    at.load(groups(on(0, 1, count=2)))
    assert at.model().threads == 4
