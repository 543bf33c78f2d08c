"""The ONNX Runtime backend: a batch is joined along its first dimension, run once and cut again.

A request that is alone in its batch costs no copy: the engine reads its inputs where they lie, and
writes large outputs where the client wants them. Owns the session and the buffers that batches are
gathered in; keeps no reference to a client's memory after a run.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from time import monotonic
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from naiad.config.model import ModelConfig, TensorConfig
from naiad.protocol.datatypes import NUMPY_NAME, tensor_bytes
from naiad.protocol.errors import Code, ModelError, NaiadError
from naiad.worker.backends import onnx_session
from naiad.worker.backends.base import (
    InputTensor,
    ModelInstance,
    ModelRequest,
    ModelResponse,
    OutputTensor,
)
from naiad.worker.backends.completion import DeclaredTensor, complete_config
from naiad.worker.backends.onnx_values import run_as_values, text_array

if TYPE_CHECKING:
    from naiad.worker.backends.base import Array

DIRECT_BYTES_MIN: Final = 256 * 1024
"""Binding an output to the client's memory costs about 50 µs, copying this much as well."""

DIRECT_ALIGNMENT: Final = 64
"""What ONNX Runtime's own allocator gives its kernels."""

KEPT_BUFFER_BYTES_MAX: Final = 64 * 1024 * 1024
"""Per input. A larger batch is gathered in memory that is given back after the run."""

WARM_UP_SECONDS_MAX: Final = 0.25
"""A full batch of zeros is run at load only when it should take no longer."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class OutputSlot:
    """An output as it is answered. `dims` are the model's, the batch dimension left out."""

    datatype: str
    dims: tuple[int, ...]
    is_input: bool
    """The graph hands an input through: the result may lie in the buffer of that input."""


class OnnxRuntimeBackend:
    """One session; all calls on one thread."""

    def __init__(self) -> None:
        self._session: Any = None
        self._run_options: Any = None
        self._config = ModelConfig("")
        self._batches = False
        self._needs_values = False
        self._scalar_inputs: frozenset[str] = frozenset()
        self._outputs: dict[str, OutputSlot] = {}
        self._buffers: dict[str, Array] = {}

    def load(self, instance: ModelInstance) -> ModelConfig:
        """Open the session and complete the config from what the model file declares."""
        config = instance.config
        self._session = session = onnx_session.open_session(instance)
        self._run_options = onnx_session.run_options(config)
        inputs = onnx_session.declared_inputs(session)
        outputs = onnx_session.declared_outputs(session, [output.name for output in config.outputs])
        configured = {output.name for output in config.outputs if output.dims}
        if any(o.dims is None and o.datatype and o.name not in configured for o in outputs):
            outputs = self._probe(inputs, outputs)
        self._config = config = complete_config(config, inputs, outputs)
        self._batches = config.max_batch_size > 0
        ranks = {tensor.name: len(tensor.dims or ()) for tensor in inputs}
        self._scalar_inputs = frozenset(
            tensor.name
            for tensor in config.inputs
            if ranks[tensor.name] == 0 and len(config.full_shape(tensor)) == 1
        )
        names = set(ranks)
        self._outputs = {
            tensor.name: OutputSlot(tensor.data_type, tensor.model_dims, tensor.name in names)
            for tensor in config.outputs
        }
        self._needs_values = "BF16" in {t.data_type for t in (*config.inputs, *config.outputs)}
        return config

    def warm_up(self) -> None:
        """A run of one and, where cheap, one of max_batch_size; zeros, free dimensions 1."""
        started = monotonic()
        for size in (1, self._config.max_batch_size):
            if size > 1 and (monotonic() - started) * size > WARM_UP_SECONDS_MAX:
                break
            feeds = {
                tensor.name: zeros(tensor.data_type, self._shape(tensor, size))
                for tensor in self._config.inputs
                if not tensor.optional
            }
            try:
                self._run(list(self._outputs), feeds)
            except ModelError as error:
                # Not every model takes zeros, or 1 for every free dimension.
                _log.debug("%s: no warm-up: %s", self._config.name, error.message)
                break

    def execute(self, batch: Sequence[ModelRequest]) -> Sequence[ModelResponse | NaiadError]:
        """Requests whose inputs and shapes agree run together, the others one after the other."""
        if len(batch) == 1:
            return [self._execute_one(batch[0])]
        answers: dict[int, ModelResponse | NaiadError] = {}
        for group in self._groups(batch):
            if len(group) > 1:
                responses = self._execute_together([batch[index] for index in group])
                answers.update(zip(group, responses, strict=True))
                continue
            try:
                answers[group[0]] = self._execute_one(batch[group[0]])
            except NaiadError as error:
                answers[group[0]] = error
        return [answers[index] for index in range(len(batch))]

    def unload(self) -> None:
        """Let go of the session, and with it of the weights."""
        self._session = None
        self._buffers.clear()

    def _groups(self, batch: Sequence[ModelRequest]) -> list[list[int]]:
        """Indexes of requests that can be joined; without batching each is alone."""
        groups: list[list[int]] = []
        for index, request in enumerate(batch):
            for group in groups if self._batches and request.inputs else ():
                if _alike(batch[group[0]].inputs, request.inputs):
                    group.append(index)
                    break
            else:
                groups.append([index])
        return groups

    def _execute_one(self, request: ModelRequest) -> ModelResponse:
        """Run on the request's own memory."""
        names = request.requested_outputs
        feeds = {
            name: self._feed(tensor, tensor.array()) for name, tensor in request.inputs.items()
        }
        places = request.places
        if places and sum(place.nbytes for place in places.values()) >= DIRECT_BYTES_MIN:
            targets = self._targets(request)
            if targets and (response := self._run_into(targets, names, feeds)) is not None:
                return response
        arrays = self._run(names, feeds)
        return ModelResponse(
            [self._output(name, array) for name, array in zip(names, arrays, strict=True)]
        )

    def _execute_together(self, requests: Sequence[ModelRequest]) -> list[ModelResponse]:
        """Run requests joined along dimension 0; each gets its own rows of every output."""
        first = requests[0].inputs
        rows = [next(iter(request.inputs.values())).shape[0] for request in requests]
        total = sum(rows)
        feeds = {
            name: self._gathered([request.inputs[name] for request in requests], total)
            for name in first
        }
        wanted = {name for request in requests for name in request.requested_outputs}
        names = [name for name in self._outputs if name in wanted]
        arrays = dict(zip(names, self._run(names, feeds), strict=True))
        for name, array in arrays.items():
            if array.shape[:1] != (total,):
                raise ModelError(
                    f"output {name!r}: expected the batch of {total} as first dimension, "
                    f"got {list(array.shape)}",
                    code=Code.MODEL_OUTPUT_INVALID,
                )
        responses, begin = [], 0
        for request, count in zip(requests, rows, strict=True):
            end = begin + count
            outputs = [
                self._output(name, arrays[name][begin:end]) for name in request.requested_outputs
            ]
            responses.append(ModelResponse(outputs))
            begin = end
        return responses

    def _feed(self, tensor: InputTensor, array: Array) -> Array:
        if tensor.datatype == "BYTES":
            array = text_array(tensor.name, array)
        return array.reshape(()) if tensor.name in self._scalar_inputs else array

    def _gathered(self, tensors: Sequence[InputTensor], total: int) -> Array:
        """The tensors joined in a buffer that is used again for the next batch."""
        first = tensors[0]
        parts = [tensor.array() for tensor in tensors]
        if first.datatype == "BYTES":
            return self._feed(first, np.concatenate(parts))
        buffer = self._buffer(first.name, parts[0], total)
        return np.concatenate(parts, out=buffer)

    def _buffer(self, name: str, like: Array, total: int) -> Array:
        shape = (total, *like.shape[1:])
        row = like[:1].size
        buffer = self._buffers.get(name)
        if buffer is None or buffer.size < total * row:
            count = max(total, self._config.max_batch_size) * row
            if count * like.itemsize > KEPT_BUFFER_BYTES_MAX:
                return np.empty(shape, like.dtype)
            buffer = self._buffers[name] = np.empty(count, like.dtype)
        return buffer[: total * row].reshape(shape)

    def _run(self, names: Sequence[str], feeds: dict[str, Array]) -> list[Array]:
        try:
            if self._needs_values:
                datatypes = {tensor.name: tensor.data_type for tensor in self._config.inputs}
                return run_as_values(self._session, names, feeds, datatypes, self._run_options)
            arrays: list[Array] = self._session.run(names, feeds, self._run_options)
        except Exception as error:
            raise ModelError(f"ONNX Runtime: {onnx_session.reason(error)}") from error
        return arrays

    def _output(self, name: str, array: Array) -> OutputTensor:
        slot = self._outputs[name]
        if slot.is_input:
            array = array.copy()
        if array.ndim == 0 and slot.dims == (1,):
            array = array.reshape(1)  # a config cannot say "scalar": its dims are [1]
        return OutputTensor(name, slot.datatype, array.shape, array)

    def _targets(self, request: ModelRequest) -> dict[str, Array]:
        """The client's memory as arrays, for outputs whose shape is known before the run."""
        targets: dict[str, Array] = {}
        rows = next(iter(request.inputs.values())).shape[:1] if request.inputs else ()
        for name, place in request.places.items():
            slot = self._outputs.get(name)
            dtype = None if slot is None else NUMPY_NAME.get(slot.datatype)
            if slot is None or dtype is None or slot.is_input or -1 in slot.dims:
                continue
            shape = (*rows, *slot.dims) if self._batches else slot.dims
            size = tensor_bytes(slot.datatype, shape)
            if size and size <= place.nbytes and place.ctypes.data % DIRECT_ALIGNMENT == 0:
                targets[name] = place[:size].view(dtype).reshape(shape)
        return targets

    def _run_into(
        self, targets: dict[str, Array], names: Sequence[str], feeds: dict[str, Array]
    ) -> ModelResponse | None:
        """Run with outputs written to `targets`; None when it fails (a plain run says why)."""
        binding = self._session.io_binding()
        try:
            for name, array in feeds.items():
                binding.bind_cpu_input(name, array)
            for name in names:
                target = targets.get(name)
                if target is None:
                    binding.bind_output(name)
                    continue
                binding.bind_output(
                    name, "cpu", 0, target.dtype.type, target.shape, target.ctypes.data
                )
            self._session.run_with_iobinding(binding, self._run_options)
            values = binding.get_outputs()
        except Exception:
            return None
        outputs = []
        for name, value in zip(names, values, strict=True):
            target = targets.get(name)
            if target is None:
                outputs.append(self._output(name, value.numpy()))
                continue
            content = memoryview(target.reshape(-1).view(np.uint8))
            datatype = self._outputs[name].datatype
            outputs.append(OutputTensor(name, datatype, target.shape, buffer=content))
        return ModelResponse(outputs)

    def _shape(self, tensor: TensorConfig, rows: int) -> tuple[int, ...]:
        if tensor.name in self._scalar_inputs:
            return ()
        dims = tuple(1 if size == -1 else size for size in tensor.model_dims)
        return (rows, *dims) if self._batches else dims

    def _probe(
        self, inputs: Sequence[DeclaredTensor], outputs: Sequence[DeclaredTensor]
    ) -> list[DeclaredTensor]:
        """Outputs whose shape the file does not tell, with the number of dims a run gives."""
        names = [tensor.name for tensor in outputs if tensor.datatype]
        feeds = {
            tensor.name: zeros(
                tensor.datatype, tuple(1 if n == -1 else n for n in tensor.dims or ())
            )
            for tensor in inputs
            if not tensor.is_optional
        }
        try:
            arrays = self._session.run(names, feeds, self._run_options)
        except Exception:
            return list(outputs)  # complete_config asks for the dims by name
        ranks = {name: array.ndim for name, array in zip(names, arrays, strict=True)}
        return [
            replace(tensor, dims=(-1,) * ranks[tensor.name], is_probed=True)
            if tensor.dims is None and tensor.name in ranks
            else tensor
            for tensor in outputs
        ]


def _alike(first: dict[str, InputTensor], other: dict[str, InputTensor]) -> bool:
    """Whether two requests have the same inputs, of the same shapes but for the batch."""
    return first.keys() == other.keys() and all(
        tensor.shape[1:] == other[name].shape[1:] for name, tensor in first.items()
    )


def zeros(datatype: str, shape: tuple[int, ...]) -> Array:
    """Zeros, empty strings for BYTES, zero bits for BF16."""
    if datatype == "BYTES":
        return np.full(shape, "", dtype=np.object_)
    return np.zeros(shape, dtype=NUMPY_NAME.get(datatype, "uint16"))
