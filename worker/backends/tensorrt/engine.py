"""What an engine declares: its tensors and profiles, read once and checked for what is served.

Owns every read of ICudaEngine but the creation of contexts. Types and formats are judged here;
whether the config agrees is the completion's question.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from naiad.config.backends import TENSORRT_DATATYPE
from naiad.config.faults import listed
from naiad.protocol.datatypes import tensor_bytes
from naiad.protocol.errors import Code, ModelError
from naiad.worker.backends.completion import DeclaredTensor
from naiad.worker.backends.tensorrt.profiles import Profile, Range, Shape

LINEAR: Final = "Row major linear"
"""How the text of a tensor's format begins when rows lie one after the other."""


@dataclass(frozen=True, slots=True)
class Binding:
    """An input or output of the engine. `dims` are whole, -1 where the size is free."""

    name: str
    datatype: str
    dims: Shape
    is_input: bool
    is_host: bool
    """A shape tensor: its values lie in host memory, and the engine computes shapes from them."""

    def size_bytes(self, shape: Shape) -> int:
        size = tensor_bytes(self.datatype, shape)
        assert size is not None  # no BYTES among TENSORRT_DATATYPE
        return size

    def declared(self) -> DeclaredTensor:
        return DeclaredTensor(self.name, self.datatype, self.dims, is_shape_tensor=self.is_host)


def read_bindings(trt: Any, engine: Any) -> tuple[Binding, ...]:
    """All inputs and outputs. Raises ModelError (LOAD_FAILED) for a type that is not served."""
    bindings = []
    for index in range(engine.num_io_tensors):
        name = engine.get_tensor_name(index)
        is_input = engine.get_tensor_mode(name) == trt.TensorIOMode.INPUT
        kind = engine.get_tensor_dtype(name).name
        if kind not in TENSORRT_DATATYPE:
            raise load_error(
                f"{'input' if is_input else 'output'} '{name}' of the engine is {kind}; expected "
                f"{listed(sorted(TENSORRT_DATATYPE.values()))}; build the engine with one of these"
            )
        bindings.append(
            Binding(
                name,
                TENSORRT_DATATYPE[kind],
                tuple(engine.get_tensor_shape(name)),
                is_input,
                engine.get_tensor_location(name) == trt.TensorLocation.HOST,
            )
        )
    return tuple(bindings)


def read_profiles(
    engine: Any, bindings: Sequence[Binding], wanted: Sequence[str]
) -> tuple[Profile, ...]:
    """The profiles of an instance: those its group lists, else profile 0."""
    count = engine.num_optimization_profiles
    numbers = [int(text) for text in wanted] or [0]
    absent = [str(number) for number in numbers if number >= count]
    if absent:
        raise load_error(
            f"instance_group.profile: the engine has no optimization profile {listed(absent)}; it "
            f"has {count}, counted from 0"
        )
    return tuple(_profile(engine, bindings, index) for index in dict.fromkeys(numbers))


def _profile(engine: Any, bindings: Sequence[Binding], index: int) -> Profile:
    shapes: dict[str, Range] = {}
    values: dict[str, Range] = {}
    for binding in bindings:
        if not binding.is_input:
            continue
        name = binding.name
        if binding.is_host:
            # By position, the number first: the binding's keyword names are interchanged.
            found = [tuple(map(int, one)) for one in engine.get_tensor_profile_values(index, name)]
            if found:
                values[name] = Range(*found)
        if -1 in binding.dims:
            shapes[name] = Range(
                *(tuple(one) for one in engine.get_tensor_profile_shape(name, index))
            )
        else:
            shapes[name] = Range(binding.dims, binding.dims, binding.dims)
    return Profile(index, shapes, values)


def check_formats(
    trt: Any, engine: Any, bindings: Sequence[Binding], profiles: Sequence[Profile]
) -> None:
    """Rows are cut and joined as bytes, so every tensor must be linear in every profile."""
    linear = getattr(getattr(trt, "TensorFormat", None), "LINEAR", None)
    for binding in bindings:
        if binding.is_host:
            continue
        for profile in profiles:
            where = binding.name, profile.index
            if linear is not None:
                is_linear = engine.get_tensor_format(*where) == linear
            else:  # the lean runtime does not have the type, and cannot even return it
                is_linear = engine.get_tensor_vectorized_dim(
                    *where
                ) == -1 and engine.get_tensor_format_desc(*where).startswith(LINEAR)
            if not is_linear:
                side = "input" if binding.is_input else "output"
                raise load_error(
                    f"{side} '{binding.name}' of the engine has the format "
                    f'"{engine.get_tensor_format_desc(*where)}" in profile {profile.index}; only '
                    "linear formats are in this release: build the engine with linear inputs and "
                    "outputs (no --inputIOFormats or --outputIOFormats other than chw)"
                )


def rows_max(bindings: Sequence[Binding], profiles: Sequence[Profile]) -> int | None:
    """The largest batch that some profile admits; None when the first dimension is no batch."""
    inputs = [b for b in bindings if b.is_input and not b.is_host]
    if not inputs or any(b.dims[:1] != (-1,) for b in inputs):
        return None
    return max(_rows_max(profile, inputs) for profile in profiles)


def _rows_max(profile: Profile, inputs: Sequence[Binding]) -> int:
    """By shapes, and by the first value of each shape tensor."""
    shapes = [profile.shapes[binding.name].greatest for binding in inputs]
    values = [found.greatest for found in profile.values.values()]
    return min(size[0] for size in (*shapes, *values) if size)


def load_error(text: str) -> ModelError:
    return ModelError(text, code=Code.LOAD_FAILED)
