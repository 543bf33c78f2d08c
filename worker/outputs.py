"""What a model may return: its outputs checked against its config, one request at a time. Pure.

Triton prunes or passes on what does not fit; here it is an error that names the output and both
values, because a silently wrong tensor is found much later and elsewhere.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from naiad.config.model import ModelConfig, TensorConfig
from naiad.protocol.checks import INT64_MAX, RANK_MAX, UINT64_MAX
from naiad.protocol.datatypes import ITEM_BYTES, tensor_bytes
from naiad.protocol.errors import Code, ModelError
from naiad.protocol.messages import PARAMETERS_MAX, OutputRequest, Parameters
from naiad.worker.backends.base import OutputTensor
from naiad.worker.shapes import Shape, fits, reshaped

CACHED_SHAPES_MAX: Final = 1024
PARAMETERS_BYTES_MAX: Final = 8 * 1024
"""Of all names and texts among the parameters of one response; large texts belong into outputs."""


class OutputRules:
    """The outputs of one model."""

    def __init__(self, config: ModelConfig) -> None:
        self.model = config.name
        self.names = tuple(tensor.name for tensor in config.outputs)
        self._tensors: dict[str, TensorConfig] = {tensor.name: tensor for tensor in config.outputs}
        self._batched = config.max_batch_size > 0
        self.shape_tensors = frozenset(one.name for one in config.inputs if one.is_shape_tensor)
        """Inputs whose first dimension is no batch."""
        self._whole = {
            one.name: config.sent_shape(one) for one in config.outputs if one.is_shape_tensor
        }
        """Shapes of outputs whose first dimension is none either."""
        self.allowed: dict[tuple[str, str, Shape, int], tuple[Shape, int | None]] = {}
        """What `check` allowed, for a look-up without a call."""

    def wanted(self, requested: tuple[OutputRequest, ...]) -> tuple[str, ...]:
        """Names of the outputs to return, in the model's order; none requested means all."""
        if not requested:
            return self.names
        asked = {output.name for output in requested}
        return tuple([name for name in self.names if name in asked])

    def select(
        self, outputs: Sequence[OutputTensor], wanted: tuple[str, ...]
    ) -> list[OutputTensor]:
        """The wanted outputs in order.

        Raises ModelError for one that is missing, given twice or not in the config.
        """
        by_name = {output.name: output for output in outputs}
        if len(by_name) != len(outputs):
            names = [output.name for output in outputs]
            raise self._invalid(f"expected each output once, got {names}")
        try:
            found = [by_name[name] for name in wanted]
        except KeyError as missing:
            raise self._invalid(
                f"expected output {missing.args[0]!r}, got only {sorted(by_name)}"
            ) from None
        if len(by_name) != len(found):
            for name in by_name:
                if name not in self._tensors:
                    raise self._invalid(
                        f"output {name!r} is not in the configuration, which has "
                        f"{', '.join(self.names)}"
                    )
        return found

    def check(self, output: OutputTensor, batch_size: int) -> tuple[Shape, int | None]:
        """The shape to answer with, and the size in bytes (None for BYTES).

        `batch_size` is the request's first dimension, not looked at when the model does not batch.
        Raises ModelError when datatype or shape is not what the config says.
        """
        if len(self.allowed) >= CACHED_SHAPES_MAX:
            self.allowed.clear()
        shape = _integers(output.shape)
        allowed = self._checked(output, shape, batch_size)
        self.allowed[(output.name, output.datatype, shape, batch_size)] = allowed
        return allowed

    def _checked(
        self, output: OutputTensor, shape: Shape, batch_size: int
    ) -> tuple[Shape, int | None]:
        tensor = self._tensors[output.name]
        datatype = tensor.data_type or output.datatype
        whole = self._whole.get(output.name)
        lead: Shape = (batch_size,) if self._batched and whole is None else ()
        dims = lead + tensor.model_dims if whole is None else whole
        if output.datatype != datatype or datatype not in ITEM_BYTES or not fits(shape, dims):
            raise self._invalid(
                f"output {output.name!r}: expected {datatype} {list(dims)}, "
                f"got {output.datatype} {list(shape)}"
            )
        if len(shape) > RANK_MAX or max(shape, default=0) > INT64_MAX:
            raise self._invalid(
                f"output {output.name!r}: expected at most {RANK_MAX} dimensions of 64-bit "
                f"integers, got {len(shape)} of up to {max(shape)}"
            )
        answered = shape
        if whole is None:
            answered = lead + reshaped(shape[len(lead) :], tensor.model_dims, tensor.dims)
        return answered, tensor_bytes(datatype, shape)

    def wrong_size(self, output: OutputTensor, expected: int, got: int) -> ModelError:
        return self._invalid(
            f"output {output.name!r}: expected {expected} bytes for {output.datatype} "
            f"{list(output.shape)}, got {got}"
        )

    def not_packable(self, output: OutputTensor, fault: Exception) -> ModelError:
        return self._invalid(f"output {output.name!r} of datatype {output.datatype}: {fault}")

    def wrong_count(self, expected: int, got: int) -> ModelError:
        return self._invalid(f"expected {expected} responses, one for each request, got {got}")

    def not_a_response(self, got: str) -> ModelError:
        return self._invalid(f"expected a response made of output tensors, got {got}")

    def parameters(self, given: Mapping[Any, Any]) -> Parameters:
        """The parameters of a response. Raises ModelError for what no message can carry."""
        checked: Parameters = {}
        size_bytes = 0
        for key, value in given.items():
            if not isinstance(key, str) or not isinstance(value, str | bool | int | float):
                raise self._invalid(
                    f"response parameter {key!r}: expected a string, integer, float or boolean, "
                    f"got {type(value).__name__}"
                )
            if isinstance(value, int) and not -INT64_MAX <= value <= UINT64_MAX:
                raise self._invalid(
                    f"response parameter {key!r}: expected an integer of 64 bits, got one of "
                    f"{value.bit_length()}"
                )
            size_bytes += self._text_bytes(key, key)
            if isinstance(value, str):
                size_bytes += self._text_bytes(key, value)
            checked[key] = value
        if len(checked) > PARAMETERS_MAX:
            raise self._invalid(
                f"expected at most {PARAMETERS_MAX} response parameters, got {len(checked)}"
            )
        if size_bytes > PARAMETERS_BYTES_MAX:
            raise self._invalid(
                f"expected at most {PARAMETERS_BYTES_MAX} bytes of response parameters, got "
                f"{size_bytes}; return large texts as an output"
            )
        return checked

    def _text_bytes(self, key: str, text: str) -> int:
        try:
            return len(text.encode())
        except UnicodeEncodeError as fault:
            raise self._invalid(
                f"response parameter {key!r}: expected a text that UTF-8 can hold, got {fault}"
            ) from fault

    def _invalid(self, text: str) -> ModelError:
        return ModelError(f"model {self.model!r}: {text}", code=Code.MODEL_OUTPUT_INVALID)


def _integers(shape: Sequence[int]) -> Shape:
    return tuple([int(size) for size in shape])
