"""Whether an instance fits on its GPU, and what it took."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest

from naiad.config.model import ModelConfig
from naiad.config.nvml import Memory
from naiad.protocol.errors import Code, ModelError, Unavailable
from naiad.worker import gpu_memory
from naiad.worker.backends.base import ModelInstance
from naiad.worker.gpu_memory import GpuMemory, Seen, look
from support import fake_nvml
from support.fake_nvml import MIB, gpu, tell

UUID = "GPU-a"


def memory(
    *seen: Seen | None, need: int = 0, backend: str = "tensorrt", limit_mb: int = 0
) -> GpuMemory:
    parameters = {"naiad.gpu_memory_limit_mb": {"string_value": str(limit_mb)}}
    config = ModelConfig.from_json({"name": "m", "backend": backend, "parameters": parameters})
    instance = ModelInstance("m", 1, "m_0", "/m", "KIND_GPU", 0, 1, config, gpu_uuid=UUID)
    answers = iter(seen)
    return GpuMemory(instance, need, lambda _: next(answers))


def free(size: int, own: int | None = None) -> Seen:
    return Seen(Memory(1000 * MIB, size, 1000 * MIB - size), own)


def test_what_does_not_fit_is_refused_with_both_numbers() -> None:
    with pytest.raises(Unavailable) as caught:
        memory(free(300), need=301).prepare()
    assert caught.value.retryable
    text = caught.value.message
    assert "needs 301 bytes of GPU memory, as its first instance took" in text
    assert f"300 of {1000 * MIB} bytes are free" in text
    assert UUID in text


@pytest.mark.parametrize("seen", [free(300), None])
def test_what_fits_or_cannot_be_known_is_tried(seen: Seen | None) -> None:
    memory(seen, need=300).prepare()


@pytest.mark.parametrize(
    ("before", "after", "taken"),
    [
        (free(900), free(500), 400),
        (free(900), free(500, own=350), 350),
        (free(500), free(900), 0),
        (None, free(900), 0),
        (free(900), None, 0),
    ],
)
def test_what_a_load_took(before: Seen | None, after: Seen | None, taken: int) -> None:
    measured = memory(before, after)
    measured.prepare()
    assert measured.taken() == taken


def test_more_than_the_limit_is_refused_with_both_numbers() -> None:
    for took, is_refused in ((64 * MIB, False), (64 * MIB + 1, True)):
        limited = memory(free(200 * MIB), free(200 * MIB - took), limit_mb=64)
        limited.prepare()
        if not is_refused:
            assert limited.taken() == took
            continue
        with pytest.raises(ModelError, match=f"loading took {took} bytes") as caught:
            limited.taken()
        assert caught.value.code == Code.LOAD_FAILED
        assert f"at most {64 * MIB} (64 MiB)" in caught.value.message


@pytest.mark.parametrize(("limit_mb", "left"), [(64, [60 * MIB]), (0, [])])
def test_a_backend_is_told_what_the_limit_leaves(limit_mb: int, left: list[int]) -> None:
    limited = memory(free(200 * MIB), free(196 * MIB), limit_mb=limit_mb)
    limited.prepare()
    told: list[int] = []
    limited.taken(told.append)
    assert told == left


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """MPS is there when this folder holds `control`."""
    monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", str(tmp_path))
    monkeypatch.setenv("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", "")
    return tmp_path


def test_only_mps_can_hold_a_python_model_to_a_limit(environment: Path) -> None:
    with pytest.raises(ModelError, match=r'"python" cannot be held .* without MPS'):
        memory(None, backend="python", limit_mb=64).prepare()
    memory(None, backend="python").prepare()
    (environment / "control").touch()
    memory(None, backend="python", limit_mb=64).prepare()
    assert os.environ["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] == "0=64M"


@pytest.mark.parametrize("backend", ["onnxruntime", "tensorrt"])
def test_others_keep_to_it_themselves(environment: Path, backend: str) -> None:
    memory(None, backend=backend, limit_mb=64).prepare()
    assert os.environ["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] == ""


@pytest.fixture
def nvml(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    told = tmp_path / "nvml.json"
    monkeypatch.setitem(sys.modules, "pynvml", fake_nvml)
    monkeypatch.setenv(fake_nvml.VARIABLE, str(told))
    return told


@pytest.mark.parametrize(("knows_pids", "own"), [(True, 7), (False, None)])
def test_nvml_tells_of_memory_and_of_this_process(
    nvml: Path, monkeypatch: pytest.MonkeyPatch, knows_pids: bool, own: int | None
) -> None:
    """In a container the number of this process may be another's outside."""
    monkeypatch.setattr(gpu_memory, "knows_pids", lambda: knows_pids)
    tell(nvml, gpu(UUID, total=100, used=40, processes={str(os.getpid()): 7, "1": 33}))
    assert look(UUID) == Seen(Memory(100, 60, 40), own)


@pytest.mark.parametrize(
    "trouble", [{"fails": {"nvmlInit": 9}}, {"hangs": ["nvmlDeviceGetMemoryInfo"]}, {}]
)
def test_what_nvml_does_not_tell_is_not_known(
    nvml: Path, monkeypatch: pytest.MonkeyPatch, trouble: dict[str, Any]
) -> None:
    monkeypatch.setattr(gpu_memory, "NVML_SECONDS_MAX", 0.2)
    tell(nvml, gpu(UUID), **trouble)
    assert look(UUID) is None
