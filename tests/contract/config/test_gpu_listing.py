"""What a server learns of its GPUs: the real listing process over a fake NVML."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import pytest

from naiad.config import gpu_listing
from naiad.config.engines import ONNXRUNTIME_CUDA, cpu_backends
from naiad.config.gpu_listing import FoundGpus, asked_gpus, found_gpus
from naiad.config.gpus import Gpu, GpuFault
from naiad.config.nvml import NvmlFault
from support.fake_nvml import gpu, tell
from support.planted import plant_nvml

A, B = "GPU-0a", "GPU-0b"


@pytest.fixture
def nvml(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file that tells what there is; processes that start now have it."""
    path = tmp_path / "nvml.json"
    for variable, value in plant_nvml(tmp_path / "planted", path).items():
        monkeypatch.setenv(variable, value)
    tell(path, gpu(A, "Fake A"), gpu(B, "Fake B"))
    return path


def test_gpus_are_listed_with_their_names(nvml: Path) -> None:
    assert asked_gpus() == [Gpu(A, "Fake A", 0), Gpu(B, "Fake B", 1)]


def test_a_divided_gpu_is_listed_by_its_parts(nvml: Path) -> None:
    tell(nvml, gpu(A, mig=["MIG-1", None, "MIG-3"]), gpu(B, mig=[]))
    assert [(one.uuid, one.number) for one in asked_gpus()] == [("MIG-1", 0), ("MIG-3", 0), (B, 1)]


def test_the_environment_hides_some(nvml: Path) -> None:
    found = found_gpus("all", {"CUDA_VISIBLE_DEVICES": f"{B},0"})
    assert found.uuids == (B, A)
    assert found.devices == ("cpu", f"gpu:{B}", f"gpu:{A}")
    assert found.note == f"GPUs: 0 {B} (Fake B), 1 {A} (Fake A)"
    assert found_gpus(found.choice, {}).uuids == (B, A)


def test_a_driver_that_hangs_is_left_alone(nvml: Path) -> None:
    tell(nvml, gpu(A), hangs=["nvmlDeviceGetCount"])
    started = time.monotonic()
    with pytest.raises(NvmlFault, match=r"did not answer within 0\.5 s"):
        asked_gpus(0.5)
    assert time.monotonic() - started < 5


def test_a_fault_of_nvml_is_its_own_words(nvml: Path) -> None:
    tell(nvml, gpu(A), fails={"nvmlInit": 9})
    with pytest.raises(GpuFault, match=r"cannot be listed \(nvmlInit: Driver Not Loaded\)"):
        found_gpus("all", {})


@pytest.mark.parametrize("uuid", ["GPU 7", "", 5])
def test_what_is_no_listing_is_a_fault(nvml: Path, uuid: Any) -> None:
    tell(nvml, gpu(uuid))
    with pytest.raises(NvmlFault, match="the listing is none"):
        asked_gpus()


def test_auto_is_content_without(nvml: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_listing, "DRIVER_FILES", ("/dev/null",))
    assert found_gpus("auto", {}).uuids == (A, B)
    tell(nvml, gpu(A), fails={"nvmlInit": 9})
    found = found_gpus("auto", {})
    assert found.uuids == ()
    assert "Driver Not Loaded) and are not used; name them with --gpus=UUID" in found.note


def test_without_a_driver_nobody_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_listing, "DRIVER_FILES", ("/dev/no-such-file",))
    monkeypatch.setattr(gpu_listing, "asked_gpus", None)
    assert found_gpus("auto", {}) == FoundGpus((), "")
    monkeypatch.setattr(gpu_listing, "DRIVER_FILES", ("/dev/null",))
    assert found_gpus("auto", {"CUDA_VISIBLE_DEVICES": ""}) == FoundGpus((), "")
    assert found_gpus("none", {}) == FoundGpus((), "")
    assert found_gpus(f"{A},{B}", {"CUDA_VISIBLE_DEVICES": ""}).uuids == (A, B)


def test_all_wants_one(nvml: Path) -> None:
    with pytest.raises(GpuFault, match="the driver shows no GPU of CUDA_VISIBLE_DEVICES='7'"):
        found_gpus("all", {"CUDA_VISIBLE_DEVICES": "7"})


def test_onnxruntime_without_cuda_runs_on_the_cpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = tmp_path / "onnxruntime" / ONNXRUNTIME_CUDA
    library.parent.mkdir(parents=True)
    (tmp_path / "onnxruntime" / "__init__.py").touch()
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "onnxruntime", raising=False)
    assert cpu_backends() == ("identity", "onnxruntime")
    library.touch()
    assert cpu_backends() == ("identity",)
