"""Two batches, the second brought to the device and begun while the first is executed: what is
wrong with the second is told of the second, whatever it is."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support import fake_trt
from support.gpu_worker import STORIES, GpuWorker


def loaded(folder: Path, name: str) -> GpuWorker:
    story = STORIES[name]
    worker = GpuWorker(story.put(folder), story.config)
    worker.load()
    return worker


@pytest.fixture
def affine(tmp_path: Path) -> Iterator[GpuWorker]:
    worker = loaded(tmp_path, "affine")
    yield worker
    worker.close()


@pytest.fixture
def expand(tmp_path: Path) -> Iterator[GpuWorker]:
    worker = loaded(tmp_path, "expand")
    yield worker
    worker.close()


def test_what_tensorrt_raises_for_the_second(
    affine: GpuWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = fake_trt.IExecutionContext.set_input_shape

    def refuse_three(context: Any, name: str, shape: tuple[int, ...]) -> bool:
        if shape[0] == 3:
            raise TypeError("no three")
        return own(context, name, shape)

    monkeypatch.setattr(fake_trt.IExecutionContext, "set_input_shape", refuse_three)
    affine.run_behind([affine.affine(2)], [affine.affine(3)])
    assert (affine.failed, affine.errors) == ([2], ["TypeError: no three"])


def test_a_shape_in_gpu_memory_that_cannot_be_copied(expand: GpuWorker) -> None:
    expand.gpu.fail("cudaMemcpy", 801)
    expand.run_behind([expand.expand(2)], [expand.expand(3, at=128)])
    assert expand.failed == [2]
    assert "copying a tensor from or to GPU memory: CUDA error 801" in expand.errors[0]


def test_a_shape_that_cannot_be_copied_fails_its_request_alone(expand: GpuWorker) -> None:
    expand.gpu.fail("cudaMemcpy", 801)
    expand.run(expand.expand(2), expand.expand(3, at=128), expand.expand(4))
    assert len(expand.errors) == 1
