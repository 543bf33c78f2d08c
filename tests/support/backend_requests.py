"""Requests for a backend without a broker or a worker's loop, and its answers checked.

Arrays become packed bytes and back, as they travel; written apart from the worker's own
conversions, so that both can be wrong only in different ways.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from naiad.config.model import ModelConfig, TensorConfig
from naiad.protocol.datatypes import NUMPY_NAME
from naiad.protocol.errors import NaiadError
from naiad.worker.backends.base import (
    Backend,
    ModelInstance,
    ModelRequest,
    ModelResponse,
    OutputTensor,
)

Array = NDArray[Any]
Shape = tuple[int, ...]
Given = Array | tuple[str, Array]
"""An array, or ("BF16", its bits as uint16): a datatype that the array cannot tell."""

_DATATYPE = {numpy_name: datatype for datatype, numpy_name in NUMPY_NAME.items()}


@dataclass(slots=True)
class PackedInput:
    """An InputTensor over read-only bytes, as shared memory or a message gives them."""

    name: str
    datatype: str
    shape: Shape
    buffer: memoryview

    def array(self) -> Array:
        return unpacked(self.datatype, self.shape, self.buffer)


def instance(
    directory: Path, config: Mapping[str, Any], *, kind: str = "KIND_CPU", threads: int = 1
) -> ModelInstance:
    """Instance 0 of version 1 of the model in `directory`."""
    name = directory.name
    model = ModelConfig.from_json({"name": name, **config})
    return ModelInstance(name, 1, f"{name}_0", str(directory), kind, 0, threads, model)


class Served:
    """A loaded backend, asked with arrays."""

    def __init__(self, backend: Backend, of: ModelInstance) -> None:
        self.backend = backend
        self.config = backend.load(of)
        self.backend.warm_up()

    def request(
        self,
        inputs: Mapping[str, Given],
        *,
        outputs: Sequence[str] = (),
        places: Mapping[str, Array] | None = None,
        **fields: Any,
    ) -> ModelRequest:
        """A request with these inputs, in the shapes in which clients send them."""
        configured = {tensor.name: tensor for tensor in self.config.inputs}
        tensors: dict[str, Any] = {}
        for name, given in inputs.items():
            datatype, array = given if isinstance(given, tuple) else (datatype_of(given), given)
            shape = self._model_shape(configured[name], array.shape)
            buffer = memoryview(packed(datatype, array))
            tensors[name] = PackedInput(name, datatype, shape, buffer)
        label = fields.pop("label", "")
        names = tuple(outputs) or tuple(output.name for output in self.config.outputs)
        return ModelRequest(label, tensors, names, dict(places or {}), **fields)

    def answers(self, *requests: ModelRequest) -> list[Any]:
        """Per request its outputs by name as arrays, or its error."""
        responses = self.backend.execute(requests)
        assert len(responses) == len(requests)
        return [
            self._outputs(request, response)
            for request, response in zip(requests, responses, strict=True)
        ]

    def ask(self, inputs: Mapping[str, Given], **fields: Any) -> dict[str, Array]:
        """The outputs of one request that must not fail."""
        answer = self.answers(self.request(inputs, **fields))[0]
        assert isinstance(answer, dict), answer
        return answer

    def _outputs(self, request: ModelRequest, response: ModelResponse | NaiadError) -> Any:
        if isinstance(response, NaiadError):
            return response
        by_name = {output.name: output for output in response.outputs}
        assert len(by_name) == len(response.outputs)
        rows = next((t.shape[0] for t in request.inputs.values() if t.shape), 0)
        return {name: self._checked(by_name[name], rows) for name in request.requested_outputs}

    def _checked(self, output: OutputTensor, rows: int) -> Array:
        """The output as a client gets it, after the checks that the worker's loop makes."""
        tensor = next(t for t in self.config.outputs if t.name == output.name)
        lead = (rows,) if self.config.max_batch_size > 0 else ()
        dims = (*lead, *tensor.model_dims)
        assert output.datatype == tensor.data_type
        assert len(output.shape) == len(dims), (output.shape, dims)
        assert all(want in (-1, got) for want, got in zip(dims, output.shape, strict=True))
        content = output.buffer
        if content is None:
            assert output.array is not None
            assert output.array.shape == output.shape
            content = packed(output.datatype, output.array)
        shape = tuple(output.shape)
        found = unpacked(output.datatype, shape, memoryview(bytes(content)))
        return found.reshape(lead + carried(shape[len(lead) :], dims[len(lead) :], tensor))

    def _model_shape(self, tensor: TensorConfig, shape: Shape) -> Shape:
        """What the worker's loop makes of a client's shape when the config has a reshape."""
        if tensor.reshape is None:
            return shape
        lead = shape[:1] if self.config.max_batch_size > 0 else ()
        free = iter([s for s, d in zip(shape[len(lead) :], tensor.dims, strict=True) if d == -1])
        return lead + tuple(next(free) if d == -1 else d for d in tensor.reshape)


def carried(shape: Shape, dims: Shape, tensor: TensorConfig) -> Shape:
    """A result's shape in the dims that clients see: reshape undone."""
    free = iter([size for size, want in zip(shape, dims, strict=True) if want == -1])
    return tuple(next(free) if want == -1 else want for want in tensor.dims)


def packed(datatype: str, array: Array) -> bytes:
    """The bytes that travel."""
    if datatype != "BYTES":
        assert array.dtype.name == NUMPY_NAME.get(datatype, "uint16"), (datatype, array.dtype)
        return array.tobytes()
    elements = [e.encode() if isinstance(e, str) else e for e in array.ravel().tolist()]
    return b"".join(struct.pack("<I", len(element)) + element for element in elements)


def unpacked(datatype: str, shape: Shape, content: memoryview) -> Array:
    """A read-only array of the bytes that travelled."""
    if datatype != "BYTES":
        dtype = NUMPY_NAME.get(datatype, "uint16")
        return np.frombuffer(bytes(content), dtype=dtype).reshape(shape)
    elements, offset = [], 0
    while offset < len(content):
        (length,) = struct.unpack_from("<I", content, offset)
        elements.append(bytes(content[offset + 4 : offset + 4 + length]))
        offset += 4 + length
    return objects(elements, shape)


def datatype_of(array: Array) -> str:
    return "BYTES" if array.dtype.kind in "OSU" else _DATATYPE[array.dtype.name]


def objects(elements: Sequence[bytes | str], shape: Shape | None = None) -> Array:
    """An object array of exactly these elements."""
    array = np.empty(len(elements), dtype=np.object_)
    array[:] = elements
    return array if shape is None else array.reshape(shape)


def place(size_bytes: int) -> Array:
    """Writable client memory of exactly this size, aligned as regions are."""
    room = np.zeros(size_bytes + 64, dtype=np.uint8)
    start = -room.ctypes.data % 64
    return room[start : start + size_bytes]
