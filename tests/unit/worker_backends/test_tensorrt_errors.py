"""What goes wrong with engines and GPUs: each fault over the fakes, and what people are told."""

import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from naiad.protocol.errors import Code, ModelError, RequestError
from naiad.shm.cuda.errors import STICKY_ERRORS
from naiad.worker.backends.base import InstanceLost
from naiad.worker.backends.registry import BackendSource, missing
from naiad.worker.backends.tensorrt.backend import TensorRTBackend
from support import engines, fake_cudart, fake_trt
from support.backend_requests import Served, place
from support.engines import AFFINE, load, put_plan, random
from support.onnx_models import write_echo

pytestmark = pytest.mark.usefixtures("gpu")


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return put_plan(engines.write_affine(tmp_path / "affine"), AFFINE)


def load_fault(directory: Path, **fields: Any) -> str:
    with pytest.raises(ModelError) as caught:
        load(directory, **fields)
    return caught.value.message


def plan_fault(tmp_path: Path, **header: Any) -> str:
    return load_fault(put_plan(engines.write_affine(tmp_path / "affine"), AFFINE, **header))


# --- No GPU ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("count", "driver_error", "text"),
    [
        (0, 35, "no NVIDIA driver that this CUDA runtime can use (cudaErrorInsufficientDriver)"),
        (0, 0, "CUDA sees no GPU (cudaErrorNoDevice)"),
    ],
)
def test_without_a_gpu_no_runtime_is_made(
    directory: Path, gpu: fake_cudart.Device, count: int, driver_error: int, text: str
) -> None:
    gpu.count, gpu.driver_error = count, driver_error
    asked: list[str] = []

    def importer(name: str) -> Any:
        asked.append(name)
        return engines.importer(name)

    with pytest.raises(ModelError) as caught:
        TensorRTBackend(importer).load(engines.on_gpu(directory))
    assert caught.value.code is Code.LOAD_FAILED
    assert text in caught.value.message
    assert "nvidia-smi" in caught.value.message
    assert 'backend: "onnxruntime"' in caught.value.message
    assert asked == ["cuda.bindings.runtime"]


def test_a_gpu_that_is_not_there(directory: Path) -> None:
    from dataclasses import replace

    with pytest.raises(ModelError, match="there is no GPU 3: CUDA sees 1, counted from 0"):
        TensorRTBackend(engines.importer).load(replace(engines.on_gpu(directory), device_id=3))


@pytest.mark.parametrize("kind", ["KIND_CPU", "KIND_MODEL"])
def test_instances_without_a_gpu_of_their_own_are_refused(directory: Path, kind: str) -> None:
    assert f"runs on GPUs only, got {kind}" in load_fault(directory, kind=kind)


def test_one_of_the_modules_is_enough() -> None:
    some = BackendSource("json:loads", ("json",), "", one_of=("absent_1", "csv"))
    assert missing(some) == []
    none = BackendSource("json:loads", ("json",), "", one_of=("absent_1", "absent_2"))
    assert missing(none) == ["one of absent_1, absent_2"]


def test_a_module_that_cannot_be_imported(directory: Path) -> None:
    def importer(name: str) -> Any:
        if name.startswith("tensorrt"):
            raise ImportError("libnvonnxparser.so.11: cannot open shared object file")
        return engines.importer(name)

    with pytest.raises(ModelError) as caught:
        TensorRTBackend(importer).load(engines.on_gpu(directory))
    assert "(tensorrt: libnvonnxparser.so.11" in caught.value.message
    assert "pip install 'naiad[tensorrt]'" in caught.value.message


# --- The wrong plan ------------------------------------------------------------------------------


def test_another_version_is_told_in_the_words_of_tensorrt(tmp_path: Path) -> None:
    text = plan_fault(tmp_path, version="10.3.0")
    assert "unable to create TensorRT engine" in text
    assert "Current Version: 11.4.0, Serialized Engine Version: 10.3.0" in text
    assert "build the engine with that version, or install the engine's" in text


def test_another_gpu_is_told(tmp_path: Path) -> None:
    text = plan_fault(tmp_path, capability="8.6")
    assert "expecting compute 9.0 got compute 8.6" in text
    assert "GPU 0 has compute capability 9.0" in text
    assert "cc_model_filenames" in text


FILES = {
    "empty": (b"", "is empty"),
    "pointer": (b"version https://git-lfs.github.com/spec/v1", "is a pointer of Git LFS"),
    "onnx": (b"\x08\x08\x12\x04onnx".ljust(100), "header.magicTag == kEXPECTED_MAGIC_TAG failed"),
}


@pytest.mark.parametrize(("content", "text"), FILES.values(), ids=FILES)
def test_files_that_are_no_engine(directory: Path, content: bytes, text: str) -> None:
    (directory / "1" / "model.plan").write_bytes(content)
    assert text in load_fault(directory)


@pytest.mark.parametrize("left", [1, 4, 63, 64, 65, 100, -1])
def test_a_plan_that_was_cut_short(directory: Path, left: int) -> None:
    path = directory / "1" / "model.plan"
    path.write_bytes(path.read_bytes()[:left])
    text = load_fault(directory)
    assert text.startswith(f"unable to create TensorRT engine from {path}: ")
    size = path.stat().st_size
    assert f"; the file of {size} bytes was cut short, or is no plan: copy it or build" in text


def test_the_runtime_ends_before_its_refusal_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who collects the error may do so within TensorRT's logger, which would wait for itself."""
    made: list[weakref.ref[object]] = []

    class Noted(fake_trt.Runtime):
        def __init__(self, logger: fake_trt.ILogger) -> None:
            super().__init__(logger)
            made.append(weakref.ref(self))

    monkeypatch.setattr(fake_trt, "Runtime", Noted)
    directory = put_plan(engines.write_affine(tmp_path / "affine"), AFFINE, version="10.3.0")
    with pytest.raises(ModelError) as caught:
        load(directory)
    assert "Version tag" in caught.value.message
    assert [one() for one in made] == [None]


def test_a_file_that_cannot_be_read(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path) -> bytes:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "read_bytes", refuse)
    assert "cannot read" in load_fault(directory)


def test_formats_that_are_not_linear(tmp_path: Path) -> None:
    other = "Thirty-two wide channel vectorized row major INT8 format"
    text = plan_fault(tmp_path, formats={"y": other})
    assert f"output 'y' of the engine has the format \"{other}\" in profile 0" in text


@pytest.mark.parametrize("has_formats", [True, False])
def test_formats_are_looked_at_in_every_profile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_formats: bool
) -> None:
    if not has_formats:
        monkeypatch.delattr(fake_trt, "TensorFormat")
    plan = put_plan(
        engines.write_affine(tmp_path / "affine"),
        2 * AFFINE,
        formats={"y in 1": "Channel major FP16 format"},
    )
    load(plan)
    group = {"name": "affine", "kind": "KIND_GPU", "profile": ["0", "1"]}
    text = load_fault(plan, config={"instance_group": [group]})
    assert "output 'y' of the engine has the format \"Channel major FP16 format\" in prof" in text


def test_the_lean_runtime_tells_formats_in_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(fake_trt, "TensorFormat")
    assert "has the format" in plan_fault(tmp_path, formats={"x": "Channel major FP16 format"})


def test_types_that_are_not_served(tmp_path: Path) -> None:
    text = plan_fault(tmp_path, types={"x": "FP8"})
    assert "input 'x' of the engine is FP8; expected BF16, BOOL, FP16, FP32" in text


# --- Plugins and version-compatible plans --------------------------------------------------------


def parameters(**given: str) -> dict[str, Any]:
    told = {name.replace("_", "-"): {"string_value": text} for name, text in given.items()}
    return {"parameters": told}


@pytest.fixture
def with_plugins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A model whose engine needs the plugins of libmine.so, which are there."""
    monkeypatch.setattr(fake_trt, "_registry", fake_trt.IPluginRegistry())
    directory = engines.write_affine(tmp_path / "affine")
    (directory / "libmine.so").write_bytes(b"code")
    return put_plan(directory, AFFINE, plugins="libmine.so")


def test_plugins_are_loaded_before_the_engine(with_plugins: Path) -> None:
    assert "Cannot find plugin creator of libmine.so" in load_fault(with_plugins)
    served = load(with_plugins, parameters(plugins=" libmine.so;"))
    served.ask({"x": random(1, 4)})
    assert fake_trt.get_plugin_registry().loaded == [str(with_plugins / "libmine.so")]


PLUGIN_FAULTS = {
    "absent": ("libother.so", "there is no "),
    "outside": ("../libmine.so", 'contains ".."'),
    "refused": ("libmine.so;empty.so", "cannot load the plugins of "),
}


@pytest.mark.parametrize(("plugins", "text"), PLUGIN_FAULTS.values(), ids=PLUGIN_FAULTS)
def test_plugins_that_cannot_be_loaded(with_plugins: Path, plugins: str, text: str) -> None:
    (with_plugins / "empty.so").touch()
    assert text in load_fault(with_plugins, config=parameters(plugins=plugins))


def test_a_registry_that_raises_is_told(
    with_plugins: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(registry: fake_trt.IPluginRegistry, plugin_path: str) -> None:
        raise RuntimeError("undefined symbol")

    monkeypatch.setattr(fake_trt.IPluginRegistry, "load_library", fail)
    text = load_fault(with_plugins, config=parameters(plugins="libmine.so"))
    assert "undefined symbol; were they built for this version" in text


def test_a_version_compatible_plan_must_be_trusted(tmp_path: Path) -> None:
    directory = engines.write_affine(tmp_path / "affine")
    put_plan(directory, AFFINE, has_host_code=True, version="10.3.0")
    text = load_fault(directory)
    assert "the engine has host code" in text
    assert 'key: "version-compatible" value { string_value: "true" }' in text
    served = load(directory, parameters(version_compatible="true"))
    np.testing.assert_array_equal(served.ask({"x": random(1, 4)})["y"], 2 * random(1, 4) + 1)
    assert "expected true or false" in load_fault(
        directory, config=parameters(version_compatible="1")
    )


# --- Memory ------------------------------------------------------------------------------------


def test_no_room_for_the_engine(directory: Path, gpu: fake_cudart.Device) -> None:
    gpu.total = 100
    text = load_fault(directory)
    assert "OutOfMemory" in text
    assert "100 of 100 bytes are free on GPU 0" in text


def test_no_room_for_a_context(tmp_path: Path, gpu: fake_cudart.Device) -> None:
    gpu.total = 1 << 20
    text = plan_fault(tmp_path, device_bytes=5 << 20)
    assert "model 'affine': out of GPU memory: the context of profile 0 needs 5242880" in text
    assert "1048576 of 1048576 bytes are free" in text
    assert "Requested amount of GPU memory" in text
    assert gpu.last == 0, "or the next model of this process would be blamed for it"


@pytest.mark.parametrize(("after", "tensor"), [(0, "x"), (1, "y")])
def test_no_room_for_a_buffer(
    directory: Path, gpu: fake_cudart.Device, after: int, tensor: str
) -> None:
    gpu.fail("cudaMalloc", 2, after=after)
    text = load_fault(directory)
    assert "model 'affine': out of GPU memory: " in text
    assert f"the buffer of tensor '{tensor}' needs 256 bytes" in text
    assert "bytes are free on GPU 0" in text


LOAD_CALLS = {
    "cudaMalloc": 4,
    "cudaStreamCreateWithPriority": 3,
    "cudaEventCreateWithFlags": 9,
}
"""What a load takes of the device, with two sets of buffers for two tensors."""


@pytest.mark.parametrize("function", LOAD_CALLS)
def test_every_allocation_of_a_load_may_fail(
    directory: Path, gpu: fake_cudart.Device, function: str
) -> None:
    load(directory)
    assert gpu.calls[function] == LOAD_CALLS[function]
    for number in range(LOAD_CALLS[function]):
        gpu.fail(function, 2, after=number)
        text = load_fault(directory)
        assert "model 'affine'" in text
        assert "out of GPU memory" in text or "CUDA error 2 (" in text


@pytest.mark.parametrize("number", range(3))
def test_no_allocation_of_pinned_memory_is_needed(
    directory: Path, gpu: fake_cudart.Device, number: int
) -> None:
    """Two stagings and one block of results."""
    gpu.fail("cudaHostAlloc", 2, after=number)
    served = load(directory)
    assert gpu.calls["cudaHostAlloc"] == 3
    for rows in (2, 1):
        array = random(rows, 4)
        np.testing.assert_array_equal(served.ask({"x": array})["y"], 2 * array + 1)


def test_without_pinned_memory_there_is_ordinary_memory(
    directory: Path, gpu: fake_cudart.Device
) -> None:
    gpu.fail("cudaHostAlloc", 2)
    served = load(directory)
    np.testing.assert_array_equal(served.ask({"x": random(2, 4)})["y"], 2 * random(2, 4) + 1)


def test_out_of_memory_in_a_batch_fails_that_batch_alone(
    tmp_path: Path, gpu: fake_cudart.Device
) -> None:
    directory = write_echo(tmp_path / "echo", "FP32", ["n"])
    profiles = [{"INPUT0": [[1], [1], [1 << 16]]}]
    plan = put_plan(directory, profiles, untold={"OUTPUT0": ["n"]})
    served = load(plan, {"max_batch_size": 0, "input": [{"name": "INPUT0", "dims": [-1]}]})
    assert served.ask({"INPUT0": random(5)})["OUTPUT0"].shape == (5,)
    gpu.total = gpu.used + 1000
    with pytest.raises(ModelError) as caught:
        served.answers(served.request({"INPUT0": random(60_000)}))
    assert "the buffer of tensor 'OUTPUT0' needs 262144 bytes" in caught.value.message
    gpu.total = 1 << 30
    np.testing.assert_array_equal(served.ask({"INPUT0": random(60_000)})["OUTPUT0"], random(60_000))


def test_an_output_does_not_grow_beyond_the_limit_of_the_instance(tmp_path: Path) -> None:
    directory = write_echo(tmp_path / "echo", "FP32", ["n"])
    profiles = [{"INPUT0": [[1], [1], [1 << 16]]}]
    plan = put_plan(directory, profiles, untold={"OUTPUT0": ["n"]})
    backend = TensorRTBackend(engines.importer)
    config = {"max_batch_size": 0, "input": [{"name": "INPUT0", "dims": [-1]}]}
    served = Served(backend, engines.on_gpu(plan, config))
    backend.bound_growth(100_000)
    with pytest.raises(ModelError) as caught:
        served.answers(served.request({"INPUT0": random(60_000)}))
    text = caught.value.message
    assert "the buffer of tensor 'OUTPUT0' needs 262144 bytes, naiad.gpu_memory_limit_mb" in text
    for count in (10_000, 12_000, 9_000):  # what is replaced counts no more
        array = random(count)
        np.testing.assert_array_equal(served.ask({"INPUT0": array})["OUTPUT0"], array)


# --- Errors of CUDA ------------------------------------------------------------------------------


@pytest.mark.parametrize("code", [700, 710, 716, 717, 719])
@pytest.mark.parametrize("function", ["cudaMemcpyAsync", "cudaEventRecord", "cudaEventQuery"])
def test_a_sticky_error_ends_the_worker(
    directory: Path, gpu: fake_cudart.Device, function: str, code: int
) -> None:
    served = load(directory)
    gpu.fail(function, code)
    with pytest.raises(InstanceLost) as caught:
        served.answers(served.request({"x": random(1, 4)}))
    assert "model 'affine' on GPU 0: " in str(caught.value)
    assert f"CUDA error {code} (" in str(caught.value)
    assert code in STICKY_ERRORS


def test_a_kernel_that_traps_ends_the_worker(tmp_path: Path) -> None:
    trip = tmp_path / "trip"
    served = load(put_plan(engines.write_affine(tmp_path / "affine"), AFFINE, trip=str(trip)))
    served.ask({"x": random(1, 4)})
    trip.touch()
    with pytest.raises(InstanceLost, match=r"running the batch: CUDA error 719"):
        served.answers(served.request({"x": random(1, 4)}))


@pytest.mark.parametrize(("after", "text"), [(0, "16 bytes to the GPU"), (1, "16 bytes from the")])
def test_other_errors_fail_the_batch_and_leave_nothing_under_way(
    directory: Path, gpu: fake_cudart.Device, after: int, text: str
) -> None:
    served = load(directory)
    gpu.fail("cudaMemcpyAsync", 801, after=after)
    with pytest.raises(ModelError, match=rf"copying {text}.* error 801 \(cudaErrorNotSupported\)"):
        served.answers(served.request({"x": random(1, 4)}))
    assert not any(stream.pending for stream in gpu.streams.values())
    np.testing.assert_array_equal(served.ask({"x": random(1, 4)})["y"], 2 * random(1, 4) + 1)


def test_a_device_that_cannot_be_waited_for_after_a_fault_ends_the_worker(
    directory: Path, gpu: fake_cudart.Device
) -> None:
    """What is under way there may still write where others write by then."""
    served = load(directory)
    gpu.fail("cudaMemcpyAsync", 801, after=1)
    gpu.fail("cudaEventRecord", 801, after=3)
    with pytest.raises(InstanceLost, match=r"801 .* what is under way cannot be waited for"):
        served.answers(served.request({"x": random(1, 4)}))


# --- Errors of TensorRT --------------------------------------------------------------------------

SETTERS = {
    "set_optimization_profile_async": "TensorRT refused profile 0: ",
    "set_input_shape": "TensorRT refused [8, 4] for 'x': ",
    "set_tensor_address": "TensorRT refused memory of 'x': ",
}


@pytest.mark.parametrize(("setter", "text"), SETTERS.items(), ids=SETTERS)
def test_every_refusal_is_noticed(
    directory: Path, monkeypatch: pytest.MonkeyPatch, setter: str, text: str
) -> None:
    def refuse(context: fake_trt.IExecutionContext, *_: Any) -> bool:
        return context._error("Error Code 3: it does not suit me")

    served = None
    if setter == "set_tensor_address":  # first called by a batch; the warm-up only warns
        monkeypatch.setattr(fake_trt.IExecutionContext, setter, refuse)
        served = load(directory)
        with pytest.raises(ModelError) as caught:
            served.answers(served.request({"x": random(1, 4)}))
    else:
        monkeypatch.setattr(fake_trt.IExecutionContext, setter, refuse)
        with pytest.raises(ModelError) as caught:
            load(directory)
    assert caught.value.message == f"{text}IExecutionContext::Error Code 3: it does not suit me"


def test_a_shape_that_was_refused_is_not_taken_for_set(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The context may have lost the shape that it had before."""
    served = load(directory)
    one = random(1, 4)
    served.ask({"x": one})
    with monkeypatch.context() as patched:
        narrow = [fake_trt.Dims(shape) for shape in ([1, 4], [1, 4], [1, 4])]
        patched.setattr(fake_trt.ICudaEngine, "get_tensor_profile_shape", lambda *_: narrow)
        with pytest.raises(ModelError, match=r"refused \[2, 4\] for 'x'"):
            served.answers(served.request({"x": random(2, 4)}))
    np.testing.assert_array_equal(served.ask({"x": one})["y"], 2 * one + 1)


def test_a_refused_output_allocator(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fake_trt.IExecutionContext, "set_output_allocator", lambda *_: False)
    directory = engines.write_nonzero(tmp_path / "nonzero")
    text = load_fault(put_plan(directory, untold={"where": [1, "found"]}))
    assert text == "TensorRT refused the allocator of output 'where': TensorRT logged no error"


def test_an_execution_that_does_not_start(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    served = load(directory)

    def refuse(context: fake_trt.IExecutionContext, stream: int) -> bool:
        return context._error("enqueueV3: no")

    monkeypatch.setattr(fake_trt.IExecutionContext, "execute_async_v3", refuse)
    with pytest.raises(ModelError, match=r"could not start the execution: .*enqueueV3: no"):
        served.answers(served.request({"x": random(1, 4)}))


def test_shapes_that_cannot_be_inferred(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    served = load(directory)
    monkeypatch.setattr(fake_trt.IExecutionContext, "infer_shapes", lambda _: ["x"])
    with pytest.raises(ModelError, match=r"misses the shapes or values of \['x'\]"):
        served.answers(served.request({"x": random(1, 4)}))

    def fail(context: fake_trt.IExecutionContext) -> list[str]:
        raise RuntimeError("a negative dimension")

    monkeypatch.setattr(fake_trt.IExecutionContext, "infer_shapes", fail)
    with pytest.raises(ModelError, match="cannot infer shapes: a negative dimension"):
        served.answers(served.request({"x": random(1, 4)}))


@pytest.mark.parametrize("raises", [True, False])
def test_shapes_are_inferred_again_after_that_failed(
    directory: Path, monkeypatch: pytest.MonkeyPatch, raises: bool
) -> None:
    served = load(directory)
    real = fake_trt.IExecutionContext.infer_shapes
    calls: list[bool] = []

    def infer(context: fake_trt.IExecutionContext) -> list[str]:
        calls.append(True)
        if len(calls) > 1:
            return real(context)
        if raises:
            raise RuntimeError("a negative dimension")
        return ["x"]

    monkeypatch.setattr(fake_trt.IExecutionContext, "infer_shapes", infer)
    array = random(3, 4)
    with pytest.raises(ModelError, match=r"a negative dimension|misses the shapes"):
        served.answers(served.request({"x": array}))
    np.testing.assert_array_equal(served.ask({"x": array})["y"], 2 * array + 1)
    assert len(calls) == 2


def test_an_output_whose_shape_is_not_known_in_time(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    served = load(directory)
    unknown = fake_trt.Dims([-1, 4])
    monkeypatch.setattr(fake_trt.IExecutionContext, "get_tensor_shape", lambda *_: unknown)
    with pytest.raises(ModelError, match=r"does not know its shape \[-1, 4\] before the exec"):
        served.answers(served.request({"x": random(1, 4)}))


def test_an_output_whose_shape_is_never_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = engines.write_nonzero(tmp_path / "nonzero")
    served = load(put_plan(directory, untold={"where": [1, "found"]}))
    path = served.backend._paths[0]  # type: ignore[attr-defined]
    path.executor._allocators["where"].notify_shape = lambda name, shape: None
    with pytest.raises(ModelError, match="output 'where': TensorRT did not tell its shape"):
        served.answers(served.request({"x": random(8)}))


def test_a_context_that_is_broken_when_an_execution_starts(
    directory: Path, gpu: fake_cudart.Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    served = load(directory)

    def break_down(context: fake_trt.IExecutionContext, stream: int) -> bool:
        gpu.sticky = 700
        return context._error("enqueueV3: Error Code 1: Cuda Runtime (an illegal address)")

    monkeypatch.setattr(fake_trt.IExecutionContext, "execute_async_v3", break_down)
    with pytest.raises(InstanceLost, match="starting the execution: CUDA error 700"):
        served.answers(served.request({"x": random(1, 4)}))


# --- Requests ------------------------------------------------------------------------------------


def served_blur(tmp_path: Path, **config: Any) -> Served:
    directory = engines.write_blur(tmp_path / "blur")
    profiles = [
        {"image": [[1, 3, 4, 4], [2, 3, 8, 8], [4, 3, 16, 16]]},
        {"image": [[1, 3, 32, 32], [1, 3, 32, 32], [4, 3, 64, 64]]},
    ]
    return load(put_plan(directory, profiles), config)


def test_a_shape_that_no_profile_admits_fails_its_request_alone(tmp_path: Path) -> None:
    group = {"name": "blur", "kind": "KIND_GPU", "profile": ["0", "1"]}
    served = served_blur(tmp_path, instance_group=[group])
    images = [random(1, 3, size, size) for size in (8, 20, 40)]
    answers = served.answers(*[served.request({"image": image}) for image in images])
    assert isinstance(answers[1], RequestError)
    assert "failed to find any Optimization Profile among [0, 1]" in answers[1].message
    assert "0: input 'image': model expected the shape of dimension 2 to be" in answers[1].message
    assert [type(answers[index]) for index in (0, 2)] == [dict, dict]


def test_requests_that_fail_together_are_tried_apart_by_the_worker(tmp_path: Path) -> None:
    served = served_blur(tmp_path)
    images = [random(1, 3, size, size) for size in (8, 20, 20)]
    with pytest.raises(RequestError, match="dimension 2 to be between 4 and 16 but received 20"):
        served.answers(*[served.request({"image": image}) for image in images])


def test_one_profile_says_what_it_admits(tmp_path: Path) -> None:
    served = served_blur(tmp_path)
    with pytest.raises(RequestError) as caught:
        served.answers(served.request({"image": random(1, 3, 2, 2)}))
    assert caught.value.message == (
        "request specifies invalid shape for blur_0. Error details: input 'image': model expected "
        "the shape of dimension 2 to be between 4 and 16 but received 2"
    )


def test_a_shape_of_another_rank_is_told(tmp_path: Path) -> None:
    served = served_blur(tmp_path)
    request = served.request({"image": random(1, 3, 8, 8)})
    request.inputs["image"].shape = (1, 3, 64)
    with pytest.raises(RequestError, match="shape of dimensions to be 4 in number but received 3"):
        served.backend.execute([request])


def test_bytes_that_do_not_fit_the_shape(directory: Path) -> None:
    served = load(directory)
    good, bad = (served.request({"x": random(1, 4)}) for _ in range(2))
    bad.inputs["x"].buffer = bad.inputs["x"].buffer[:8]
    with pytest.raises(RequestError, match=r"expected 16 bytes for the shape \[1, 4\], got 8"):
        served.backend.execute([good, bad])


def test_an_output_without_the_batch_is_an_error_and_not_somebody_elses_rows(
    tmp_path: Path,
) -> None:
    directory = write_echo(tmp_path / "echo", "FP32", ["n", 4])
    profiles = [{"INPUT0": [[1, 4], [1, 4], [8, 4]]}]
    served = load(put_plan(directory, profiles, untold={"OUTPUT0": ["n", 4]}))
    path = served.backend._paths[0]  # type: ignore[attr-defined]
    allocator = path.executor._allocators["OUTPUT0"]
    allocator.notify_shape = lambda name, shape: setattr(allocator, "shape", (1, 4))
    with pytest.raises(ModelError, match=r"expected the batch of 3 as first dimension, got \[1"):
        served.answers(*[served.request({"INPUT0": random(n, 4)}) for n in (1, 2)])


def test_a_failed_batch_writes_nowhere_afterwards(directory: Path, gpu: fake_cudart.Device) -> None:
    served = load(directory)
    own = place(16)
    gpu.fail("cudaEventRecord", 801)
    with pytest.raises(ModelError):
        served.answers(served.request({"x": random(1, 4)}, places={"y": own}))
    own[:] = 7
    served.ask({"x": random(1, 4)})
    assert (own == 7).all()
