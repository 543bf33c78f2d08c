"""What comes back from a model: raw outputs below, NumPy arrays on demand above.

Owns the lifetime of outputs that lie in a worker's arena: a lease ends when the result and every
array made from it are gone. Arrays of inline outputs own their bytes or the frame they came in.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence
from typing import Any, NamedTuple, Protocol

from naiad.client.requests import INLINE, SMALL_BYTES_MAX, Buffer
from naiad.client.tensors import Array, array_of
from naiad.protocol.messages import InferAnswer, Parameters, Tensor
from naiad.shm.session_memory import on_device


class Output(NamedTuple):
    """One output as bytes in C order."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    data: memoryview


RawOutput = tuple[str, str, tuple[int, ...], memoryview | None]
"""(name, datatype, shape, bytes)."""


class Placed(Protocol):
    """Where outputs lie that are in shared memory: gives views that keep alive what they need."""

    def view(self, tensor: Tensor) -> memoryview:
        """The output's bytes."""

    def array(self, tensor: Tensor) -> Array:
        """The output as an array; not asked for BYTES."""

    def is_on_device(self, tensor: Tensor) -> bool:
        """Whether it lies in GPU memory: it has no bytes here, and its array is one there."""


class Copied:
    """Outputs that were in shared memory, copied out of it."""

    def __init__(self, placed: Placed, tensors: tuple[Tensor, ...]) -> None:
        self._views: dict[str, memoryview] = {}
        self._on_device: dict[str, Array] = {}
        for tensor in tensors:
            if tensor[3] == INLINE:
                continue
            if placed.is_on_device(tensor):
                self._on_device[tensor[0]] = placed.array(tensor)
            else:
                self._views[tensor[0]] = memoryview(bytes(placed.view(tensor)))

    def is_on_device(self, tensor: Tensor) -> bool:
        return tensor[0] in self._on_device

    def view(self, tensor: Tensor) -> memoryview:
        if self.is_on_device(tensor):
            raise on_device(tensor)
        return self._views[tensor[0]]

    def array(self, tensor: Tensor) -> Array:
        if self.is_on_device(tensor):
            return self._on_device[tensor[0]]
        return array_of(tensor[1], tensor[2], self._views[tensor[0]], copy=False)


class InferResult:
    """The answer to one request. `result["name"]` is an array; `outputs` are the raw ones.

    `answer` is what the broker said, for whoever passes it on.
    """

    __slots__ = ("_arrays", "_frames", "_placed", "answer")

    def __init__(
        self, answer: InferAnswer, frames: Sequence[Any], placed: Placed | None = None
    ) -> None:
        self.answer = answer
        self._frames = frames
        self._placed = placed
        self._arrays: dict[str, Array] | None = None

    @property
    def version(self) -> int:
        """Version of the model that ran."""
        return self.answer.version

    @property
    def parameters(self) -> Parameters:
        """What the model said beside its outputs."""
        return self.answer.parameters

    @property
    def _tensors(self) -> tuple[Tensor, ...]:
        return self.answer.outputs

    @property
    def names(self) -> tuple[str, ...]:
        return tuple([tensor[0] for tensor in self._tensors])

    @property
    def outputs(self) -> tuple[Output, ...]:
        """Every output as bytes, without a copy and without NumPy; not for those in GPU memory."""
        return tuple(
            [
                Output(tensor[0], tensor[1], tensor[2], self._data(tensor))
                for tensor in self._tensors
            ]
        )

    def raw(self, elsewhere: Container[str] = ()) -> list[RawOutput]:
        """As `outputs`, without data for those `elsewhere`: in regions this client cannot read."""
        rows: list[RawOutput] = []
        for tensor in self.answer.outputs:
            name, datatype, shape, _, _, _, _ = tensor
            data = None if name in elsewhere else self._data(tensor)
            rows.append((name, datatype, shape, data))
        return rows

    def as_numpy(self, name: str) -> Array:
        """One output as an array: BYTES as objects, BF16 as its bits (see `from_bfloat16`).

        Arrays of small outputs may be written to; larger ones may be read-only views of what
        came, which they keep alive. What was written to a CudaRegion is a DeviceArray: give it to
        `torch.from_dlpack` or `cupy.asarray`. Raises KeyError when the answer has no such output.
        """
        arrays = self._arrays
        if arrays is None:
            arrays = self._arrays = {}
        found = arrays.get(name)
        if found is None:
            found = arrays[name] = self._array(self._tensor(name))
        return found

    def __getitem__(self, name: str) -> Array:
        return self.as_numpy(name)

    def __contains__(self, name: object) -> bool:
        return any(tensor[0] == name for tensor in self._tensors)

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    def __len__(self) -> int:
        return len(self._tensors)

    def __repr__(self) -> str:
        shown = ", ".join(
            f"{name}: {datatype} {list(shape)}" for name, datatype, shape, *_ in self._tensors
        )
        return f"<InferResult version {self.version}: {shown}>"

    def _tensor(self, name: str) -> Tensor:
        for tensor in self._tensors:
            if tensor[0] == name:
                return tensor
        raise KeyError(f"no output {name!r}; the answer has {list(self.names)}")

    def _data(self, tensor: Tensor) -> memoryview:
        _, _, _, place, region, offset, size = tensor
        if place == INLINE:
            return memoryview(self._frames[region])[offset : offset + size]
        assert self._placed is not None
        return self._placed.view(tensor)

    def _array(self, tensor: Tensor) -> Array:
        if tensor[3] != INLINE and tensor[1] != "BYTES":
            assert self._placed is not None
            return self._placed.array(tensor)
        data: Buffer = self._data(tensor)
        # A small array must not keep the frame that it shares with others' answers alive.
        return array_of(tensor[1], tensor[2], data, copy=tensor[6] <= SMALL_BYTES_MAX)
