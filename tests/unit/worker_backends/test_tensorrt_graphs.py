"""CUDA graphs: which are captured, which batches they serve, and what happens without them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from naiad.config.model import ModelConfig
from naiad.protocol.errors import ModelError
from naiad.worker.backends.tensorrt.engine import Binding
from naiad.worker.backends.tensorrt.graph_specs import graph_specs
from support import engines, fake_cudart, fake_trt
from support.backend_requests import Served
from support.engines import AFFINE, load, put_plan, random
from support.fake_streams import EARLY, LATE, Order

pytestmark = pytest.mark.usefixtures("gpu")

X = {"name": "x", "data_type": "TYPE_FP32", "dims": [4]}
SETS = 2


def graphs(*specs: dict[str, Any], **more: Any) -> dict[str, Any]:
    cuda: dict[str, Any] = {"graphs": True}
    if specs:
        cuda["graph_spec"] = list(specs)
    return {"optimization": {"cuda": cuda}, **more}


def spec(rows: int, least: int | None = None, **dims: list[int]) -> dict[str, Any]:
    told = {name: {"dim": [str(size) for size in own]} for name, own in dims.items()}
    found: dict[str, Any] = {"batch_size": rows, "input": told}
    if least is not None:
        found["graph_lower_bound"] = {"batch_size": least, "input": told}
    return found


def affine(tmp_path: Path, config: dict[str, Any], **header: Any) -> Served:
    directory = put_plan(engines.write_affine(tmp_path / "affine"), AFFINE, **header)
    return load(directory, {"max_batch_size": 8, **config})


def launches(gpu: fake_cudart.Device, served: Served, *rows: int) -> tuple[int, int]:
    """(graphs launched, executions without one) for a batch of requests of these rows."""
    context = served.backend._paths[0].executor._context  # type: ignore[attr-defined]
    before = gpu.calls["cudaGraphLaunch"], context.executions
    arrays = [random(count, 4, seed=count) for count in rows]
    answers = served.answers(*[served.request({"x": array}) for array in arrays])
    for array, answer in zip(arrays, answers, strict=True):
        np.testing.assert_array_equal(answer["y"], 2 * array + 1)
    return gpu.calls["cudaGraphLaunch"] - before[0], context.executions - before[1]


# --- What is captured --------------------------------------------------------------------------

BINDINGS = (Binding("x", "FP32", (-1, 4), True, False),)


def rows_of(**fields: Any) -> list[tuple[int, int]]:
    config = ModelConfig.from_json({"name": "m", "input": [X], **graphs(), **fields})
    return [(one.rows, one.rows_least) for one in graph_specs(config, BINDINGS)[0]]


@pytest.mark.parametrize(
    ("config", "rows"),
    [
        ({"max_batch_size": 20}, [1, 2, 3, 4, 6, 8, 12, 16, 20]),
        ({"max_batch_size": 5}, [1, 2, 3, 4, 5]),
        ({"max_batch_size": 9, "dynamic_batching": {}}, [1, 9]),
        ({"max_batch_size": 9, "dynamic_batching": {"preferred_batch_size": [4, 9]}}, [1, 4, 9]),
        ({"max_batch_size": 0}, [0]),
    ],
)
def test_what_is_captured_by_itself(config: dict[str, Any], rows: list[int]) -> None:
    assert rows_of(**config) == [(count, count) for count in rows]


def test_nothing_is_captured_unasked(tmp_path: Path, gpu: fake_cudart.Device) -> None:
    served = affine(tmp_path, {})
    assert launches(gpu, served, 1) == (0, 1)
    assert gpu.calls["cudaStreamBeginCapture"] == 0


def test_graphs_serve_the_shapes_they_were_captured_for(
    tmp_path: Path, gpu: fake_cudart.Device
) -> None:
    served = affine(tmp_path, graphs(spec(1), spec(3, x=[4])))
    assert gpu.calls["cudaGraphInstantiate"] == 2 * SETS
    assert launches(gpu, served, 1) == (1, 0)
    assert launches(gpu, served, 1, 2) == (1, 0)
    assert launches(gpu, served, 2) == (0, 1)
    assert launches(gpu, served, 1) == (1, 0)


def test_smaller_batches_are_padded_down_to_the_lower_bound(
    tmp_path: Path, gpu: fake_cudart.Device
) -> None:
    served = affine(tmp_path, graphs(spec(8, 4), spec(6, 5)))
    assert [launches(gpu, served, *rows) for rows in ([5], [2, 2], [1, 3, 3], [8])] == [(1, 0)] * 4
    assert launches(gpu, served, 3) == (0, 1)


def test_of_several_graphs_the_smallest_that_admits_a_batch_is_launched(
    tmp_path: Path, gpu: fake_cudart.Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    served = affine(tmp_path, graphs(spec(8, 1), spec(4, 1), spec(6, 2)))
    ran: list[int] = []
    real = fake_trt.IExecutionContext._kernel

    def kernel(context: fake_trt.IExecutionContext, addresses: Any, shapes: Any) -> None:
        ran.append(shapes["x"][0])
        real(context, addresses, shapes)

    monkeypatch.setattr(fake_trt.IExecutionContext, "_kernel", kernel)
    for rows in (1, 3, 4, 5, 7):
        assert launches(gpu, served, rows) == (1, 0)
    assert ran == [4, 4, 4, 6, 8]


def test_graphs_do_not_reach_other_shapes(tmp_path: Path, gpu: fake_cudart.Device) -> None:
    profiles = [{"image": [[1, 3, 4, 4], [2, 3, 8, 8], [4, 3, 16, 16]]}]
    directory = put_plan(engines.write_blur(tmp_path / "blur"), profiles)
    served = load(directory, {"max_batch_size": 4, **graphs(spec(4, 1, image=[3, 8, 8]))})
    for rows, size, expected in (
        (2, 8, 1),
        (4, 8, 1),
        (2, 4, 0),
        (4, 4, 0),
        (2, 16, 0),
        (4, 16, 0),
    ):
        before = gpu.calls["cudaGraphLaunch"]
        image = random(rows, 3, size, size)
        found = served.ask({"image": image})["out"]
        assert gpu.calls["cudaGraphLaunch"] - before == expected
        want = engines.expected(directory, {"image": image})["out"]
        np.testing.assert_allclose(found, want, rtol=1e-5, atol=1e-6)


def test_a_model_without_batches_has_one_graph(tmp_path: Path, gpu: fake_cudart.Device) -> None:
    dims = {"input": [{**X, "dims": [2, 4]}], "output": [{**X, "name": "y", "dims": [2, 4]}]}
    served = affine(tmp_path, {**graphs(), "max_batch_size": 0, **dims})
    assert launches(gpu, served, 2) == (1, 0)


def test_unload_destroys_graphs(tmp_path: Path, gpu: fake_cudart.Device) -> None:
    served = affine(tmp_path, graphs(spec(1), spec(1), spec(3)))
    assert len(gpu.graphs) == 2 * SETS
    served.backend.unload()
    assert not gpu.graphs
    assert not gpu.events


# --- What cannot be captured -------------------------------------------------------------------


def only_warning(caplog: pytest.LogCaptureFixture) -> str:
    (record,) = [one for one in caplog.records if one.levelname == "WARNING"]
    return record.getMessage()


@pytest.mark.parametrize(
    "function",
    ["cudaStreamBeginCapture", "cudaStreamEndCapture", "cudaGraphInstantiate", "cudaGraphUpload"],
)
def test_a_failed_capture_is_one_warning_and_batches_run_without(
    tmp_path: Path, gpu: fake_cudart.Device, caplog: pytest.LogCaptureFixture, function: str
) -> None:
    gpu.fail(function, 801, after=SETS)
    served = affine(tmp_path, graphs(spec(1), spec(2), spec(3)))
    text = only_warning(caplog)
    assert "affine_0: no CUDA graph for x [2, 4], and none of those after it" in text
    assert "CUDA error 801" in text
    assert launches(gpu, served, 1) == (1, 0)
    assert launches(gpu, served, 2) == (0, 1)
    assert launches(gpu, served, 3) == (0, 1)
    served.backend.unload()
    assert not gpu.graphs


def in_captures(
    gpu: fake_cudart.Device,
    monkeypatch: pytest.MonkeyPatch,
    does: Callable[[fake_trt.IExecutionContext], bool | None],
) -> None:
    """What executing does while its stream is captured; with None it goes on as always."""
    real = fake_trt.IExecutionContext.execute_async_v3

    def execute(context: fake_trt.IExecutionContext, stream_handle: int) -> bool:
        is_captured = gpu.streams[stream_handle].captured is not None
        done = does(context) if is_captured else None
        return real(context, stream_handle) if done is None else done

    monkeypatch.setattr(fake_trt.IExecutionContext, "execute_async_v3", execute)


def test_an_engine_that_allocates_while_it_is_captured(
    tmp_path: Path,
    gpu: fake_cudart.Device,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """CUDA breaks such a capture, and says so where it ends."""

    def allocates(_: fake_trt.IExecutionContext) -> None:
        fake_cudart.cudaMalloc(16)

    in_captures(gpu, monkeypatch, allocates)
    served = affine(tmp_path, graphs(spec(1)))
    assert "no CUDA graph for x [1, 4]" in only_warning(caplog)
    assert launches(gpu, served, 1) == (0, 1)


def test_an_execution_that_is_refused_while_it_is_captured(
    tmp_path: Path,
    gpu: fake_cudart.Device,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    in_captures(gpu, monkeypatch, lambda context: context._error("enqueueV3: not in a capture"))
    served = affine(tmp_path, graphs(spec(1)))
    assert "enqueueV3: not in a capture" in only_warning(caplog)
    assert launches(gpu, served, 1) == (0, 1)
    assert not gpu.graphs


def test_trials_are_made_with_zeros(
    tmp_path: Path, gpu: fake_cudart.Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which the rows of later paddings are, until somebody's are there."""
    gpu.timing = Order((EARLY, LATE, LATE))  # executions, and copies in and out
    seen: list[Any] = []
    real = fake_trt.IExecutionContext._computed

    def computed(context: fake_trt.IExecutionContext, addresses: Any, shapes: Any) -> Any:
        seen.append(context._read("x", addresses["x"], shapes["x"]))
        return real(context, addresses, shapes)

    monkeypatch.setattr(fake_trt.IExecutionContext, "_computed", computed)
    affine(tmp_path, graphs(spec(3), spec(8)))
    assert [one.shape for one in seen] == [(2, 4), (3, 4), (3, 4), (8, 4), (8, 4)]
    assert not any(one.any() for one in seen)


def test_after_a_trial_that_fails_nothing_is_under_way(
    tmp_path: Path,
    gpu: fake_cudart.Device,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    real = fake_trt.IExecutionContext.execute_async_v3

    def execute(context: fake_trt.IExecutionContext, stream_handle: int) -> bool:
        if context._shapes["x"] == (3, 4):
            return context._error("enqueueV3: not these")
        return real(context, stream_handle)

    monkeypatch.setattr(fake_trt.IExecutionContext, "execute_async_v3", execute)
    served = affine(tmp_path, graphs(spec(1), spec(3)))
    assert "no CUDA graph for x [3, 4]" in only_warning(caplog)
    assert not any(stream.pending for stream in gpu.streams.values())
    assert launches(gpu, served, 1) == (1, 0)


def test_outputs_of_unknown_size_cannot_be_captured(
    tmp_path: Path, gpu: fake_cudart.Device, caplog: pytest.LogCaptureFixture
) -> None:
    directory = engines.write_nonzero(tmp_path / "nonzero")
    served = load(put_plan(directory, untold={"where": [1, "found"]}), graphs())
    assert "known only after the execution" in only_warning(caplog)
    served.ask({"x": random(8)})
    assert gpu.calls["cudaStreamBeginCapture"] == 0


def test_free_sizes_need_a_spec(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    profiles = [{"image": [[1, 3, 4, 4], [2, 3, 8, 8], [4, 3, 16, 16]]}]
    load(put_plan(engines.write_blur(tmp_path / "blur"), profiles), graphs())
    assert "blur_0: no CUDA graphs: the sizes of input image are free" in only_warning(caplog)


FAULTS = {
    "rows": (spec(9), "graph_spec[0].batch_size: expected 1 to 8, got 9"),
    "no rows": (spec(0), "graph_spec[0].batch_size: expected 1 to 8, got 0"),
    "name": (spec(1, X=[4]), 'the model has no input "X"; did you mean "x"?'),
    "rank": (spec(1, x=[4, 4]), 'input "x": expected one size for each of [4], got [4, 4]'),
    "size": (spec(1, x=[5]), 'input "x": expected one size for each of [4], got [5]'),
    "bound": (
        spec(4, 5),
        "lower_bound.batch_size: expected at most the 4 of the spec, got 5",
    ),
    "no bound": (spec(4, 0), "graph_lower_bound.batch_size: expected 1 to 8, got 0"),
}


@pytest.mark.parametrize(("given", "text"), FAULTS.values(), ids=FAULTS)
def test_specs_that_fit_no_batch(tmp_path: Path, given: dict[str, Any], text: str) -> None:
    with pytest.raises(ModelError) as caught:
        affine(tmp_path, graphs(given))
    assert text in caught.value.message


def test_a_graph_that_is_not_launched_fails_its_batch(
    tmp_path: Path, gpu: fake_cudart.Device
) -> None:
    served = affine(tmp_path, graphs(spec(1)))
    gpu.fail("cudaGraphLaunch", 801)
    with pytest.raises(ModelError, match=r"launching a graph: CUDA error 801"):
        served.answers(served.request({"x": random(1, 4)}))
    assert launches(gpu, served, 1) == (1, 0)


def test_a_kernel_that_traps_in_a_graph_ends_the_worker(tmp_path: Path) -> None:
    from naiad.worker.backends.base import InstanceLost

    trip = tmp_path / "trip"
    served = affine(tmp_path, graphs(spec(1)), trip=str(trip))
    trip.touch()
    with pytest.raises(InstanceLost, match="CUDA error 719"):
        served.answers(served.request({"x": random(1, 4)}))


# --- Priority ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("priority", "number"),
    [
        ("PRIORITY_DEFAULT", 0),
        ("PRIORITY_MAX", fake_cudart.PRIORITY_GREATEST),
        ("PRIORITY_MIN", fake_cudart.PRIORITY_LEAST),
    ],
)
def test_streams_have_the_priority_of_the_config(
    tmp_path: Path, gpu: fake_cudart.Device, priority: str, number: int
) -> None:
    affine(tmp_path, {"optimization": {"priority": priority}})
    assert [stream.priority for stream in gpu.streams.values()] == [number] * 3


def test_what_others_do_on_the_default_stream_does_not_wait_for_batches(
    tmp_path: Path, gpu: fake_cudart.Device
) -> None:
    affine(tmp_path, {})
    flags = {stream.flags for stream in gpu.streams.values()}
    assert flags == {fake_cudart.cudaStreamNonBlocking}


@pytest.mark.parametrize("is_spinning", [True, False])
def test_only_who_is_told_to_spin_does_not_sleep(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_spinning: bool
) -> None:
    from naiad.worker.backends.tensorrt import streams

    pauses: list[float] = []
    monkeypatch.setattr(streams, "sleep", pauses.append)
    cuda = {"busy_wait_events": True} if is_spinning else {}
    served = affine(tmp_path, {"optimization": {"cuda": cuda}})
    served.ask({"x": random(2, 4)})
    assert bool(pauses) is not is_spinning
    assert all(streams.POLL_SECONDS_MIN <= one <= streams.POLL_SECONDS_MAX for one in pauses)


# --- Buffers that move -------------------------------------------------------------------------


def rest(tmp_path: Path, *sizes: int) -> Served:
    directory = put_plan(engines.write_rest(tmp_path / "rest"), [{"x": [[4], [200], [300]]}])
    asked = graphs(*[spec(0, x=[size]) for size in sizes])
    return load(directory, {**engines.REST_CONFIG, **asked})


def ask_rest(served: Served, size: int) -> None:
    array = random(size)
    np.testing.assert_array_equal(served.ask({"x": array})["y"], engines.rest(array))


def test_graphs_whose_outputs_shrink_as_inputs_grow_serve_on(
    tmp_path: Path, gpu: fake_cudart.Device
) -> None:
    served = rest(tmp_path, 200, 50)
    for launched, size in enumerate((200, 50, 200, 50), 1):
        ask_rest(served, size)
        ask_rest(served, 4)
        assert gpu.calls["cudaGraphLaunch"] == launched


def test_a_graph_ends_with_the_buffer_that_it_was_captured_over(
    tmp_path: Path,
    gpu: fake_cudart.Device,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The engine tells no bound, so that a greater output moves its buffer."""
    monkeypatch.setattr(fake_trt.IExecutionContext, "get_max_output_size", lambda *_: -1)
    served = rest(tmp_path, 200)
    ask_rest(served, 200)
    assert gpu.calls["cudaGraphLaunch"] == 1
    ask_rest(served, 4)
    before = gpu.calls["cudaGraphExecDestroy"]
    ask_rest(served, 200)
    assert gpu.calls["cudaGraphLaunch"] == 1
    assert gpu.calls["cudaGraphExecDestroy"] == before + 1
    ask_rest(served, 200)
    assert caplog.text.count("CUDA graphs are dropped") == 1


def test_a_graph_whose_capture_moves_a_buffer_ends_those_before(
    tmp_path: Path, gpu: fake_cudart.Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fake_trt.IExecutionContext, "get_max_output_size", lambda *_: -1)
    served = rest(tmp_path, 200, 50)
    for size in (50, 200, 50, 200):
        ask_rest(served, size)
    assert gpu.calls["cudaGraphLaunch"] == 2


def test_a_graph_for_smaller_batches_ends_with_its_buffer_too(
    tmp_path: Path, gpu: fake_cudart.Device
) -> None:
    served = affine(tmp_path, graphs(spec(8, 4)))
    assert launches(gpu, served, 5) == (1, 0)
    for one in served.backend._sets:  # type: ignore[attr-defined]
        one.device.room("y", 1 << 20)
    assert launches(gpu, served, 5) == (0, 1)
    assert launches(gpu, served, 8) == (0, 1)
