"""The one table of `naiad.*` parameters: what a model may set beyond Triton's fields. Pure.

In config.pbtxt:  parameters { key: "naiad.retry" value { string_value: "false" } }
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import Field, dataclass, field, fields
from typing import Any, Final, NamedTuple

from naiad.config.faults import Fault, did_you_mean, listed

PREFIX: Final = "naiad."
_TRUE: Final = ("true", "1", "yes", "on")
_FALSE: Final = ("false", "0", "no", "off")
_LARGEST: Final = 2**53
"""Largest accepted integer: exact in every JSON reader."""


class Parameter(NamedTuple):
    """One row of the table. `kind` is bool or int; integers lie within least..most."""

    name: str
    default: bool | int
    unit: str
    meaning: str
    kind: type
    least: int
    most: int


def _row(
    default: bool | int, unit: str, meaning: str, *, least: int = 0, most: int = _LARGEST
) -> Any:
    row = {"unit": unit, "meaning": meaning, "least": least, "most": most}
    return field(default=default, metadata=row)


@dataclass(frozen=True, slots=True)
class NaiadParameters:
    """The parsed values of one model. The field `x` is the parameter `naiad.x`."""

    retry: bool = _row(
        True, "", "run a request again when its worker died under it, or its batch failed"
    )
    split_failed_batches: bool = _row(
        True, "", "run a failed batch again by halves, so that only the guilty request fails"
    )
    execution_timeout_ms: int = _row(
        0, "ms", "kill an instance whose execution takes longer; 0 is off"
    )
    load_timeout_s: int = _row(
        600, "s", "give up loading after this time", least=1, most=7 * 86_400
    )
    threads: int = _row(
        0, "threads", "engine threads per instance; 0 divides the usable cores", most=4096
    )
    gpu_memory_limit_mb: int = _row(
        0, "MiB", "GPU memory that an instance may take (docs/gpu.md); 0 is off", most=2**24
    )
    crash_budget: int = _row(
        5, "deaths", "deaths in a row without a success before the model is unavailable", least=1
    )
    max_queue_size: int = _row(
        0, "requests", "queue limit, with or without dynamic_batching; 0 is off"
    )
    queue_timeout_us: int = _row(
        0, "µs", "longest wait in the queue, with or without dynamic_batching; 0 is off"
    )
    late_batch: bool = _row(
        True, "", "send the next batch just before the running one is predicted to end"
    )


def _parameter(row: Field[Any]) -> Parameter:
    default = getattr(NaiadParameters(), row.name)
    return Parameter(name=PREFIX + row.name, default=default, kind=type(default), **row.metadata)


TABLE: Final = tuple(_parameter(row) for row in fields(NaiadParameters))


def read_parameters(parameters: Mapping[str, str]) -> tuple[NaiadParameters, list[Fault]]:
    """The `naiad.*` values among a model's parameters, defaults where absent or faulty.

    Others are the backend's own and are not looked at. An unknown `naiad.` name is a fault: a
    misspelt setting that is silently ignored is worse than a model that does not load.
    """
    known = {row.name: row for row in TABLE}
    values: dict[str, Any] = {}
    faults: list[Fault] = []
    for name, text in parameters.items():
        if not name.startswith(PREFIX):
            continue
        where = f'parameters["{name}"]'
        row = known.get(name)
        if row is None:
            bare = [one.removeprefix(PREFIX) for one in known]
            hint = did_you_mean(name.removeprefix(PREFIX), bare)
            remedy = hint.replace('"', f'"{PREFIX}', 1) or f"known are {listed(sorted(known))}"
            faults.append(Fault(where, "unknown parameter", remedy))
            continue
        value = _parse(text, row)
        if value is None:
            expected = _expected(row)
            faults.append(Fault(where, f'expected {expected}, got "{text}"', f"write {expected}"))
        else:
            values[name.removeprefix(PREFIX)] = value
    return NaiadParameters(**values), faults


def _parse(text: str, row: Parameter) -> bool | int | None:
    word = text.strip().lower()
    if row.kind is bool:
        return True if word in _TRUE else False if word in _FALSE else None
    if not (word.isascii() and word.isdecimal() and len(word) <= len(str(_LARGEST))):
        return None
    value = int(word)
    return value if row.least <= value <= row.most else None


def _expected(row: Parameter) -> str:
    if row.kind is bool:
        return '"true" or "false"'
    unit = f" ({row.unit})" if row.unit else ""
    return f"a whole number from {row.least} to {row.most}{unit}"
