"""The steps of gpu_check in this process, over the fake GPU."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest

from support import fake_cuda_ipc, fake_gpu
from support.fake_cudart import Device
from support.fake_streams import Threads


@pytest.fixture
def device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Device]:
    """The fake GPU; processes that a step starts have their own, and share memory with it."""
    for name, value in fake_gpu.plant(tmp_path / "planted").items():
        monkeypatch.setenv(name, value)
    for name, fake in fake_gpu.MODULES.items():
        module = import_module(f"support.{fake}")
        monkeypatch.setitem(sys.modules, f"cuda.bindings.{name}", module)
    device = fake_cuda_ipc.reset(Threads())
    yield device
    device.close()
