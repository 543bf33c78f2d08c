"""What a backend is: the seam between the worker's loop and an engine.

A backend runs in one worker process for one instance of one model. It is found by the entry point
group `naiad.backends`, imported only when a model needs it, and never sees sockets or regions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from naiad.config.model import ModelConfig
from naiad.protocol.errors import NaiadError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Array = NDArray[Any]


class InstanceLost(BaseException):
    """This process can run nothing more, for instance because its GPU ended its context.

    The worker ends at once, with this text; what it was executing is judged as at any death. Not an
    Exception, so that nothing on its way takes it for a failed batch.
    """


class DeviceSpan(NamedTuple):
    """Bytes in a GPU's memory: a client's, mapped into this process while something refers to this.

    Valid during execute only, as all that a request has. `device` as this process counts GPUs.
    Before the bytes are read or written, a stream must wait for `event` (a cudaEvent_t), if there
    is one: the client's own work on them may still be under way.
    """

    address: int
    size: int
    device: int = 0
    event: Any = None
    keep: Any = None
    """What keeps the memory mapped."""


class DeviceMemory(NamedTuple):
    """What of one request lies in GPU memory: inputs, and where the client wants outputs, by name.

    A backend sees it if it says `takes_device_memory`. Its inputs are among the request's others as
    well, whose `buffer` is then a copy in ordinary memory, made when it is first asked for.
    """

    inputs: dict[str, DeviceSpan]
    places: dict[str, DeviceSpan]


class InputTensor(Protocol):
    """One input of one request: bytes in shared memory or in a message, valid during execute only.

    With max_batch_size > 0 the shape has the batch dimension.
    """

    name: str
    datatype: str
    shape: tuple[int, ...]
    buffer: memoryview

    def array(self) -> Array:
        """Read-only NumPy view (BYTES: an object array of bytes, made from a private copy)."""
        ...


@dataclass(slots=True)
class OutputTensor:
    """One output of one request: packed bytes (BYTES with length prefixes), or an array.

    Give `array`, `buffer` or `span`. With an array the datatype must be the array's (uint16 bits
    for BF16). A span is in GPU memory and complete: nothing is under way there. One that begins
    where the request's device place does is not copied.
    """

    name: str
    datatype: str
    shape: Sequence[int]
    array: Array | None = None
    buffer: memoryview | bytes | None = None
    span: DeviceSpan | None = None


@dataclass(slots=True)
class ModelRequest:
    """What a backend gets for one request of a batch.

    `places` holds, for each output whose bytes the client wants in its own memory, a writable
    uint8 view of exactly the granted size: a backend may write the result there and return an
    OutputTensor whose buffer is that view (or its beginning), which saves the copy.
    """

    label: str
    inputs: dict[str, InputTensor]
    requested_outputs: tuple[str, ...]
    places: dict[str, np.ndarray[Any, np.dtype[np.uint8]]] = field(default_factory=dict)
    parameters: dict[str, str | int | float | bool] = field(default_factory=dict)
    priority: int = 0
    timeout_us: int = 0
    sequence_id: int | str = 0
    sequence_start: bool = False
    sequence_end: bool = False
    is_cancelled: Callable[[], bool] = lambda: False
    device: DeviceMemory | None = None
    """None where all is in ordinary memory, and for backends that take no other."""


@dataclass(slots=True)
class ModelResponse:
    """One request's outputs, in the order they should be answered."""

    outputs: Sequence[OutputTensor]
    parameters: Mapping[str, str | int | float | bool] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ModelInstance:
    """Which model instance a worker is asked to be."""

    name: str
    version: int
    instance_name: str
    directory: str
    """The model's directory; its version directory is `<directory>/<version>`."""
    kind: str
    """KIND_CPU, KIND_GPU or KIND_MODEL."""
    device_id: int
    """Of its GPU, as the engine counts: a worker of a GPU sees no other, so it is 0."""
    threads: int
    """Threads the engine may use; 0 leaves its own default."""
    config: ModelConfig
    auto_complete: bool = True
    """Whether the config may be added to; False: it is what the operator wrote."""
    gpu_uuid: str = ""
    """Of its GPU, for people and for the driver; empty on the CPU."""


class Backend(Protocol):
    """load → warm_up → execute ... → unload, all on one thread.

    A backend with an attribute `takes_device_memory` that is true once it has loaded is told where
    tensors lie in GPU memory (ModelRequest.device); for others the worker copies them.
    """

    def load(self, instance: ModelInstance) -> ModelConfig:
        """Load the model; the config it returns is completed (auto-complete) and final.

        Raises ModelError(code=LOAD_FAILED) or RequestError with a text for the operator.
        """
        ...

    def warm_up(self) -> None:
        """Run once what the first request would otherwise pay for."""
        ...

    def execute(self, batch: Sequence[ModelRequest]) -> Sequence[ModelResponse | NaiadError]:
        """Answers in the order of the requests; a NaiadError fails its request alone.

        Anything raised fails the whole batch: the worker then runs it again by halves
        (naiad.split_failed_batches), so that only the guilty request fails. InstanceLost ends the
        worker instead.
        """
        ...

    def unload(self) -> None:
        """Free what load took; the process exits right after."""
        ...


class Bounded(Protocol):
    """A backend that allocates GPU memory itself after the load may have this beside the others."""

    def bound_growth(self, size: int) -> None:
        """Called once, after the warm-up: take no more than this many bytes in addition."""
        ...


class Overlapping(Backend, Protocol):
    """A backend that can bring the next batch to its device while it executes one."""

    copied_in_ns: int
    """How long the last `execute` waited for inputs on their way to the device; what was staged in
    time takes nothing."""

    def overlap(self, meanwhile: Callable[[], None], ahead: Callable[[], bool]) -> None:
        """Called once, before the first batch. During `execute`, while the device works, the
        backend calls `meanwhile` again and again, which may call `stage`; and `ahead` just before
        it lets the device begin what is staged, which it may only where that says True.
        """
        ...

    def stage(self, batch: Sequence[ModelRequest]) -> None:
        """The batch that will be executed next: the very same list of requests.

        Raises nothing: what is wrong with it is told when it is executed. Nothing of its results
        may be written to the memory of others before.
        """
        ...

    def unstage(self) -> None:
        """What was staged is not executed here after all: let go of it."""
        ...
