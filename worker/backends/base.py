"""What a backend is: the seam between the worker's loop and an engine.

A backend runs in one worker process for one instance of one model. It is found by the entry point
group `naiad.backends`, imported only when a model needs it, and never sees sockets or regions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

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

    Give `array` or `buffer`. With an array the datatype must be the array's (uint16 bits for BF16).
    """

    name: str
    datatype: str
    shape: Sequence[int]
    array: Array | None = None
    buffer: memoryview | bytes | None = None


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
    threads: int
    """Threads the engine may use; 0 leaves its own default."""
    config: ModelConfig
    auto_complete: bool = True
    """Whether the config may be added to; False: it is what the operator wrote."""


class Backend(Protocol):
    """load → warm_up → execute ... → unload, all on one thread."""

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
