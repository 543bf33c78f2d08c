"""Figures of GPUs on the page: the real thread over a fake NVML, told by a file."""

from __future__ import annotations

import os
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from naiad.metrics import gpus
from naiad.metrics.gpus import Gpus
from naiad.metrics.scrape import Scraper
from support import fake_nvml
from support.exposition import Series, parsed, total
from support.fake_nvml import gpu, tell
from support.simulated_bench import Bench, config
from support.waiting import wait_until

A, B = "GPU-a", "GPU-b"
FIGURES: dict[str, Any] = {
    "total": 1000, "used": 400, "utilization": 37, "power": 61_500, "power_limit": 300_000,
    "energy": 12_345,
}  # fmt: skip


@pytest.fixture
def nvml(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    told = tmp_path / "nvml.json"
    monkeypatch.setitem(sys.modules, "pynvml", fake_nvml)
    monkeypatch.setenv(fake_nvml.VARIABLE, str(told))
    monkeypatch.setattr(gpus, "knows_pids", lambda: True)
    return told


class Page:
    """Scrapes of a server with two GPUs and one instance on the first."""

    def __init__(self, told: Gpus | None) -> None:
        self.bench = Bench(gpus=(f"gpu:{A}", f"gpu:{B}"))
        self.bench.world.about = {"pid": os.getpid(), "started": 1}
        group = {"name": "g", "kind": "KIND_GPU", "gpus": [0], "count": 1}
        self.bench.load(config(instance_group=[group]))
        self.slot = self.bench.worker(f"gpu:{A}")
        self.bench.loaded(self.slot, gpu_bytes=77)
        self._scraper = Scraper(self._ask, told)

    def _ask(self, after: str | None, _: float) -> Any:
        return self.bench.control("counters", **({} if after is None else {"after": after}))

    def read(self) -> Series:
        return parsed(self._scraper.page())


def test_figures_have_tritons_names_and_units(nvml: Path) -> None:
    page = Page(Gpus())
    pid = str(page.bench.world.slots[page.slot].pid)
    tell(nvml, gpu(A, **FIGURES, processes={pid: 55, "999999": 345}), gpu(B, total=9, used=0))
    found = page.read()
    for name, value in (
        ("nv_gpu_utilization", 0.37),
        ("nv_gpu_memory_total_bytes", 1000),
        ("nv_gpu_memory_used_bytes", 400),
        ("nv_gpu_power_usage", 61.5),
        ("nv_gpu_power_limit", 300),
        ("nv_energy_consumption", 12.345),
    ):
        assert total(found, name, gpu_uuid=A) == value
    assert total(found, "nv_gpu_memory_total_bytes", gpu_uuid=B) == 9
    assert [one for one in found if one[0] == "nv_gpu_utilization"] == [
        ("nv_gpu_utilization", (("gpu_uuid", A),))
    ]
    assert total(found, "naiad_worker_gpu_memory_bytes", gpu_uuid=A, instance="g_0_gpu0") == 55
    assert total(found, "naiad_instance_gpu_need_bytes", model="m") == 77


def test_each_scrape_asks_anew(nvml: Path) -> None:
    page = Page(Gpus())
    for used in (1, 2):
        tell(nvml, gpu(A, total=10, used=used), gpu(B))
        assert total(page.read(), "nv_gpu_memory_used_bytes") == used


def test_pids_of_another_world_say_nothing(nvml: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpus, "knows_pids", lambda: False)
    page = Page(Gpus())
    pid = str(page.bench.world.slots[page.slot].pid)
    tell(nvml, gpu(A, processes={pid: 55}), gpu(B))
    assert not [name for name, _ in page.read() if name == "naiad_worker_gpu_memory_bytes"]


def test_a_driver_that_hangs_costs_its_figures_and_one_pause(nvml: Path) -> None:
    page = Page(Gpus(seconds_max=0.3))
    tell(nvml, gpu(A, total=10, used=1), gpu(B), hangs=["nvmlDeviceGetMemoryInfo"])
    started = time.monotonic()
    for _ in range(5):
        found = page.read()
        assert not [name for name, _ in found if name.startswith("nv_gpu")]
        assert total(found, "naiad_model_ready") == 1
    assert time.monotonic() - started < 1.4


def test_a_driver_that_answers_late_is_asked_again(nvml: Path) -> None:
    go_on = threading.Event()
    told = Gpus(seconds_max=0.1)
    original = fake_nvml.nvmlDeviceGetMemoryInfo
    page = Page(told)
    tell(nvml, gpu(A, total=10, used=1), gpu(B))
    with pytest.MonkeyPatch.context() as slow:
        slow.setattr(
            fake_nvml, "nvmlDeviceGetMemoryInfo", lambda *given: go_on.wait(20) and original(*given)
        )
        assert not [name for name, _ in page.read() if name.startswith("nv_gpu")]
    tell(nvml, gpu(A, total=10, used=2), gpu(B))
    go_on.set()
    wait_until(
        lambda: (
            [v for (name, _), v in page.read().items() if name == "nv_gpu_memory_used_bytes"] == [2]
        ),
        "figures of now",
    )


def test_a_driver_that_refuses_is_asked_at_the_next_scrape(nvml: Path) -> None:
    page = Page(Gpus())
    tell(nvml, gpu(A, total=10, used=1), gpu(B), fails={"nvmlInit": 9})
    assert not [name for name, _ in page.read() if name.startswith("nv_gpu")]
    tell(nvml, gpu(A, total=10, used=1), gpu(B))
    assert total(page.read(), "nv_gpu_memory_used_bytes") == 1


def test_nobody_is_asked_when_it_is_off_or_there_are_no_gpus(
    nvml: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tell(nvml, gpu(A, total=10, used=1), gpu(B))
    assert not [name for name, _ in Page(None).read() if name.startswith("nv_gpu")]
    monkeypatch.setattr(gpus, "Nvml", None)
    assert Gpus().samples([]) == []
