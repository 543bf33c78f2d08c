"""What a model version accepts, compiled once from its config, and the check of each request.

Order and texts are Triton's (its request validation), with detail added after them. Everything is
checked here because any peer may send anything: workers and models see only what passed.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from naiad.config.model import ModelConfig, TensorConfig
from naiad.protocol.datatypes import ITEM_BYTES, LENGTH_PREFIX_BYTES
from naiad.protocol.errors import RequestError
from naiad.protocol.messages import InferRequest, OutputRequest, Place, Tensor

_BATCH_NOTE: Final = (
    " NOTE: Setting a non-zero max_batch_size in the model config requires a batch dimension to be"
    " prepended to each input shape. If you want to specify the full shape including the batch dim"
    " in your input dims config, try setting max_batch_size to zero. See the model configuration"
    " docs for more info on max_batch_size."
)
_AUTO: Final = int(Place.AUTO)
HEADER_BYTES: Final = 100
TENSOR_HEADER_BYTES: Final = 60
DIM_HEADER_BYTES: Final = 9
"""Generous sizes of the parts of a request in a msgpack header."""


class InputSpec(NamedTuple):
    """`shape` is what clients send, -1 for any size; `varies` means it decides the batch key;
    `has_batch` that its first dimension is the batch."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    item_bytes: int
    optional: bool
    varies: bool
    has_batch: bool


class Signature:
    """Inputs, outputs and batch limit of one model version."""

    __slots__ = (
        "_keyed",
        "_optional",
        "_output_names",
        "header_bytes",
        "inputs",
        "model",
        "outputs",
        "required",
        "rows_max",
    )

    def __init__(self, config: ModelConfig) -> None:
        self.model = config.name
        self.rows_max = config.max_batch_size
        self.inputs = {tensor.name: _spec(config, tensor) for tensor in config.inputs}
        self._output_names = tuple([tensor.name for tensor in config.outputs])
        self.outputs = frozenset(self._output_names)
        self.required = sum(1 for spec in self.inputs.values() if not spec.optional)
        tensors = (*config.inputs, *config.outputs)
        self.header_bytes = HEADER_BYTES + sum(
            TENSOR_HEADER_BYTES + len(one.name.encode()) + DIM_HEADER_BYTES * len(one.dims)
            for one in tensors
        )
        """At most this much of a batch's header is a request without texts of its own."""
        self._optional = self.required != len(self.inputs)
        self._keyed = self._optional or any(spec.varies for spec in self.inputs.values())

    def check(self, request: InferRequest) -> tuple[int, object]:
        """(rows, batch key) of a request.

        Rows is dim 0 of its inputs (1 without batching). Requests with equal keys may share a
        batch: same shapes where the config leaves them open, same set of inputs.

        Raises RequestError with Triton's text for the first fault in Triton's order.
        """
        inputs = request.inputs
        if request.outputs:
            self._check_outputs(request)
        count = len(inputs)
        specs = self.inputs
        if count != self.required and not self.required <= count <= len(specs):
            raise self._wrong_count(inputs)
        if count > 1:
            _check_unique([tensor[0] for tensor in inputs], "input")
        rows = -1
        rows_max = self.rows_max
        key: list[tuple[str, tuple[int, ...]]] | None = [] if self._keyed else None
        for tensor in inputs:
            name, datatype, shape, _, _, _, size = tensor
            spec = specs.get(name)
            if spec is None:
                raise RequestError(f"unexpected inference input '{name}' for model '{self.model}'")
            expected = spec[2]
            if spec[6]:
                if not shape:
                    raise RequestError(
                        f"input '{name}' has no shape but model requires batch dimension for"
                        f" '{self.model}'"
                    )
                if rows != shape[0]:
                    if rows != -1:
                        raise RequestError(
                            f"input '{name}' batch size does not match other inputs for"
                            f" '{self.model}': got {shape[0]} and {rows}"
                        )
                    rows = shape[0]
                    if rows > rows_max:
                        raise RequestError(
                            f"inference request batch-size must be <= {rows_max} for"
                            f" '{self.model}', got {rows}; send it in several requests"
                        )
            if datatype != spec[1]:
                shown = datatype if datatype in ITEM_BYTES else f"<invalid> ({datatype})"
                raise RequestError(
                    f"inference input '{name}' data-type is '{shown}', but model"
                    f" '{self.model}' expects '{spec[1]}'"
                )
            if len(shape) != len(expected):
                raise self._wrong_shape(spec, shape)
            count = 1
            for index, dim in enumerate(shape):
                wanted = expected[index]
                if dim < 0 or (dim != wanted and wanted >= 0):
                    raise self._wrong_shape(spec, shape)
                count *= dim
            item_bytes = spec[3]
            if item_bytes:
                if size != count * item_bytes:
                    raise self._wrong_size(name, count * item_bytes, size)
            elif size < count * LENGTH_PREFIX_BYTES or (count == 0 and size):
                raise self._wrong_size(name, count * LENGTH_PREFIX_BYTES, size, " or more")
            if key is not None:
                if spec[5]:
                    key.append((name, shape[1:] if spec[6] else shape))
                elif self._optional:
                    key.append((name, ()))
        if rows == 0:
            raise RequestError(
                f"batch size 0 in a request for '{self.model}': expected 1 to {rows_max} in the"
                " first dimension of each input"
            )
        if key is None:
            return (rows if rows > 0 else 1), None
        if len(key) > 1:
            key.sort()  # by name: clients may list the same inputs in any order
        return (rows if rows > 0 else 1), tuple(key)

    def shortest(self, outputs: tuple[OutputRequest, ...]) -> tuple[OutputRequest, ...]:
        """Nothing, if that means the same: all outputs in the model's order, in any place."""
        names = self._output_names
        if len(outputs) != len(names):
            return outputs
        for index, output in enumerate(outputs):
            if output[1] != _AUTO or output[0] != names[index]:
                return outputs
        return ()

    def _check_outputs(self, request: InferRequest) -> None:
        names = [output[0] for output in request.outputs]
        if len(names) > 1:
            _check_unique(names, "requested output")
        for name in names:
            if name not in self.outputs:
                raise RequestError(
                    f"unexpected inference output '{name}' for model '{self.model}'; it has"
                    f" {sorted(self.outputs)}"
                )

    def _wrong_count(self, inputs: tuple[Tensor, ...]) -> RequestError:
        got = [tensor.name for tensor in inputs]
        _check_unique(got, "input")
        total = len(self.inputs)
        missing = [s.name for s in self.inputs.values() if not s.optional and s.name not in got]
        if self._optional:
            text = f"expected number of inputs between {self.required} and {total}"
        else:
            text = f"expected {total} inputs"
        text += f" but got {len(got)} inputs for model '{self.model}'. Got input(s) {got}"
        if missing:
            text += (
                f", but missing required input(s) {missing}. Please provide all required input(s)."
            )
        else:
            text += f", but the model has only {sorted(self.inputs)}"
        return RequestError(text)

    def _wrong_shape(self, spec: InputSpec, shape: tuple[int, ...]) -> RequestError:
        if any(dim < 0 for dim in shape):
            return RequestError(
                f"All input dimensions should be specified for input '{spec.name}' for model"
                f" '{self.model}', got {_show(shape)}"
            )
        note = _BATCH_NOTE if self.rows_max else ""
        return RequestError(
            f"unexpected shape for input '{spec.name}' for model '{self.model}'. Expected"
            f" {_show(spec.shape)}, got {_show(shape)}.{note}"
        )

    def _wrong_size(self, name: str, expected: int, got: int, more: str = "") -> RequestError:
        return RequestError(
            f"input byte size mismatch for input '{name}' for model '{self.model}'. Expected"
            f" {expected}{more}, got {got}"
        )


def _spec(config: ModelConfig, tensor: TensorConfig) -> InputSpec:
    if tensor.data_type not in ITEM_BYTES:
        raise RequestError(f"input '{tensor.name}' of model '{config.name}' has no data type")
    return InputSpec(
        tensor.name,
        tensor.data_type,
        config.sent_shape(tensor),
        ITEM_BYTES[tensor.data_type],
        tensor.optional,
        -1 in tensor.dims and not tensor.allow_ragged_batch,
        config.max_batch_size > 0 and not tensor.is_shape_tensor,
    )


def _check_unique(names: list[str], what: str) -> None:
    if len(set(names)) != len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise RequestError(f"{what} '{twice}' already exists in request")


def _show(shape: tuple[int, ...]) -> str:
    return "[" + ",".join(str(dim) for dim in shape) + "]"
