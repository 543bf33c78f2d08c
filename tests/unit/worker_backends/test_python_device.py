"""Clients' GPU memory and model.py, over the fake CUDA and through the worker's own code."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from naiad.protocol import messages as m
from naiad.shm.cuda import dlpack
from naiad.shm.cuda.key import cuda_region
from naiad.worker import device_regions
from naiad.worker.backends.python import PythonBackend
from naiad.worker.device_regions import DeviceRegions
from naiad.worker.regions import RegionTable
from support import fake_cuda_ipc
from support.backend_requests import instance
from support.models_python import ECHO, python_model
from support.worker_parts import batch_of, execution_with, request_of, tensor_json

SIZE = 1024
PLACE = m.Place.REGION
VALUES = np.arange(16, dtype=np.float32)

DOUBLE = python_model(
    """
    responses = []
    for request in requests:
        tensor = pb_utils.get_input_tensor_by_name(request, "INPUT0")
        assert not tensor.is_cpu()
        assert tensor.shape() == [16] and tensor.triton_dtype() == 11
        assert tensor.__dlpack_device__() == (2, 0)
        try:
            tensor.as_numpy()
        except pb_utils.TritonModelException as refused:
            assert "is stored in GPU" in str(refused)
        else:
            raise AssertionError("it was given as an array")
        doubled = Packed(2 * values(tensor), "FP32")
        out = pb_utils.Tensor.from_dlpack("OUTPUT0", doubled)
        assert out.__cuda_array_interface__["data"][0] == doubled.address
        responses.append(pb_utils.InferenceResponse([out]))
    return responses
    """,
    head="from support.fake_cupy import Packed, values",
)
"""Reads and makes arrays on the GPU, as with CuPy or PyTorch."""

PASSED_ON = python_model(
    """
    return [
        pb_utils.InferenceResponse([pb_utils.Tensor.from_dlpack(
            "OUTPUT0", pb_utils.get_input_tensor_by_name(request, "INPUT0").to_dlpack()
        )]) for request in requests
    ]
    """
)
STRIDED = python_model(
    """
    class Strided(Packed):
        def __dlpack__(self, **_):
            capsule = super().__dlpack__()
            tensor = dlpack._Managed.from_address(dlpack._pointer(capsule, b"dltensor")).tensor
            self.strides = (ctypes.c_int64 * 1)(2)
            tensor.strides = self.strides
            return capsule

    return [
        pb_utils.InferenceResponse(
            [pb_utils.Tensor.from_dlpack("OUTPUT0", Strided(np.zeros(16, np.float32), "FP32"))]
        ) for _ in requests
    ]
    """,
    head="import ctypes\nfrom naiad.shm.cuda import dlpack\nfrom support.fake_cupy import Packed",
)


class Bench:
    """A worker with a model.py, and a client's region 1 on its GPU, VALUES at its beginning."""

    def __init__(self, folder: Path, model: str, *, stays: bool) -> None:
        (folder / "1").mkdir(parents=True)
        (folder / "1" / "model.py").write_text(model)
        parameter = {"FORCE_CPU_ONLY_INPUT_TENSORS": {"string_value": "no" if stays else "yes"}}
        asked = instance(
            folder,
            {
                "backend": "python",
                "input": [tensor_json("INPUT0")],
                "output": [tensor_json("OUTPUT0")],
                "parameters": parameter,
            },
        )
        backend = PythonBackend()
        config = backend.load(asked)
        self.execution = execution_with(backend, asked, config)
        self.gpu = fake_cuda_ipc.reset()
        self.handle = fake_cuda_ipc.device_of_another(VALUES.tobytes().ljust(SIZE, b"\xee"))
        self.table = RegionTable(DeviceRegions(fake_cuda_ipc.loaded))
        self.table.define([cuda_region(self.handle, SIZE, 0, "theirs", region_id=1)])

    def run(self, *outputs: m.OutputRequest) -> Any:
        """The output's values, wherever they are; or the error."""
        tensor = m.Tensor("INPUT0", "FP32", (16,), PLACE, 1, 0, 64)
        request = request_of(tensor, outputs=outputs)
        done = self.execution.run(batch_of([request], [], self.table), set())
        (result,) = done.results
        if result.error is not None:
            return result.error
        content = done.frames[0] if done.frames else fake_cuda_ipc.content_of_another(self.handle)
        (output,) = result.outputs
        return np.frombuffer(content, np.float32, 16, output.offset)


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path / "model"
    fake_cuda_ipc.reset().close()


PLACES = [(), (m.OutputRequest("OUTPUT0", PLACE, 1, 512, 64),)]


@pytest.mark.parametrize("places", PLACES)
@pytest.mark.parametrize(("model", "factor"), [(DOUBLE, 2), (PASSED_ON, 1)])
def test_inputs_stay_on_the_gpu_for_models_that_want_it(
    folder: Path, model: str, factor: int, places: tuple[m.OutputRequest, ...]
) -> None:
    bench = Bench(folder, model, stays=True)
    np.testing.assert_array_equal(bench.run(*places), factor * VALUES)
    assert not dlpack._lent
    bench.table.forget([1])
    assert fake_cuda_ipc.open_count(bench.handle) == 0


@pytest.mark.parametrize("places", PLACES)
def test_other_models_get_arrays(folder: Path, places: tuple[m.OutputRequest, ...]) -> None:
    bench = Bench(folder, ECHO, stays=False)
    np.testing.assert_array_equal(bench.run(*places), VALUES)


def test_the_clients_event_is_waited_for_before_the_model_runs(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Bench(folder, PASSED_ON, stays=True)
    bench.run()
    bench.table.device._opened[1].event = fake_cuda_ipc.loaded().new_event(0)
    event = bench.table.device._opened[1].event
    event.set_counts(1, 0)
    monkeypatch.setattr(device_regions, "sleep", lambda _: event.set_counts(1, 1))
    np.testing.assert_array_equal(bench.run(), VALUES)
    assert event.counts == (1, 1)


def test_an_output_that_is_not_packed_is_refused(folder: Path) -> None:
    code, text, _ = Bench(folder, STRIDED, stays=True).run()
    assert code == "model_error"
    assert "contiguous in C order" in text
