"""Optimization profiles: which shapes each admits, and which one serves a batch. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from naiad.protocol.errors import RequestError

Shape = tuple[int, ...]


class Range(NamedTuple):
    """The least, the best and the greatest shape (or values) of one input."""

    least: Shape
    best: Shape
    greatest: Shape


@dataclass(frozen=True, slots=True)
class Profile:
    """`shapes` by input; `values` by shape tensor, whose contents the engine was built for."""

    index: int
    shapes: Mapping[str, Range]
    values: Mapping[str, Range]

    def misfit(self, shapes: Mapping[str, Shape], values: Mapping[str, Shape]) -> str | None:
        """Why this profile does not admit these; None: it does."""
        for name, shape in shapes.items():
            fault = _misfit(self.shapes[name], shape, "shape of dimension")
            if fault:
                return f"input '{name}': model expected the {fault}"
        for name, value in values.items():
            allowed = self.values.get(name)
            fault = _misfit(allowed, value, "value at position") if allowed else None
            if fault:
                return f"input '{name}': model expected the {fault}"
        return None

    def distance(self, shapes: Mapping[str, Shape], values: Mapping[str, Shape]) -> int:
        """How far these are from what the profile is best at, summed over all dimensions."""
        pairs = [(self.shapes[name].best, shape) for name, shape in shapes.items()]
        pairs += [
            (self.values[name].best, value) for name, value in values.items() if name in self.values
        ]
        return sum(abs(a - b) for best, own in pairs for a, b in zip(best, own, strict=True))


def _misfit(allowed: Range, given: Shape, what: str) -> str | None:
    if len(given) != len(allowed.greatest):
        return f"{what}s to be {len(allowed.greatest)} in number but received {len(given)}"
    for index, (least, own, greatest) in enumerate(
        zip(allowed.least, given, allowed.greatest, strict=True)
    ):
        if not least <= own <= greatest:
            return f"{what} {index} to be between {least} and {greatest} but received {own}"
    return None


def chosen(
    profiles: Sequence[Profile],
    shapes: Mapping[str, Shape],
    values: Mapping[str, Shape],
    instance_name: str,
) -> int:
    """Position of the nearest profile that admits these, the first of equals (as Triton chooses).

    Raises RequestError when none does.
    """
    if len(profiles) == 1:
        fault = profiles[0].misfit(shapes, values)
        if fault is None:
            return 0
        raise RequestError(
            f"request specifies invalid shape for {instance_name}. Error details: {fault}"
        )
    fitting = [
        (profile.distance(shapes, values), position)
        for position, profile in enumerate(profiles)
        if profile.misfit(shapes, values) is None
    ]
    if fitting:
        return min(fitting)[1]
    faults = "; ".join(f"{one.index}: {one.misfit(shapes, values)}" for one in profiles)
    raise RequestError(
        f"failed to find any Optimization Profile among {[one.index for one in profiles]} to "
        f"support the requested dimensions (or shape values) for {instance_name}: {faults}"
    )
