"""The TensorRT backend's own code over the fakes: results equal those of ONNX Runtime."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from naiad.config.model import ModelConfig
from naiad.protocol.datatypes import NUMPY_NAME
from naiad.protocol.errors import ModelError, RequestError
from naiad.worker.backends.base import DeviceMemory, DeviceSpan
from naiad.worker.backends.tensorrt import memory
from naiad.worker.backends.tensorrt.backend import TensorRTBackend
from support import engines, fake_cudart, fake_trt
from support.backend_requests import Served, place
from support.engines import AFFINE, expected, load, put_plan, random
from support.onnx_models import write_echo

pytestmark = pytest.mark.usefixtures("gpu")

CLASSIFIER = [{name: [[1, 4], [4, 4], [8, 4]] for name in "ab"}]
SMALL = {"image": [[1, 3, 4, 4], [2, 3, 8, 8], [4, 3, 16, 16]]}
LARGE = {"image": [[1, 3, 8, 8], [1, 3, 32, 32], [8, 3, 64, 64]]}
TWO_PROFILES = {"instance_group": [{"name": "blur", "kind": "KIND_GPU", "profile": ["0", "1"]}]}


@pytest.fixture
def affine(tmp_path: Path) -> Served:
    return load(put_plan(engines.write_affine(tmp_path / "affine"), AFFINE))


def check_batch(served: Served, directory: Path, requests: list[dict[str, Any]]) -> None:
    """Every request of a batch has the answer that ONNX Runtime gives it alone."""
    answers = served.answers(*[served.request(inputs) for inputs in requests])
    for inputs, answer in zip(requests, answers, strict=True):
        want = expected(directory, inputs)
        assert answer.keys() == want.keys()
        for name, array in want.items():
            found = answer[name].reshape(array.shape)  # a scalar of each row is dims [1]
            np.testing.assert_allclose(found, array, rtol=1e-5, atol=1e-6)


def test_batches_have_the_results_of_onnx_runtime(tmp_path: Path) -> None:
    directory = put_plan(engines.write_affine(tmp_path / "affine"), AFFINE)
    served = load(directory, {"max_batch_size": 8})
    check_batch(served, directory, [{"x": random(n, 4, seed=n)} for n in (1, 3, 2)])
    check_batch(served, directory, [{"x": random(8, 4)}])


def test_several_inputs_and_outputs_of_several_types(tmp_path: Path) -> None:
    directory = put_plan(engines.write_classifier(tmp_path / "classes"), CLASSIFIER)
    served = load(directory, {"max_batch_size": 8})
    requests = [{"a": random(n, 4, seed=n), "b": random(n, 4, seed=n + 9)} for n in (2, 1, 4)]
    check_batch(served, directory, requests)


def test_each_batch_runs_in_the_profile_that_suits_it(tmp_path: Path) -> None:
    directory = put_plan(engines.write_blur(tmp_path / "blur"), [SMALL, LARGE])
    served = load(directory, {"max_batch_size": 8, **TWO_PROFILES})
    sizes = [(4, 4), (16, 16), (64, 64), (8, 8)]
    check_batch(served, directory, [{"image": random(1, 3, *size)} for size in sizes])
    check_batch(served, directory, [{"image": random(2, 3, 16, 16, seed=n)} for n in range(4)])
    paths = served.backend._paths  # type: ignore[attr-defined]
    assert [path.executor._context.active_optimization_profile for path in paths] == [0, 1]


def test_without_a_list_only_profile_0_is_used(tmp_path: Path) -> None:
    directory = put_plan(engines.write_blur(tmp_path / "blur"), [SMALL, LARGE])
    served = load(directory)
    assert served.config.max_batch_size == 4
    with pytest.raises(RequestError, match="dimension 2 to be between 4 and 16 but received 32"):
        served.answers(served.request({"image": random(1, 3, 32, 32)}))


@pytest.mark.parametrize(
    "datatype", ["FP32", "FP16", "BF16", "INT8", "INT32", "INT64", "UINT8", "BOOL"]
)
def test_every_type(tmp_path: Path, datatype: str) -> None:
    directory = write_echo(tmp_path / "echo", datatype, ["n", 3])
    served = load(put_plan(directory, [{"INPUT0": [[1, 3], [1, 3], [4, 3]]}]))
    array = np.arange(6).reshape(2, 3).astype(NUMPY_NAME.get(datatype, "uint16"))
    found = served.ask({"INPUT0": (datatype, array)})["OUTPUT0"]
    assert served.config.inputs[0].data_type == datatype
    np.testing.assert_array_equal(found, array)


def test_an_output_whose_size_depends_on_the_data(tmp_path: Path) -> None:
    directory = engines.write_nonzero(tmp_path / "nonzero")
    served = load(put_plan(directory, untold={"where": [1, "found"]}))
    assert served.config.outputs[0].dims == (1, -1)
    for values in ([0, 1, 0, 2, 0, 0, 0, 3], [0] * 8, [1] * 8):
        check_batch(served, directory, [{"x": np.array(values, np.float32)}])


def test_shape_tensors_lie_in_host_memory(tmp_path: Path) -> None:
    directory = engines.write_expand(tmp_path / "expand")
    values = {"shape": [[1, 3], [2, 3], [5, 3]]}
    served = load(put_plan(directory, values=values, host=["told"]))
    assert [tensor.is_shape_tensor for tensor in served.config.inputs] == [False, True]
    for rows in (1, 5, 2):
        inputs = {"x": random(1, 3), "shape": np.array([rows, 3], np.int64)}
        check_batch(served, directory, [inputs])
    with pytest.raises(RequestError, match="value at position 0 to be between 1 and 5 but rec"):
        served.answers(served.request({"x": random(1, 3), "shape": np.array([6, 3])}))


def test_values_in_host_memory_are_those_of_their_own_request(tmp_path: Path) -> None:
    """Requests of one batch that cannot be joined run one after the other, in the same memory."""
    directory = engines.write_expand(tmp_path / "expand")
    values = {"shape": [[1, 3], [2, 3], [5, 3]]}
    served = load(put_plan(directory, values=values, host=["told"]))
    shapes = [np.array([rows, 3], np.int64) for rows in (4, 1, 5)]
    check_batch(served, directory, [{"x": random(1, 3), "shape": shape} for shape in shapes])


def test_requests_are_joined_when_all_their_shapes_agree(tmp_path: Path) -> None:
    directory = engines.write_two(tmp_path / "two")
    profiles = [{name: [[1, 1], [1, 4], [8, 9]] for name in "ab"}]
    served = load(put_plan(directory, profiles), {"max_batch_size": 8})
    sizes = [(2, 3), (2, 4), (2, 3), (1, 3)]
    requests = [
        {"a": random(1, first, seed=n), "b": random(1, second, seed=n + 9)}
        for n, (first, second) in enumerate(sizes)
    ]
    check_batch(served, directory, requests)
    grouping = served.backend._grouping  # type: ignore[attr-defined]
    pieces = grouping.pieces([served.request(one) for one in requests])
    assert [piece.indexes for piece in pieces] == [[0, 2], [1], [3]]


def test_the_profile_is_chosen_by_values_too(tmp_path: Path) -> None:
    directory = engines.write_expand(tmp_path / "expand")
    group = {"name": "expand", "kind": "KIND_GPU", "profile": ["0", "1"]}
    # The fake has one range of values for all profiles, so here both admit and the first is taken.
    plan = put_plan(directory, [{}, {}], values={"shape": [[1, 3], [2, 3], [5, 3]]})
    served = load(plan, {"instance_group": [group]})
    check_batch(served, directory, [{"x": random(1, 3), "shape": np.array([4, 3], np.int64)}])


def test_a_scalar_is_configured_as_one_value(tmp_path: Path) -> None:
    served = load(put_plan(write_echo(tmp_path / "echo", "FP32", [])))
    assert served.config.inputs[0].dims == (1,)
    assert served.ask({"INPUT0": np.array([2.5], np.float32)})["OUTPUT0"].tolist() == [2.5]


def test_results_go_straight_to_the_place_of_their_client(affine: Served) -> None:
    places = [place(16 * rows) for rows in (1, 2)]
    requests = [
        affine.request({"x": random(rows, 4, seed=rows)}, places={"y": own})
        for rows, own in zip((1, 2), places, strict=True)
    ]
    responses = affine.backend.execute([*requests, affine.request({"x": random(1, 4)})])
    for rows, own, response in zip((1, 2), places, responses, strict=False):
        found: Any = response.outputs[0].buffer  # type: ignore[union-attr]
        assert np.frombuffer(found, np.uint8).ctypes.data == own.ctypes.data
        want = 2 * random(rows, 4, seed=rows) + 1
        np.testing.assert_array_equal(own.view(np.float32).reshape(rows, 4), want)


def test_a_place_that_is_too_small_is_left_alone(affine: Served) -> None:
    small = place(8)
    answer = affine.ask({"x": random(1, 4)}, places={"y": small})
    np.testing.assert_array_equal(answer["y"], 2 * random(1, 4) + 1)
    assert not small.any()


def test_tensors_without_elements_are_not_copied(tmp_path: Path, gpu: fake_cudart.Device) -> None:
    directory = write_echo(tmp_path / "echo", "FP32", ["n", "k"])
    plan = put_plan(directory, [{"INPUT0": [[1, 0], [1, 4], [8, 8]]}])
    served = load(plan, {"max_batch_size": 8})
    before = gpu.calls["cudaMemcpyAsync"]
    requests = [served.request({"INPUT0": random(rows, 0)}) for rows in (2, 1, 1)]
    requests[1].device = DeviceMemory({"INPUT0": DeviceSpan(0, 0)}, {})
    requests[2].device = DeviceMemory({}, {"OUTPUT0": DeviceSpan(min(gpu.memory), 64)})
    responses = served.backend.execute(requests)
    shapes = [response.outputs[0].shape for response in responses]  # type: ignore[union-attr]
    assert shapes == [(2, 0), (1, 0), (1, 0)]
    assert gpu.calls["cudaMemcpyAsync"] == before


def test_each_request_gets_the_outputs_it_asked_for(tmp_path: Path) -> None:
    served = load(put_plan(engines.write_classifier(tmp_path / "classes"), CLASSIFIER))
    inputs = {"a": random(1, 4), "b": random(1, 4)}
    first, second = served.answers(
        served.request(inputs, outputs=["best"]), served.request(inputs, outputs=["scores"])
    )
    assert (set(first), set(second)) == ({"best"}, {"scores"})


def test_results_outlive_the_next_batch(affine: Served) -> None:
    first = affine.backend.execute([affine.request({"x": random(2, 4)})])
    affine.ask({"x": random(2, 4, seed=1)})
    content: Any = first[0].outputs[0].buffer  # type: ignore[union-attr]
    want = 2 * random(2, 4) + 1
    np.testing.assert_array_equal(np.frombuffer(content, np.float32).reshape(2, 4), want)


def test_results_beyond_the_pinned_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "PINNED_BYTES_MAX", 64)
    directory = put_plan(engines.write_classifier(tmp_path / "classes"), CLASSIFIER)
    requests = [{"a": random(n, 4, seed=n), "b": random(n, 4)} for n in (1, 2)]
    check_batch(load(directory), directory, requests)


def test_batches_allocate_nothing_on_the_device(affine: Served, gpu: fake_cudart.Device) -> None:
    affine.ask({"x": random(1, 4)})
    before = gpu.calls.copy()
    for rows in (1, 4, 2):
        affine.ask({"x": random(rows, 4)})
    used = gpu.calls - before
    assert set(used) == {
        "cudaMemcpyAsync",
        "cudaEventRecord",
        "cudaEventQuery",
        "cudaStreamWaitEvent",
        "cudaEventElapsedTime",
    }
    assert used["cudaMemcpyAsync"] == 6
    assert gpu.used == 4 * memory.BUFFER_BYTES_MIN


def rest(tmp_path: Path, sizes: list[int], *, is_host: bool) -> Served:
    directory = engines.write_rest(tmp_path / "rest")
    put_plan(directory, [{"x": [[size] for size in sizes]}], host=["y"] if is_host else [])
    (output,) = engines.REST_CONFIG["output"]
    output = {**output, "is_shape_tensor": is_host}
    return load(directory, {**engines.REST_CONFIG, "output": [output]})


@pytest.mark.parametrize("sizes", [[4, 100, 200], [4, 200, 200]])
@pytest.mark.parametrize("is_host", [False, True])
def test_outputs_that_shrink_as_inputs_grow_have_room_from_the_start(
    tmp_path: Path, gpu: fake_cudart.Device, sizes: list[int], is_host: bool
) -> None:
    served = rest(tmp_path, sizes, is_host=is_host)
    before = gpu.calls["cudaMalloc"]
    for size in (200, 4, 50, 200):
        array = random(size)
        np.testing.assert_array_equal(served.ask({"x": array})["y"], engines.rest(array))
    assert gpu.calls["cudaMalloc"] == before


@pytest.mark.parametrize("is_host", [False, True])
def test_outputs_beyond_what_the_engine_told_get_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_host: bool
) -> None:
    monkeypatch.setattr(fake_trt.IExecutionContext, "get_max_output_size", lambda *_: -1)
    served = rest(tmp_path, [4, 200, 200], is_host=is_host)
    for size in (200, 4, 50, 200):
        array = random(size)
        np.testing.assert_array_equal(served.ask({"x": array})["y"], engines.rest(array))


def test_unload_gives_everything_back(affine: Served, gpu: fake_cudart.Device) -> None:
    assert gpu.memory
    assert gpu.pinned
    assert gpu.streams
    affine.backend.unload()
    assert not gpu.memory
    assert not gpu.pinned
    assert not gpu.streams


# --- The config --------------------------------------------------------------------------------


def test_the_engine_completes_the_config(affine: Served) -> None:
    config = affine.config
    assert config.max_batch_size == 4
    assert config.dynamic_batching is not None
    assert [(t.name, t.data_type, t.dims) for t in config.inputs] == [("x", "FP32", (4,))]
    assert [(t.name, t.data_type, t.dims) for t in config.outputs] == [("y", "FP32", (4,))]


@pytest.mark.parametrize(("most", "size", "batches"), [(1, 1, False), (2, 2, True), (9, 4, True)])
def test_auto_completed_batches_fit_the_profile(
    tmp_path: Path, most: int, size: int, batches: bool
) -> None:
    profiles = [{"x": [[1, 4], [1, 4], [most, 4]]}]
    config = load(put_plan(engines.write_affine(tmp_path / "affine"), profiles)).config
    assert config.max_batch_size == size
    assert config.batches is batches


def test_a_batch_is_as_large_as_all_inputs_admit(tmp_path: Path) -> None:
    profiles = [
        {"a": [[1, 4], [1, 4], [8, 4]], "b": [[1, 4], [1, 4], [3, 4]]},
        {"a": [[1, 4], [1, 4], [2, 4]], "b": [[1, 4], [1, 4], [9, 4]]},
    ]
    directory = put_plan(engines.write_two(tmp_path / "two"), profiles)
    group = {"name": "two", "kind": "KIND_GPU", "profile": ["0", "1"]}
    assert load(directory, {"instance_group": [group]}).config.max_batch_size == 3
    with pytest.raises(ModelError, match="profiles 0, 1 admit batches of 3 at most"):
        load(directory, {"instance_group": [group], "max_batch_size": 4})


FAULTS: dict[str, tuple[dict[str, Any], str]] = {
    "batch": (
        {"max_batch_size": 9},
        "profiles 0 admit batches of 8 at most; set max_batch_size: 8",
    ),
    "name": ({"input": [{"name": "z"}]}, 'the model has no input "z"'),
    "type": (
        {"output": [{"name": "y", "data_type": "TYPE_FP16"}]},
        "data_type TYPE_FP16 is configured, the model has TYPE_FP32",
    ),
    "dims": ({"max_batch_size": 8, "input": [{"name": "x", "dims": [5]}]}, "the model has [-1, 4]"),
    "rows": ({"input": [{"name": "x", "dims": [9, 4]}]}, "fixes dimension 0 at 9, the engine's"),
    "shape tensor": (
        {"input": [{"name": "x", "is_shape_tensor": True}]},
        "is_shape_tensor is true, in the model it is none",
    ),
    "profile": (
        {"instance_group": [{"name": "affine", "kind": "KIND_GPU", "profile": ["1"]}]},
        "the engine has no optimization profile 1; it has 1, counted from 0",
    ),
    "strategy": (
        {"parameters": {"execution_context_allocation_strategy": {"string_value": "LAZY"}}},
        'expected STATIC, ON_PROFILE_CHANGE, got "LAZY"',
    ),
    "module": (
        {"parameters": {"tensorrt_module": {"string_value": "trt"}}},
        'expected tensorrt, tensorrt_lean, tensorrt_rtx, got "trt"',
    ),
    "other module": (
        {"parameters": {"tensorrt_module": {"string_value": "tensorrt_rtx"}}},
        "the file is no plan of TensorRT-RTX",
    ),
    "absent module": (
        {"parameters": {"tensorrt_module": {"string_value": "tensorrt_lean"}}},
        "pip install tensorrt-lean",
    ),
    "file": ({"default_model_filename": "a.plan"}, "no engine file "),
    "path": ({"default_model_filename": "../a.plan"}, 'contains ".."'),
}


@pytest.mark.parametrize(("config", "text"), FAULTS.values(), ids=FAULTS)
def test_contradictions_are_told(tmp_path: Path, config: dict[str, Any], text: str) -> None:
    directory = put_plan(engines.write_affine(tmp_path / "affine"), AFFINE)
    with pytest.raises(ModelError) as caught:
        load(directory, config)
    assert text in caught.value.message


def test_the_file_is_chosen_by_compute_capability(tmp_path: Path) -> None:
    directory = engines.write_affine(tmp_path / "affine")
    put_plan(directory, AFFINE, filename="hopper.plan")
    config = {"cc_model_filenames": {"8.0": "ampere.plan", "9.0": "hopper.plan"}}
    served = load(directory, config)
    np.testing.assert_array_equal(served.ask({"x": random(1, 4)})["y"], 2 * random(1, 4) + 1)


def test_rtx_plans_are_run_by_the_rtx_module(tmp_path: Path) -> None:
    imported = []

    def importer(name: str) -> Any:
        imported.append(name)
        return engines.importer(name)

    directory = put_plan(
        engines.write_affine(tmp_path / "affine"), AFFINE, magic=fake_trt.RTX_MAGIC
    )
    Served(TensorRTBackend(importer), engines.on_gpu(directory))
    assert imported == ["cuda.bindings.runtime", "tensorrt_rtx", "nvtx"]


def test_the_bindings_of_the_lean_runtime_stand_in_for_the_full_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(fake_trt, "TensorFormat")
    monkeypatch.delattr(fake_trt, "init_libnvinfer_plugins")
    modules = {"cuda.bindings.runtime": fake_cudart, "tensorrt_lean_bindings": fake_trt}

    def importer(name: str) -> Any:
        if name == "tensorrt":
            raise ImportError(f"{name} needs libnvonnxparser.so.11")
        if name not in modules:
            raise ModuleNotFoundError(name)
        return modules[name]

    directory = put_plan(engines.write_affine(tmp_path / "affine"), AFFINE)
    served = Served(TensorRTBackend(importer), engines.on_gpu(directory))
    np.testing.assert_array_equal(served.ask({"x": random(1, 4)})["y"], 2 * random(1, 4) + 1)


@pytest.mark.parametrize(
    ("instance", "profile"),
    [("a_0_gpu0", ("0",)), ("a_1_0_gpu0", ("1",)), ("a_1_gpu3_v2", ("0",)), ("b_0", ())],
)
def test_an_instance_knows_its_group(
    tmp_path: Path, instance: str, profile: tuple[str, ...]
) -> None:
    from dataclasses import replace

    from naiad.worker.backends.tensorrt.backend import group_of

    groups = [{"name": "a", "profile": ["0"]}, {"name": "a_1", "profile": ["1"]}]
    config = ModelConfig.from_json({"name": "m", "instance_group": groups})
    found = replace(engines.on_gpu(tmp_path), instance_name=instance, config=config)
    assert group_of(found).profile == profile
