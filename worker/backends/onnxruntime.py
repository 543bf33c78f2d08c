"""The ONNX Runtime backend: a batch is joined along its first dimension, run once and cut again.

A request that is alone in its batch costs no copy: the engine reads its inputs where they lie, and
writes large outputs where the client wants them. Owns the session and the buffers that batches are
gathered in; keeps no reference to a client's memory after a run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from onnxruntime import OrtValue
from onnxruntime import __version__ as onnxruntime_version

from naiad.config.model import ModelConfig
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
from naiad.worker.backends.gather import GatherBuffers, packed_bytes
from naiad.worker.backends.onnx_values import run_as_values, text_array
from naiad.worker.backends.trial import probe_outputs, warm_up

if TYPE_CHECKING:
    from naiad.worker.backends.base import Array

DIRECT_BYTES_MIN: Final = 1024 * 1024
"""Binding outputs to the client's memory costs about as much as copying this many bytes."""

BF16_NEEDS: Final = "ortvalue_from_numpy_with_onnx_type"

DIRECT_ALIGNMENT: Final = 64
"""What ONNX Runtime's own allocator gives its kernels."""


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
        self._declared: list[DeclaredTensor] = []
        self._batches = False
        self._shapes_differ = False
        self._datatypes: dict[str, str] = {}
        self._needs_values = False
        self._scalar_inputs: frozenset[str] = frozenset()
        self._outputs: dict[str, OutputSlot] = {}
        self._buffers = GatherBuffers(0)

    def load(self, instance: ModelInstance) -> ModelConfig:
        """Open the session and complete the config from what the model file declares."""
        config = instance.config
        self._session = session = onnx_session.open_session(instance)
        self._run_options = onnx_session.run_options(config)
        self._declared = inputs = onnx_session.declared_inputs(session)
        outputs = onnx_session.declared_outputs(session, [output.name for output in config.outputs])
        self._datatypes = {tensor.name: tensor.datatype for tensor in (*inputs, *outputs)}
        self._needs_values = "BF16" in self._datatypes.values()
        if self._needs_values and not hasattr(OrtValue, BF16_NEEDS):
            raise onnx_session.load_error(
                "the model has BF16 tensors, which the installed onnxruntime "
                f"({onnxruntime_version}) cannot take from Python; install 1.20 or newer"
            )
        told = {output.name for output in config.outputs if output.dims}
        if any(o.dims is None and o.datatype and o.name not in told for o in outputs):
            outputs = probe_outputs(inputs, outputs, self._run)
        self._config = config = complete_config(
            config, inputs, outputs, may_batch=instance.auto_complete
        )
        self._batches = config.max_batch_size > 0
        self._shapes_differ = any(
            tensor.optional or -1 in tensor.model_dims for tensor in config.inputs
        )
        ranks = {tensor.name: len(tensor.dims or ()) for tensor in inputs}
        self._scalar_inputs = frozenset(
            tensor.name
            for tensor in config.inputs
            if ranks[tensor.name] == 0 and config.full_shape(tensor) == (1,)
        )
        self._outputs = {
            tensor.name: OutputSlot(tensor.data_type, tensor.model_dims, tensor.name in ranks)
            for tensor in config.outputs
        }
        self._buffers = GatherBuffers(config.max_batch_size)
        return config

    def warm_up(self) -> None:
        """A run of one and, where cheap, one of max_batch_size."""
        warm_up(self._config, self._declared, self._run)

    def execute(self, batch: Sequence[ModelRequest]) -> Sequence[ModelResponse | NaiadError]:
        """Requests whose inputs and shapes agree run together, the others one after the other."""
        if len(batch) == 1:
            return [self._execute_one(batch[0])]
        groups = self._groups(batch)
        if len(groups) == 1:
            return self._execute_together(batch)
        answers: dict[int, ModelResponse | NaiadError] = {}
        for group in groups:
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

    def _groups(self, batch: Sequence[ModelRequest]) -> list[list[int]]:
        """Indexes of requests that can be joined; without batching each is alone."""
        if not self._batches or not self._config.inputs:
            return [[index] for index in range(len(batch))]
        if not self._shapes_differ:
            return [list(range(len(batch)))]
        groups: list[list[int]] = []
        for index, request in enumerate(batch):
            for group in groups:
                if _alike(batch[group[0]].inputs, request.inputs):
                    group.append(index)
                    break
            else:
                groups.append([index])
        return groups

    def _execute_one(self, request: ModelRequest) -> ModelResponse:
        """Run on the request's own memory."""
        names = request.requested_outputs
        feeds = {name: self._feed(name, tensor.array()) for name, tensor in request.inputs.items()}
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
        first = requests[0]
        lead = next(iter(first.inputs))
        counts = [request.inputs[lead].shape[0] for request in requests]
        total = sum(counts)
        feeds = {
            name: self._feed(
                name, self._buffers.joined([request.inputs[name] for request in requests], total)
            )
            for name in first.inputs
        }
        names = first.requested_outputs
        if any(request.requested_outputs != names for request in requests):
            wanted = {name for request in requests for name in request.requested_outputs}
            names = tuple(name for name in self._outputs if name in wanted)
        joined = {
            name: self._rows(name, array, total)
            for name, array in zip(names, self._run(names, feeds), strict=True)
        }
        responses, begin = [], 0
        for request, count in zip(requests, counts, strict=True):
            end = begin + count
            outputs = []
            for name in request.requested_outputs:
                datatype, tail, rows, row_size = joined[name]
                if row_size is None:
                    output = OutputTensor(name, datatype, (count, *tail), rows[begin:end])
                else:
                    content = rows[begin * row_size : end * row_size]
                    output = OutputTensor(name, datatype, (count, *tail), None, content)
                outputs.append(output)
            responses.append(ModelResponse(outputs))
            begin = end
        return responses

    def _rows(
        self, name: str, array: Array, total: int
    ) -> tuple[str, tuple[int, ...], Any, int | None]:
        """(datatype, dims of a row, all rows as bytes, bytes of a row); BYTES stay an array."""
        shape = array.shape
        if shape[:1] != (total,):
            raise ModelError(
                f"output {name!r}: expected the batch of {total} as first dimension, "
                f"got {list(shape)}",
                code=Code.MODEL_OUTPUT_INVALID,
            )
        slot = self._outputs[name]
        if slot.datatype == "BYTES":
            return slot.datatype, shape[1:], array, None
        if slot.is_input:
            array = array.copy()
        return slot.datatype, shape[1:], packed_bytes(array), array.nbytes // total

    def _feed(self, name: str, array: Array) -> Array:
        if self._datatypes[name] == "BYTES":
            array = text_array(name, array)
        return array.reshape(()) if name in self._scalar_inputs else array

    def _run(self, names: Sequence[str], feeds: Mapping[str, Array]) -> list[Array]:
        try:
            if self._needs_values:
                types = self._datatypes
                return run_as_values(self._session, names, feeds, types, self._run_options)
            arrays: list[Array] = self._session.run(names, feeds, self._run_options)
        except Exception as error:
            raise ModelError(f"ONNX Runtime: {onnx_session.reason(error)}") from error
        return arrays

    def _output(self, name: str, array: Array) -> OutputTensor:
        slot = self._outputs[name]
        if slot.is_input:
            array = array.copy()
        shape = array.shape
        if not shape and slot.dims == (1,):
            shape = slot.dims  # a config cannot say "scalar": its dims are [1]
        if slot.datatype == "BYTES":
            return OutputTensor(name, slot.datatype, shape, array.reshape(shape))
        return OutputTensor(name, slot.datatype, shape, None, packed_bytes(array))

    def _targets(self, request: ModelRequest) -> dict[str, Array]:
        """The client's memory as arrays, for outputs whose shape is known before the run."""
        targets: dict[str, Array] = {}
        rows = next(iter(request.inputs.values())).shape[:1] if request.inputs else ()
        for name, place in request.places.items():
            slot = self._outputs[name]
            dtype = NUMPY_NAME.get(slot.datatype)
            if dtype is None or slot.is_input or -1 in slot.dims:
                continue
            shape = (*rows, *slot.dims) if self._batches else slot.dims
            size = tensor_bytes(slot.datatype, shape)
            if size and size <= place.nbytes and _address(place) % DIRECT_ALIGNMENT == 0:
                targets[name] = place[:size].view(dtype).reshape(shape)
        return targets

    def _run_into(
        self, targets: Mapping[str, Array], names: Sequence[str], feeds: Mapping[str, Array]
    ) -> ModelResponse | None:
        """Run with outputs written to `targets`; None when it fails (a plain run says why)."""
        binding = self._session.io_binding()
        try:
            for name, array in feeds.items():
                binding.bind_cpu_input(name, array)
            for name in names:
                if name in targets:
                    value = OrtValue.ortvalue_from_numpy(targets[name])
                    binding.bind_ortvalue_output(name, value)
                else:
                    binding.bind_output(name)
            self._session.run_with_iobinding(binding, self._run_options)
            values = binding.get_outputs() if len(targets) < len(names) else ()
        except Exception:
            return None
        outputs = []
        for index, name in enumerate(names):
            if name in targets:
                target = targets[name]
                datatype = self._outputs[name].datatype
                output = OutputTensor(name, datatype, target.shape, None, packed_bytes(target))
            else:
                output = self._output(name, values[index].numpy())
            outputs.append(output)
        return ModelResponse(outputs)


def _address(array: Array) -> int:
    address: int = array.__array_interface__["data"][0]
    return address


def _alike(first: Mapping[str, InputTensor], other: Mapping[str, InputTensor]) -> bool:
    """Whether two requests have the same inputs, of the same shapes but for the batch."""
    return first.keys() == other.keys() and all(
        tensor.shape[1:] == other[name].shape[1:] for name, tensor in first.items()
    )
