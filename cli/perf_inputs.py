"""What `naiad perf` sends: random inputs that fit a model, inline or placed in shared memory."""

from __future__ import annotations

import math
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from naiad.cli.exit_codes import ExitCode
from naiad.cli.failure import CommandFailed
from naiad.client import ClientRegion, InferInput, InferResult, OutputPlace, Prepared, prepare
from naiad.client.arguments import inputs_of, tail_of
from naiad.client.memory import SHARED_BYTES_MIN
from naiad.client.requests import checked
from naiad.client.tensors import to_bfloat16
from naiad.protocol.checks import RANK_MAX
from naiad.protocol.datatypes import NUMPY_NAME
from naiad.protocol.messages import OutputRequest, Place

Json = dict[str, Any]
Array = npt.NDArray[Any]

STRING_CHARS: Final = 8
INTEGER_MAX: Final = 100
ELEMENTS_MAX: Final = 2**31
"""Of one input; what memory there is decides below that."""
_ALIGNMENT: Final = 64


def random_inputs(metadata: Json, shapes: dict[str, tuple[int, ...]]) -> dict[str, Array]:
    """An array for every input of the model; dimensions that may vary are 1 unless given."""
    generator = np.random.default_rng(0)
    inputs = {}
    for tensor in metadata["inputs"]:
        name, datatype = tensor["name"], tensor["datatype"]
        shape = shapes.pop(name, tuple(max(1, dim) if dim < 0 else dim for dim in tensor["shape"]))
        if len(shape) > RANK_MAX or math.prod(shape) > ELEMENTS_MAX:
            raise CommandFailed(
                f"input {name}: shape {list(shape)!s:.200} is too large to make up; expected at "
                f"most {RANK_MAX} dimensions and {ELEMENTS_MAX} elements, see --shape",
                ExitCode.USAGE,
            )
        inputs[name] = _random_array(generator, datatype, shape)
    if shapes:
        known = ", ".join(inputs)
        raise CommandFailed(
            f"--shape: {metadata['name']} has no input {', '.join(shapes)}; it takes {known}",
            ExitCode.USAGE,
        )
    return inputs


def _random_array(generator: np.random.Generator, datatype: str, shape: tuple[int, ...]) -> Array:
    if datatype == "BYTES":
        found = np.empty(shape, dtype=object)
        for index in np.ndindex(shape):
            found[index] = generator.bytes(STRING_CHARS // 2).hex()
        return found
    if datatype == "BF16":
        return to_bfloat16(generator.random(shape))
    dtype = np.dtype(NUMPY_NAME[datatype])
    if dtype.kind == "f":
        return np.asarray(generator.random(shape)).astype(dtype)
    if dtype.kind == "b":
        return np.asarray(generator.random(shape) < 0.5)
    return np.asarray(generator.integers(0, INTEGER_MAX, shape)).astype(dtype)


class Workload:
    """One request of a model, as often as there are requests in flight."""

    def __init__(self, model: str, arrays: dict[str, Array]) -> None:
        self.model = model
        self._packed = inputs_of(arrays)
        self.inline = prepare(model, arrays)
        self._output_bytes: dict[str, int] = {}

    def learn(self, result: InferResult) -> None:
        """Sizes of the outputs, from one answer; those of BYTES are left to the server."""
        for output in result.outputs:
            if output.datatype != "BYTES":
                self._output_bytes[output.name] = len(output.data)

    def keep_inline(self) -> None:
        """Ask for outputs inside the message too, also where the server would lend its memory."""
        if sum(self._output_bytes.values()) >= SHARED_BYTES_MIN:
            wanted = tuple(OutputRequest(name, Place.INLINE) for name in self._output_bytes)
            self.inline = checked(self.inline.head, self.inline.inputs, tail_of(wanted, {}))

    @property
    def region_bytes(self) -> int:
        """What `shared` needs of a region."""
        sizes = [item[6] for item in self._packed] + list(self._output_bytes.values())
        return sum(_aligned(size) for size in sizes)

    def shared(self, region: ClientRegion) -> Prepared:
        """The request with all its inputs in the region, and its outputs written behind them."""
        offset = 0
        inputs: list[InferInput] = []
        for name, datatype, shape, *_, size, data in self._packed:
            assert data is not None
            region.view[offset : offset + size] = data
            inputs.append(region.input(name, datatype, shape, offset, size))
            offset += _aligned(size)
        outputs: dict[str, OutputPlace | None] = {}
        for name, size in self._output_bytes.items():
            outputs[name] = region.place(offset, size)
            offset += _aligned(size)
        return prepare(self.model, inputs, outputs)


def _aligned(size: int) -> int:
    return -(-size // _ALIGNMENT) * _ALIGNMENT
