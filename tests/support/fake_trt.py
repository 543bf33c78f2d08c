"""TensorRT without a GPU: what the module `tensorrt` is to the backend.

A plan is a header (JSON) with an ONNX graph, made by `plan`. An engine runs it with ONNX Runtime,
on the stream it is given, reading and writing at the raw addresses it was told; an address outside
of the device's memory traps as on a GPU. Held to the real package's signatures by
tests/contract/backends/test_tensorrt_api.py. One long file, as what it stands in for is one module.
"""

from __future__ import annotations

import ctypes
import itertools
import json
import struct
from collections.abc import Mapping, Sequence
from enum import IntEnum
from pathlib import Path
from time import sleep
from typing import Any

import numpy as np
import onnxruntime

from naiad.protocol.datatypes import NUMPY_NAME
from naiad.worker.backends.onnx_values import run_as_values
from support import fake_cudart
from support.fake_streams import Trap

__version__ = "11.4.0"
MAGIC, RTX_MAGIC = b"fake", b"vtrt"
LINEAR_TEXT = "Row major linear FP32 format"
PLAN_HEADER_BYTES = 64
_FIRST = struct.Struct("<4s12xQ")
"""Of a real plan as well: what it is, and how large. What else is in its header is unknown here."""

Triple = Sequence[Sequence[int]]


class DataType(IntEnum):
    FLOAT = 0
    HALF = 1
    INT8 = 2
    INT32 = 3
    BOOL = 4
    UINT8 = 5
    FP8 = 6
    BF16 = 7
    INT64 = 8


class TensorIOMode(IntEnum):
    NONE = 0
    INPUT = 1
    OUTPUT = 2


class TensorLocation(IntEnum):
    DEVICE = 0
    HOST = 1


class TensorFormat(IntEnum):
    """In the full package only."""

    LINEAR = 0
    CHW32 = 5


class ExecutionContextAllocationStrategy(IntEnum):
    STATIC = 0
    ON_PROFILE_CHANGE = 1
    USER_MANAGED = 2


_TYPE = {
    "tensor(float)": (DataType.FLOAT, "FP32"),
    "tensor(float16)": (DataType.HALF, "FP16"),
    "tensor(bfloat16)": (DataType.BF16, "BF16"),
    "tensor(int8)": (DataType.INT8, "INT8"),
    "tensor(int32)": (DataType.INT32, "INT32"),
    "tensor(int64)": (DataType.INT64, "INT64"),
    "tensor(uint8)": (DataType.UINT8, "UINT8"),
    "tensor(bool)": (DataType.BOOL, "BOOL"),
}


def plan(
    model: Path,
    profiles: Sequence[Mapping[str, Triple]] = ({},),
    *,
    values: Mapping[str, Triple] | None = None,
    magic: bytes = MAGIC,
    **header: Any,
) -> bytes:
    """An engine file of an ONNX file.

    `profiles`: least, best and greatest shape by dynamic input. `values`: the same of the values of
    shape tensors, which makes them such. `header` may hold `version`, `capability`, `types` and
    `formats` by tensor (or "x in 1": in that profile), `untold` (outputs whose shape depends on the
    data, with their dims), `device_bytes` (what a context takes), `trip` (a file: while it is
    there, the kernel removes it and traps), `has_host_code` (a version-compatible plan), `plugins`
    (a library it needs), `hold` (a file: while it is there, the kernel takes its time) and `host`
    (outputs that lie in host memory).
    """
    header = {"profiles": profiles, "values": values or {}, **header}
    told = json.dumps({"version": __version__, "capability": "9.0", **header}).encode()
    content = struct.pack("<I", len(told)) + told + model.read_bytes()
    first = _FIRST.pack(magic, PLAN_HEADER_BYTES + len(content))
    return first.ljust(PLAN_HEADER_BYTES, b"\0") + content


class Dims:
    """A sequence, and no tuple."""

    def __init__(self, shape: Sequence[int] = ()) -> None:
        self.shape = tuple(shape)

    def __len__(self) -> int:
        return len(self.shape)

    def __getitem__(self, index: int) -> int:
        return self.shape[index]


class ILogger:
    class Severity(IntEnum):
        INTERNAL_ERROR = 0
        ERROR = 1
        WARNING = 2
        INFO = 3
        VERBOSE = 4

    def __init__(self) -> None:
        self._made = True

    def log(self, severity: Severity, msg: str) -> None:
        raise NotImplementedError


class IOutputAllocator:
    def __init__(self) -> None:
        self._made = True


def init_libnvinfer_plugins(logger: ILogger, namespace: str) -> bool:
    logger.log(ILogger.Severity.VERBOSE, "plugins are registered")
    return True


class IPluginRegistry:
    """`loaded`: what was loaded since the last reset."""

    def __init__(self) -> None:
        self.loaded: list[str] = []

    def load_library(self, plugin_path: str) -> object | None:
        """One that is empty has no plugins, and one that is loaded twice has no new ones."""
        if plugin_path in self.loaded or not Path(plugin_path).read_bytes():
            return None
        self.loaded.append(plugin_path)
        return object()


_registry = IPluginRegistry()


def get_plugin_registry() -> IPluginRegistry:
    return _registry


class Runtime:
    engine_host_code_allowed = False

    def __init__(self, logger: ILogger) -> None:
        assert fake_cudart.device.count, "the real one crashes without a GPU"
        assert not fake_cudart.device.driver_error, "the real one crashes without a driver"
        assert logger._made, "the base class was not initialised"
        self._logger = logger

    def deserialize_cuda_engine(self, serialized_engine: bytes) -> ICudaEngine | None:
        fault = self._fault(serialized_engine)
        if fault:
            self._logger.log(ILogger.Severity.INFO, "[MemUsageChange] Init CUDA")
            self._logger.log(ILogger.Severity.ERROR, f"IRuntime::deserializeCudaEngine: {fault}")
            return None
        header, graph = _parsed(serialized_engine)
        return ICudaEngine(header, graph, self._logger)

    def _fault(self, content: bytes) -> str:
        broken = _broken(content)
        if broken:
            return broken
        header, _ = _parsed(content)
        if header.get("has_host_code") and not self.engine_host_code_allowed:
            return "Error Code 4: the engine has host code, set engine_host_code_allowed"
        needed = header.get("plugins", "")
        if needed and needed not in " ".join(_registry.loaded):
            return f"Error Code 1: Cannot find plugin creator of {needed}"
        if header["version"] != __version__ and not header.get("has_host_code"):
            return (
                "Error Code 1: Serialization (Version tag does not match. Note: Current Version: "
                f"{__version__}, Serialized Engine Version: {header['version']})"
            )
        here = "{}.{}".format(*fake_cudart.device.capability)
        if header["capability"] != here:
            return (
                "Error Code 6: The engine plan file is generated on an incompatible device, "
                f"expecting compute {here} got compute {header['capability']}, please rebuild"
            )
        free = fake_cudart.device.total - fake_cudart.device.used
        if len(content) > free:
            return f"Requested amount of GPU memory ({len(content)} bytes) ... OutOfMemory"
        return ""


def _broken(content: bytes) -> str:
    """What of no plan is told, in the real words."""
    if not content:
        return (
            "Error Code 3: API Usage Error (Cannot deserialize with an empty memory buffer. In "
            "deserializeCudaEngineEx)"
        )
    if len(content) < PLAN_HEADER_BYTES:
        return "Error Code 2: Internal Error (Assertion bufferSize >= minBufferSize failed. )"
    magic, size = _FIRST.unpack_from(content)
    failed = ""
    if magic not in (MAGIC, RTX_MAGIC):
        failed = "header.magicTag == kEXPECTED_MAGIC_TAG"
    elif len(content) == PLAN_HEADER_BYTES:
        failed = "cursor < blobSize"
    elif len(content) != size:
        failed = "plan.header.size == blobSize"
    return (
        f"Error Code 1: Serialization (Serialization assertion {failed} failed." if failed else ""
    )


def _parsed(content: bytes) -> tuple[dict[str, Any], bytes]:
    (size,) = struct.unpack_from("<I", content, PLAN_HEADER_BYTES)
    begin = PLAN_HEADER_BYTES + 4
    return json.loads(content[begin : begin + size]), content[begin + size :]


class ICudaEngine:
    def __init__(self, header: dict[str, Any], graph: bytes, logger: ILogger) -> None:
        self._header = header
        self._logger = logger
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 4
        options.intra_op_num_threads = 1
        self._session = onnxruntime.InferenceSession(graph, options, ["CPUExecutionProvider"])
        self._inputs = {node.name: node for node in self._session.get_inputs()}
        self._outputs = {node.name: node for node in self._session.get_outputs()}
        self._nodes = {**self._inputs, **self._outputs}
        self.num_io_tensors = len(self._nodes)
        self.num_optimization_profiles = len(header["profiles"])
        self.busy_profiles: set[int] = set()

    def get_tensor_name(self, index: int) -> str:
        name: str = list(self._nodes)[index]
        return name

    def get_tensor_mode(self, name: str) -> TensorIOMode:
        return TensorIOMode.INPUT if name in self._inputs else TensorIOMode.OUTPUT

    def get_tensor_shape(self, name: str) -> Dims:
        told = self._header.get("untold", {}).get(name, self._nodes[name].shape)
        return Dims([size if isinstance(size, int) else -1 for size in told])

    def get_tensor_dtype(self, name: str) -> DataType:
        other = self._header.get("types", {}).get(name)
        return DataType[other] if other else _TYPE[self._nodes[name].type][0]

    def get_tensor_location(self, name: str) -> TensorLocation:
        is_host = name in self._header["values"] or name in self._header.get("host", ())
        return TensorLocation.HOST if is_host else TensorLocation.DEVICE

    def get_tensor_profile_shape(self, name: str, profile_index: int) -> list[Dims]:
        return [Dims(shape) for shape in self._header["profiles"][profile_index][name]]

    def get_tensor_profile_values(self, name: int, profile_index: str) -> list[list[int]]:
        """The keyword names are interchanged, as in the real package."""
        assert isinstance(name, int)
        values: list[list[int]] = self._header["values"][profile_index]
        return values

    def get_tensor_format(self, name: str, profile_index: int = 0) -> TensorFormat:
        is_linear = self.get_tensor_format_desc(name, profile_index) == LINEAR_TEXT
        return TensorFormat.LINEAR if is_linear else TensorFormat.CHW32

    def get_tensor_format_desc(self, name: str, profile_index: int = 0) -> str:
        told: dict[str, str] = self._header.get("formats", {})
        return told.get(f"{name} in {profile_index}") or told.get(name, LINEAR_TEXT)

    def get_tensor_vectorized_dim(self, name: str, profile_index: int = 0) -> int:
        return -1 if self.get_tensor_format_desc(name, profile_index) == LINEAR_TEXT else 1

    def get_device_memory_size_for_profile_v2(self, profile_index: int) -> int:
        size: int = self._header.get("device_bytes", 1024)
        return size

    def create_execution_context(
        self,
        strategy: ExecutionContextAllocationStrategy = ExecutionContextAllocationStrategy.STATIC,
    ) -> IExecutionContext | None:
        size = self.get_device_memory_size_for_profile_v2(0)
        if size > fake_cudart.device.total - fake_cudart.device.used:
            text = f"Requested amount of GPU memory ({size} bytes) could not be allocated"
            self._logger.log(ILogger.Severity.ERROR, text)
            fake_cudart.device.last = fake_cudart.cudaError_t.cudaErrorMemoryAllocation
            return None
        return IExecutionContext(self)

    def datatype(self, name: str) -> str:
        datatype: str = _TYPE[self._nodes[name].type][1]
        return datatype

    def outputs_of(self, feeds: Mapping[str, Any]) -> dict[str, Any]:
        names = list(self._outputs)
        types = {name: self.datatype(name) for name in self._nodes}
        if "BF16" in types.values():
            found = run_as_values(self._session, names, feeds, types, None)
        else:
            found = self._session.run(names, dict(feeds))
        return dict(zip(names, found, strict=True))


class IExecutionContext:
    def __init__(self, engine: ICudaEngine) -> None:
        self.engine = engine
        self.active_optimization_profile = -1
        self.executions = 0
        self._shapes: dict[str, tuple[int, ...]] = {}
        self._addresses: dict[str, int] = {}
        self._allocators: dict[str, Any] = {}
        self._known: dict[Any, dict[str, tuple[int, ...]]] = {}
        self._inferred: dict[str, tuple[int, ...]] | None = None
        """The outputs' shapes as they were inferred last, whatever has changed in host memory."""
        self._bounds: dict[str, int] | None = None
        """The most elements of each output in the profile."""
        self._executed: dict[str, tuple[int, ...]] = {}
        """The shapes of the last execution outside of a capture."""

    def _error(self, text: str) -> bool:
        self.engine._logger.log(ILogger.Severity.ERROR, f"IExecutionContext::{text}")
        return False

    def set_optimization_profile_async(self, profile_index: int, stream_handle: int) -> bool:
        assert stream_handle in fake_cudart.device.streams
        if profile_index in self.engine.busy_profiles:
            return self._error(f"setOptimizationProfileAsync: profile {profile_index} is in use")
        self.engine.busy_profiles.add(profile_index)
        self.active_optimization_profile = profile_index
        return True

    def set_input_shape(self, name: str, shape: tuple[int, ...]) -> bool:
        least = most = self.engine.get_tensor_shape(name).shape
        if -1 in most:
            profile = self.active_optimization_profile
            found = self.engine.get_tensor_profile_shape(name, profile)
            least, most = found[0].shape, found[2].shape
        if len(shape) != len(most) or not all(
            low <= size <= high for low, size, high in zip(least, shape, most, strict=True)
        ):
            self._shapes.pop(name, None)
            return self._error(
                f"setInputShape: Error Code 3: Set dimensions {list(shape)} for tensor {name} do "
                f"not satisfy any optimization profiles ({list(least)} to {list(most)})"
            )
        self._shapes[name] = shape
        self._inferred = None
        return True

    def get_tensor_shape(self, name: str) -> Dims:
        if name in self.engine._inputs:
            return Dims(self._shapes[name])
        if name in self.engine._header.get("untold", {}):
            return self.engine.get_tensor_shape(name)
        if self._inferred is None:
            self._inferred = self._outputs_shapes()
        return Dims(self._inferred[name])

    def infer_shapes(self) -> list[str]:
        missing = [name for name in self.engine._inputs if name not in self._shapes]
        hosts = [n for n in self.engine._header["values"] if n not in self._addresses]
        if missing or hosts:
            return missing + hosts
        try:
            self._inferred = self._outputs_shapes()
        except Exception as error:
            raise RuntimeError(str(error)) from error
        return []

    def get_max_output_size(self, name: str) -> int:
        """Over the whole profile, whatever shapes are set: of all its corners the greatest."""
        if self.active_optimization_profile < 0 or set(self._shapes) != set(self.engine._inputs):
            return -1
        if self._bounds is None:
            self._bounds = self._profile_bounds()
        return self._bounds[name] * self._dtype(name).itemsize

    def set_tensor_address(self, name: str, memory: int) -> bool:
        if not memory:
            return self._error(f"setTensorAddress: {name}: the address is null")
        self._addresses[name] = memory
        return True

    def set_output_allocator(self, name: str, output_allocator: Any) -> bool:
        assert output_allocator._made, "the base class was not initialised"
        self._allocators[name] = output_allocator
        return True

    def execute_async_v3(self, stream_handle: int) -> bool:
        stream = fake_cudart.device.streams[stream_handle]
        self.executions += 1
        if fake_cudart.device.last:
            return self._error("enqueueV3: Error Code 1: Cuda Runtime (an error is pending)")
        for name in self.engine._nodes:
            if name not in self._addresses and name not in self._allocators:
                return self._error(f"enqueueV3: Error Code 3: no address for tensor {name}")
        if stream.captured is None:
            self._executed = dict(self._shapes)
        elif self._executed != self._shapes:
            return self._error("enqueueV3: Error Code 1: execute these shapes before a capture")
        if not self._allocators:
            addresses, shapes = dict(self._addresses), dict(self._shapes)
            stream.add(lambda: self._kernel(addresses, shapes))
            fake_cudart.device.timing.called()
            return True
        stream.drain()
        return self._execute_with_allocators(stream_handle)

    def _execute_with_allocators(self, stream: int) -> bool:
        """The shapes are known, and told, before the call returns."""
        outputs = self._computed(self._addresses, self._shapes)
        for name, array in outputs.items():
            address = self._addresses.get(name, 0)
            if name in self._allocators:
                allocator = self._allocators[name]
                address = allocator.reallocate_output_async(name, 0, array.nbytes, 256, stream)
                if not address:
                    return self._error(f"enqueueV3: Error Code 2: OutOfMemory ({name})")
                allocator.notify_shape(name, Dims(array.shape))
            self._write(name, array, address)
        return True

    def _kernel(self, addresses: Mapping[str, int], shapes: Mapping[str, Any]) -> None:
        trip = self.engine._header.get("trip")
        if trip and Path(trip).exists():
            Path(trip).unlink()
            raise Trap(719)
        outputs = self._computed(addresses, shapes)
        hold = self.engine._header.get("hold")
        while hold and Path(hold).exists():
            sleep(0.001)
        for name, array in outputs.items():
            self._write(name, array, addresses[name])

    def _computed(self, addresses: Mapping[str, int], shapes: Mapping[str, Any]) -> dict[str, Any]:
        feeds = {
            name: self._read(name, addresses[name], shapes[name]) for name in self.engine._inputs
        }
        return self.engine.outputs_of(feeds)

    def _read(self, name: str, address: int, shape: tuple[int, ...]) -> Any:
        dtype = self._dtype(name)
        size = int(np.prod(shape)) * dtype.itemsize
        self._check(name, address, size)
        return np.frombuffer(ctypes.string_at(address, size), dtype).reshape(shape)

    def _write(self, name: str, array: Any, address: int) -> None:
        self._check(name, address, array.nbytes)
        ctypes.memmove(address, array.tobytes(), array.nbytes)

    def _check(self, name: str, address: int, size: int) -> None:
        is_host = self.engine.get_tensor_location(name) is TensorLocation.HOST
        if not is_host and not fake_cudart.device.holds(address, size):
            raise Trap(700)

    def _profile_bounds(self) -> dict[str, int]:
        """By runs of zeros in the least and the greatest shape of each input, in all combinations;
        such as no graph admits are none."""
        engine, profile = self.engine, max(0, self.active_optimization_profile)
        choices = []
        for name in engine._inputs:
            if -1 in engine.get_tensor_shape(name).shape:
                found = engine.get_tensor_profile_shape(name, profile)
                choices.append([(name, found[0].shape), (name, found[2].shape)])
            else:
                choices.append([(name, engine.get_tensor_shape(name).shape)])
        hosts = engine._header["values"]
        bounds = dict.fromkeys(engine._outputs, 0)
        for corner in itertools.product(*choices):
            feeds = {name: np.zeros(shape, self._dtype(name)) for name, shape in corner}
            for name, triple in hosts.items():
                feeds[name] = np.array(triple[2], self._dtype(name)).reshape(dict(corner)[name])
            try:
                outputs = engine.outputs_of(feeds)
            except Exception:  # sizes that do not go together
                continue
            for name, array in outputs.items():
                bounds[name] = max(bounds[name], array.size)
        return bounds

    def _outputs_shapes(self) -> dict[str, tuple[int, ...]]:
        """By a run with zeros, and the values of shape tensors."""
        hosts = {
            name: self._read(name, self._addresses[name], self._shapes[name])
            for name in self.engine._header["values"]
        }
        key = (*sorted(self._shapes.items()), *((n, v.tobytes()) for n, v in hosts.items()))
        if key not in self._known:
            zeros = {
                name: np.zeros(shape, self._dtype(name)) for name, shape in self._shapes.items()
            }
            found = self.engine.outputs_of({**zeros, **hosts})
            self._known[key] = {name: array.shape for name, array in found.items()}
        return self._known[key]

    def _dtype(self, name: str) -> np.dtype[Any]:
        return np.dtype(NUMPY_NAME.get(self.engine.datatype(name), "uint16"))
