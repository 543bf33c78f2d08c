"""Batches of engines with shape tensors, whose first value is the batch: through the worker's own
code, over the fakes."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from naiad.config.model import ModelConfig
from naiad.protocol import messages as m
from naiad.protocol.errors import ModelError
from naiad.worker.backends.base import ModelRequest
from naiad.worker.backends.tensorrt.backend import TensorRTBackend
from naiad.worker.backends.tensorrt.engine import Binding, rows_max
from naiad.worker.backends.tensorrt.grouping import Grouping
from naiad.worker.backends.tensorrt.profiles import Profile, Range
from naiad.worker.execution import Execution
from support import engines, fake_cudart
from support.backend_requests import Array, PackedInput
from support.engines import load, on_gpu, put_plan, random
from support.onnx_models import Tensor, write_echo, write_model
from support.worker_parts import batch_of, execution_with, inline, request_of

PROFILE = [{"x": [[1, 1], [2, 1], [8, 1]]}]
VALUES = {"shape": [[1, 1], [2, 3], [8, 9]]}

BINDINGS = [
    Binding("shape", "INT64", (2,), True, True),
    Binding("x", "FP32", (-1, 1), True, False),
]


class Worker(NamedTuple):
    """y is x of [n, 1] repeated to the shape, and `told` the shape, which is the first input."""

    execution: Execution
    gpu: fake_cudart.Device

    def run(self, *requests: tuple[Array, list[int]]) -> list[Any]:
        """By request its outputs as arrays, or its error's text."""
        frames = [part for x, shape in requests for part in (_values(shape), x.tobytes())]
        batch = [
            request_of(
                inline("shape", "INT64", (len(shape),), 8 * len(shape), 0, 2 * index),
                inline("x", "FP32", x.shape, x.nbytes, 0, 2 * index + 1),
                ident=index,
            )
            for index, (x, shape) in enumerate(requests)
        ]
        done = self.execution.run(batch_of(batch, frames), set())
        return [
            result.error[1]
            if result.error
            else [_array(one, done.frames) for one in result.outputs]
            for result in done.results
        ]

    def check(self, *requests: tuple[Array, list[int]]) -> None:
        for (x, shape), found in zip(requests, self.run(*requests), strict=True):
            y, told = found
            np.testing.assert_array_equal(y, np.broadcast_to(x, shape))
            assert told.tolist() == shape

    @property
    def executions(self) -> int:
        backend: Any = self.execution.backend
        count: int = backend._paths[0].executor._context.executions
        return count


def _values(shape: list[int]) -> bytes:
    return np.array(shape, np.int64).tobytes()


def _array(tensor: m.Tensor, frames: Any) -> Array:
    content = frames[tensor.region][tensor.offset : tensor.offset + tensor.size]
    dtype = np.int64 if tensor.datatype == "INT64" else np.float32
    return np.frombuffer(content, dtype).reshape(tensor.shape)


def backend_of(
    tmp_path: Path, config: dict[str, Any], **header: Any
) -> tuple[TensorRTBackend, Any, Any]:
    directory = engines.write_spread(tmp_path / "spread")
    put_plan(directory, PROFILE, values=VALUES, host=["told"], **header)
    instance = on_gpu(directory, config)
    backend = TensorRTBackend(engines.importer)
    return backend, instance, backend.load(instance)


@pytest.fixture
def worker(tmp_path: Path, gpu: fake_cudart.Device) -> Worker:
    return Worker(execution_with(*backend_of(tmp_path, {"max_batch_size": 6})), gpu)


def test_the_config_counts_the_values_without_the_batch(worker: Worker) -> None:
    config = worker.execution.config
    assert [(one.name, one.dims, one.is_shape_tensor) for one in config.inputs] == [
        ("shape", (1,), True),
        ("x", (1,), False),
    ]
    assert [(one.name, one.dims) for one in config.outputs] == [("y", (-1,)), ("told", (1,))]
    assert config.sent_shape(config.inputs[0]) == (2,)


def test_requests_of_equal_values_are_joined_and_their_batches_summed(worker: Worker) -> None:
    before = worker.executions
    worker.check((random(2, 1), [2, 5]), (random(1, 1, seed=2), [1, 5]), (random(3, 1), [3, 5]))
    assert worker.executions == before + 1
    worker.check((random(1, 1), [1, 5]))


def test_requests_of_other_values_are_executed_apart(worker: Worker) -> None:
    before = worker.executions
    worker.check((random(2, 1), [2, 5]), (random(1, 1, seed=2), [1, 4]), (random(1, 1), [1, 5]))
    assert worker.executions == before + 2


def test_a_first_value_that_is_not_the_batch_fails_its_request_alone(worker: Worker) -> None:
    good, bad, other = worker.run(
        (random(2, 1), [2, 5]), (random(1, 1), [2, 5]), (random(1, 1), [1, 5])
    )
    assert bad == (
        "[request id: r1] input 'shape': expected the batch of 1 as the first value of a shape"
        " tensor, got [2, 5]"
    )
    assert [len(good), len(other)] == [2, 2]


def test_values_that_no_profile_admits_fail_their_request_alone(worker: Worker) -> None:
    good, bad = worker.run((random(2, 1), [2, 5]), (random(1, 1), [1, 10]))
    assert "value at position 1 to be between 1 and 9 but received 10" in bad
    assert len(good) == 2


def test_the_profile_of_joined_requests_is_chosen_by_their_batch() -> None:
    def profile(index: int, *rows: int) -> Profile:
        shapes = {"x": Range((1, 1), (4, 1), (8, 1)), "shape": Range((2,), (2,), (2,))}
        return Profile(index, shapes, {"shape": Range(*((count, 5) for count in rows))})

    config = ModelConfig.from_json({"name": "m", "max_batch_size": 8})
    paths: list[Any] = ["small", "large"]
    profiles = [profile(0, 1, 1, 8), profile(1, 2, 6, 8)]
    grouping = Grouping(config, BINDINGS, profiles, paths, "m_0")

    def chosen(*counts: int) -> object:
        inputs = [
            {
                "shape": PackedInput("shape", "INT64", (2,), memoryview(_values([count, 5]))),
                "x": PackedInput("x", "FP32", (count, 1), memoryview(bytes(4 * count))),
            }
            for count in counts
        ]
        (piece,) = grouping.pieces([ModelRequest("", one, ()) for one in inputs])  # type: ignore[arg-type]
        assert piece.shapes == {"shape": (2,), "x": (sum(counts), 1)}
        return piece.path

    assert (chosen(2), chosen(2, 2), chosen(3, 3)) == ("small", "large", "large")


def test_a_batch_is_as_large_as_shapes_and_values_of_a_profile_admit() -> None:
    def most(rows: int, value: int) -> int | None:
        shapes = {"x": Range((1, 1), (1, 1), (rows, 1)), "shape": Range((2,), (2,), (2,))}
        values = {"shape": Range((1, 1), (1, 1), (value, 9))}
        return rows_max(BINDINGS, [Profile(0, shapes, values)])

    assert (most(8, 6), most(4, 6)) == (6, 4)
    assert rows_max(BINDINGS[:1], []) is None


def test_dims_that_count_the_batch_are_corrected(tmp_path: Path, gpu: fake_cudart.Device) -> None:
    shape = {"name": "shape", "data_type": "TYPE_INT64", "dims": [2], "is_shape_tensor": True}
    x = {"name": "x", "data_type": "TYPE_FP32", "dims": [1]}
    with pytest.raises(ModelError, match=r"dims \[2\] is configured.*the model has \[2\]"):
        backend_of(tmp_path, {"max_batch_size": 2, "input": [shape, x]})


def test_no_graph_is_captured_and_one_warning_says_so(
    tmp_path: Path, gpu: fake_cudart.Device, caplog: pytest.LogCaptureFixture
) -> None:
    config = {"max_batch_size": 2, "optimization": {"cuda": {"graphs": True}}}
    Worker(execution_with(*backend_of(tmp_path, config)), gpu).check((random(2, 1), [2, 5]))
    (record,) = [one for one in caplog.records if one.levelname == "WARNING"]
    assert "no CUDA graphs: the values of shape tensors (shape, told) are in" in record.getMessage()


def test_shape_tensors_alone_do_not_tell_a_batch(tmp_path: Path, gpu: fake_cudart.Device) -> None:
    plan = put_plan(
        write_echo(tmp_path / "echo", "INT64", [2]),
        values={"INPUT0": 3 * [[1, 1]]},
        host=["OUTPUT0"],
    )
    with pytest.raises(ModelError, match="all inputs of the engine are shape tensors"):
        load(plan, {"max_batch_size": 1})


def test_a_shape_tensor_of_one_number_cannot_hold_a_batch(
    tmp_path: Path, gpu: fake_cudart.Device
) -> None:
    directory = write_model(
        tmp_path / "echo",
        [("Identity", ["count"], ["told"]), ("Identity", ["x"], ["y"])],
        [Tensor("count", "INT64", []), Tensor("x", "FP32", ["n", 4])],
        [Tensor("told", "INT64", []), Tensor("y", "FP32", ["n", 4])],
    )
    plan = put_plan(
        directory, [{"x": [[1, 4], [1, 4], [8, 4]]}], values={"count": 3 * [[1]]}, host=["told"]
    )
    with pytest.raises(ModelError, match="shape tensors count, told of the engine are no lists"):
        load(plan, {"max_batch_size": 1})
