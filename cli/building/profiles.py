"""Optimization profiles: for which shapes a plan is built, least, usual and greatest of each input.

They come from the model's configuration (max_batch_size, preferred batch sizes, dims) and from what
the command line says on top. Knows nothing of TensorRT; a profile is a value. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from naiad.config.faults import did_you_mean, listed
from naiad.config.model import ModelConfig, TensorConfig
from naiad.protocol.errors import RequestError

FREE: Final = -1
PROFILES_MAX: Final = 64
"""Every profile costs the plan kernels and every instance an execution context."""
SIZE_MAX: Final = 2**31 - 1
"""TensorRT counts the elements of a dimension in 32 bits where it indexes them."""
SYNTAX: Final = "expected MIN:OPT:MAX for the batch, or INPUT=MIN:OPT:MAX with shapes as in 1x3x224"

_SHAPE: Final = re.compile(r"[0-9]{1,10}(?:x[0-9]{1,10})*")

Dims = tuple[int, ...]


class ShapeRange(NamedTuple):
    """The shapes a plan takes: from `min` to `max`, at its best with `opt`. TensorRT's words."""

    min: Dims
    opt: Dims
    max: Dims

    def __str__(self) -> str:
        return " : ".join("x".join(map(str, dims)) for dims in self)


Profile = Mapping[str, ShapeRange]
"""One range for each input with a free dimension."""


@dataclass(frozen=True, slots=True)
class ProfileRequest:
    """One --profile, as it was typed: the batch of all inputs, whole shapes or dims of some."""

    batch: ShapeRange | None = None
    shapes: Mapping[str, ShapeRange] = field(default_factory=dict)


def parse_profile(text: str) -> ProfileRequest:
    """The request in `1:8:32` or `1:8:32,tokens=1x16:8x64:32x256`.

    Raises RequestError for what is no profile.
    """
    batch: ShapeRange | None = None
    shapes: dict[str, ShapeRange] = {}
    for part in text.split(","):
        # Names of ONNX inputs may hold colons and even equals signs; a shape holds neither.
        name, equals, shown = part.strip().rpartition("=")
        given = _range(shown, part)
        if equals and name and name not in shapes:
            shapes[name] = given
        elif not equals and batch is None and len(given.min) == 1:
            batch = given
        else:
            raise RequestError(f"profile {text!r}: {SYNTAX}; each once")
    return ProfileRequest(batch, shapes)


def _range(text: str, part: str) -> ShapeRange:
    shapes = text.split(":")
    if len(shapes) not in (1, 3) or not all(map(_SHAPE.fullmatch, shapes)):
        raise RequestError(f"profile {part.strip()!r}: {SYNTAX}")
    dims = [tuple(int(size) for size in shape.split("x")) for shape in shapes]
    if len(dims) == 1:
        dims *= 3
    ranged = ShapeRange(*dims)
    if len({len(each) for each in ranged}) != 1:
        raise RequestError(f"profile {part.strip()!r}: the three shapes differ in their dimensions")
    for sizes in zip(*ranged, strict=True):
        if not 1 <= sizes[0] <= sizes[1] <= sizes[2] <= SIZE_MAX:
            raise RequestError(
                f"profile {part.strip()!r}: expected 1 <= MIN <= OPT <= MAX in every dimension, "
                f"got {':'.join(map(str, sizes))}"
            )
    return ranged


def choose_profiles(
    config: ModelConfig, declared: Mapping[str, Dims], requests: Sequence[ProfileRequest] = ()
) -> list[Profile]:
    """The profiles to build with, one for each request, or the one that the config speaks of.

    `config` is completed: all inputs are in it, their dims no wider than those the model declares.
    A model none of whose declared dimensions is free has no profile. Raises RequestError when a
    free dimension has no range, or a request does not fit the model.
    """
    if len(requests) > PROFILES_MAX:
        raise RequestError(f"{len(requests)} profiles, expected at most {PROFILES_MAX}")
    free = [tensor for tensor in config.inputs if FREE in declared[tensor.name]]
    if not free:
        if requests:
            raise RequestError(
                "every dimension of every input is fixed in the ONNX, which leaves nothing for a "
                "profile to say; leave --profile out, or export the model with free dimensions"
            )
        return []
    names = [tensor.name for tensor in config.inputs]
    for request in requests:
        _check_names(config, request, names)
    return [
        {tensor.name: _range_of(config, tensor, declared[tensor.name], each) for tensor in free}
        for each in requests or (ProfileRequest(),)
    ]


def _check_names(config: ModelConfig, request: ProfileRequest, names: Sequence[str]) -> None:
    for name in request.shapes:
        if name not in names:
            hint = did_you_mean(name, names) or f"its inputs are {listed(names)}"
            raise RequestError(f'profile: the model has no input "{name}"; {hint}')
    if request.batch is not None and config.max_batch_size <= 0:
        raise RequestError(
            f"profile: batch {request.batch} for a model that does not batch (max_batch_size 0); "
            f"give whole shapes, as in {names[0]}=MIN:OPT:MAX"
        )


def _range_of(
    config: ModelConfig, tensor: TensorConfig, declared: Dims, request: ProfileRequest
) -> ShapeRange:
    batches = config.max_batch_size > 0
    dims = (FREE, *tensor.model_dims) if batches else tensor.model_dims
    given = request.shapes.get(tensor.name)
    if given is not None and len(given.min) == len(dims):
        ranged = given
    else:
        batch = (request.batch or _batch_range(config)) if batches else ShapeRange((), (), ())
        inner = given or _fixed(tensor, dims[1:] if batches else dims)
        ranged = ShapeRange(*(one + rest for one, rest in zip(batch, inner, strict=True)))
    _check_fit(tensor.name, ranged, declared)
    return ranged


def _batch_range(config: ModelConfig) -> ShapeRange:
    """From one to max_batch_size, at its best with what the batcher will mostly make.

    That is the largest preferred size, else the largest of all. Without a batcher it is what one
    client sends in one request: mostly one.
    """
    most = config.max_batch_size
    usual = 1
    if config.dynamic_batching is not None:
        preferred = config.dynamic_batching.preferred_batch_size
        usual = max((size for size in preferred if 1 <= size <= most), default=most)
    return ShapeRange((1,), (usual,), (most,))


def _fixed(tensor: TensorConfig, dims: Dims) -> ShapeRange:
    if FREE not in dims:
        return ShapeRange(dims, dims, dims)
    example = "{0}:{0}:{0}".format("x".join("N" if size == FREE else str(size) for size in dims))
    raise RequestError(
        f'input "{tensor.name}" has free dimensions {list(dims)} and a plan is built for a range: '
        f"give the least, usual and greatest shape, --profile {tensor.name}={example} with numbers "
        "for N, or fix them in dims of the config.pbtxt"
    )


def _check_fit(name: str, ranged: ShapeRange, declared: Dims) -> None:
    for given in ranged:
        fits = len(given) == len(declared) and all(
            size in (FREE, one) for one, size in zip(given, declared, strict=True)
        )
        if not fits:
            shown = "x".join(map(str, given))
            raise RequestError(
                f'profile: input "{name}" cannot be {shown}: the ONNX declares {list(declared)} '
                "(-1 is free)"
            )


def batch_sizes(profiles: Sequence[Profile]) -> list[tuple[int, int]]:
    """The batch sizes that every input takes, (least, greatest) for each profile."""
    return [
        (
            max(ranged.min[0] for ranged in profile.values()),
            min(ranged.max[0] for ranged in profile.values()),
        )
        for profile in profiles
    ]


def batch_gaps(profiles: Sequence[Profile], max_batch_size: int) -> list[tuple[int, int]]:
    """Batch sizes up to max_batch_size that no profile takes, as (first, last); requests of such
    sizes would fail when they are served."""
    gaps = []
    expected = 1
    for least, greatest in sorted(batch_sizes(profiles)):
        if least > expected:
            gaps.append((expected, min(least - 1, max_batch_size)))
        expected = max(expected, greatest + 1)
        if expected > max_batch_size:
            break
    else:
        gaps.append((expected, max_batch_size))
    return [(first, last) for first, last in gaps if first <= last]
