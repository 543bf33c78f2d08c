"""What the module `tensorrt` is to naiad's backend, with a small kernel as its engine: y = 2x + 1.

Everything of the backend's runs as it does with TensorRT, on real streams and device pointers; only
what execute_async_v3 gives to the stream is ours. Held to the real package's signatures by a test.
"""

from __future__ import annotations

import json
from enum import IntEnum
from typing import Any, Final

from gpu_checks.gpu import Gpu
from gpu_checks.kernels import STAMPS_BYTES, Kernels

__version__ = "0"
MAGIC: Final = b"kern"
ELEMENT_BYTES: Final = 4

engines: Final[list[ICudaEngine]] = []
"""All that this process made, for whoever wants to see their stamps."""


class DataType(IntEnum):
    FLOAT = 0


class TensorIOMode(IntEnum):
    NONE = 0
    INPUT = 1
    OUTPUT = 2


class TensorLocation(IntEnum):
    DEVICE = 0
    HOST = 1


class TensorFormat(IntEnum):
    LINEAR = 0


class ExecutionContextAllocationStrategy(IntEnum):
    STATIC = 0
    ON_PROFILE_CHANGE = 1
    USER_MANAGED = 2


def plan(width: int, rows_max: int, *, busy_us: float = 0, stamps: bool = False) -> bytes:
    """An engine of x [rows, width], at least `busy_us` long, that notes its times with `stamps`."""
    told = {"width": width, "rows_max": rows_max, "busy_us": busy_us, "stamps": stamps}
    return MAGIC + json.dumps(told).encode()


class Dims(tuple[int, ...]):
    """A shape."""


class ILogger:
    class Severity(IntEnum):
        INTERNAL_ERROR = 0
        ERROR = 1
        WARNING = 2
        INFO = 3
        VERBOSE = 4

    def log(self, severity: Severity, msg: str) -> None:
        raise NotImplementedError


class IOutputAllocator:
    """No output of ours needs one."""


class Runtime:
    def __init__(self, logger: ILogger) -> None:
        self._logger = logger

    def deserialize_cuda_engine(self, serialized_engine: bytes) -> ICudaEngine | None:
        if not serialized_engine.startswith(MAGIC):
            self._logger.log(ILogger.Severity.ERROR, "this is not a plan of gpu_check's kernel")
            return None
        engine = ICudaEngine(json.loads(serialized_engine[len(MAGIC) :]), self._logger)
        engines.append(engine)
        return engine


class ICudaEngine:
    num_io_tensors = 2
    num_optimization_profiles = 1

    def __init__(self, told: dict[str, Any], logger: ILogger) -> None:
        self.width: int = told["width"]
        self.busy_us: float = told["busy_us"]
        self.rows_max: int = told["rows_max"]
        self.logger = logger
        self.gpu = Gpu()
        self.kernels = Kernels(self.gpu)
        self._stream = self.gpu.stream()
        self.kernels.busy(self._stream, 1)  # loads it, which a capture could not
        self.starts = 0
        """Executions that were given to a stream, also to one that is captured."""
        self.stamps = self.gpu.malloc(STAMPS_BYTES) if told["stamps"] else 0
        self.forget_stamps()

    def forget_stamps(self) -> None:
        if self.stamps:
            self.gpu.call("cudaMemsetAsync", self.stamps, 0, STAMPS_BYTES, self._stream)
            self.gpu.finish(self._stream)

    def get_tensor_name(self, index: int) -> str:
        return "xy"[index]

    def get_tensor_mode(self, name: str) -> TensorIOMode:
        return TensorIOMode.INPUT if name == "x" else TensorIOMode.OUTPUT

    def get_tensor_shape(self, name: str) -> Dims:
        return Dims((-1, self.width))

    def get_tensor_dtype(self, name: str) -> DataType:
        return DataType.FLOAT

    def get_tensor_location(self, name: str) -> TensorLocation:
        return TensorLocation.DEVICE

    def get_tensor_profile_shape(self, name: str, profile_index: int) -> list[Dims]:
        return [Dims((rows, self.width)) for rows in (1, self.rows_max, self.rows_max)]

    def get_tensor_profile_values(self, name: int, profile_index: str) -> list[list[int]]:
        """The keyword names are interchanged, as in the real package."""
        return []

    def get_tensor_format(self, name: str, profile_index: int = 0) -> TensorFormat:
        return TensorFormat.LINEAR

    def get_device_memory_size_for_profile_v2(self, profile_index: int) -> int:
        return 0

    def create_execution_context(
        self,
        strategy: ExecutionContextAllocationStrategy = ExecutionContextAllocationStrategy.STATIC,
    ) -> IExecutionContext:
        return IExecutionContext(self)


class IExecutionContext:
    def __init__(self, engine: ICudaEngine) -> None:
        self.engine = engine
        self.active_optimization_profile = 0
        self._shape = Dims()
        self._addresses: dict[str, int] = {}

    def set_optimization_profile_async(self, profile_index: int, stream_handle: int) -> bool:
        self.active_optimization_profile = profile_index
        return True

    def set_input_shape(self, name: str, shape: tuple[int, ...]) -> bool:
        self._shape = Dims(shape)
        return True

    def get_tensor_shape(self, name: str) -> Dims:
        return self._shape

    def infer_shapes(self) -> list[str]:
        return [] if self._shape else ["x"]

    def get_max_output_size(self, name: str) -> int:
        """Over the whole profile, as the real package says, whatever shape is set."""
        return self.engine.rows_max * self.engine.width * ELEMENT_BYTES if self._shape else -1

    def set_tensor_address(self, name: str, memory: int) -> bool:
        self._addresses[name] = memory
        return True

    def execute_async_v3(self, stream_handle: int) -> bool:
        engine = self.engine
        engine.starts += 1
        x, y = self._addresses["x"], self._addresses["y"]
        engine.kernels.affine(
            stream_handle, x, y, self._count(), busy_us=engine.busy_us, stamps=engine.stamps
        )
        return True

    def _count(self) -> int:
        rows, width = self._shape
        return rows * width
