"""What a user passes to `infer` and `submit`, turned into a request's parts, for both clients.

Compiled code believes types before it can judge a value. So what a user gave is `Any` here, until
it was looked at; the types are in the signatures that users call.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, TypedDict

from naiad.client.fields import packed, tail
from naiad.client.memory import ClientMemory, Placement
from naiad.client.requests import (
    PLAIN,
    REGION,
    Head,
    InferInput,
    OutputPlace,
    PackedInput,
    Prepared,
    Tail,
    checked,
    head_of,
)
from naiad.client.tensors import packed_arrays
from naiad.protocol import messages as m
from naiad.protocol.errors import RequestError

Inputs = Mapping[str, Any] | Sequence[InferInput]
"""Arrays (or what becomes one) by name, or raw inputs."""

Outputs = Sequence[str] | Mapping[str, OutputPlace | None]
"""Names of the outputs wanted, or for each name where it may be written."""


NO_INPUTS: Final[Inputs] = {}


class Options(TypedDict, total=False):
    """Optional arguments of a request.

    `version` -1 means the newest ready one. `label` is your own id for it, shown in logs and
    errors. `priority` 0 means the model's default. `timeout_us` counts from now: when it is over
    the server answers with an error (code timeout) if the model's queue policy allows that. A
    server that says nothing for a second more is waited for no longer (code timeout, too).
    """

    version: int
    label: str
    priority: int
    timeout_us: int
    parameters: m.Parameters
    sequence: m.Sequence
    accounting_key: str
    fairness_key: str
    traceparent: str


_NAMES: Final = frozenset(Options.__annotations__)


def parts_of(
    model: Any,
    inputs: Any,
    outputs: Any,
    options: Mapping[str, Any],
    memory: ClientMemory | None = None,
) -> Prepared:
    """The checked parts of a request, large inputs in shared memory if there is any.

    Takes Inputs, Outputs and Options. Raises RequestError for what cannot be sent.
    """
    packed_inputs = packed_arrays(inputs) if type(inputs) is dict else inputs_of(inputs)
    placement = None
    if memory is not None:
        bytes_min = memory.bytes_min
        for item in packed_inputs:
            if item[6] >= bytes_min:
                packed_inputs, placement = memory.placed(packed_inputs)
                break
        if not outputs and memory.inline_outputs and model in memory.inline_outputs:
            tail = tail_of(memory.inline_outputs[model], options)
            return checked(_head_of(model, options), packed_inputs, tail, placement)
    if not options and not outputs and type(inputs) is dict:
        return checked(head_of(model, -1, ""), packed_inputs, PLAIN, placement)
    tail = tail_of(_outputs_of(outputs), options)
    keeps = _keeps(inputs, outputs)
    if keeps:
        placement = placement or Placement()
        placement.keeps += keeps
    return checked(_head_of(model, options), packed_inputs, tail, placement)


def _head_of(model: Any, options: Mapping[str, Any]) -> Head:
    return head_of(model, options.get("version", -1), options.get("label", ""))


def inputs_of(given: Any) -> tuple[PackedInput, ...]:
    """The inputs, inline. Raises RequestError for what cannot be sent."""
    check_inputs(given)
    if isinstance(given, Mapping):
        return packed_arrays(dict(given))
    return tuple([packed(item) for item in given])


def check_inputs(given: Any) -> None:
    """Raises RequestError when they are neither arrays by name nor a list."""
    if not isinstance(given, Mapping | list | tuple):
        raise RequestError(
            "expected inputs as arrays by name, {'INPUT0': array}, or a list of InferInput, got"
            f" {type(given).__name__}"
        )


def no_more_than_prepared(inputs: Any, outputs: Any, options: Mapping[str, Any]) -> None:
    """Raises RequestError for what a prepared request was given besides: it has its own."""
    if inputs is not NO_INPUTS or outputs is not None or options:
        raise RequestError(
            "a prepared request is sent as it was prepared; give inputs, outputs and options to"
            " prepare() instead"
        )


def _keeps(inputs: Any, outputs: Any) -> list[object]:
    """What must live as long as the request, because its regions do."""
    keeps: list[object] = []
    if not isinstance(inputs, Mapping):
        keeps += [item.keep for item in inputs if item.keep is not None]
    if isinstance(outputs, Mapping):
        keeps += [place[3] for place in outputs.values() if place is not None and place[3]]
    return keeps


def tail_of(outputs: tuple[m.OutputRequest, ...], options: Mapping[str, Any]) -> Tail:
    """Everything of a request that is usually not given."""
    if not options and not outputs:
        return PLAIN
    if not options.keys() <= _NAMES:
        raise TypeError(f"unexpected arguments: {sorted(options.keys() - _NAMES)}")
    return tail(
        outputs,
        options.get("priority", 0),
        options.get("timeout_us", 0),
        options.get("sequence"),
        options.get("accounting_key", ""),
        options.get("fairness_key", ""),
        options.get("traceparent", ""),
        options.get("parameters"),
    )


def _outputs_of(given: Any) -> tuple[m.OutputRequest, ...]:
    if given is None:
        return ()
    if isinstance(given, str) or not isinstance(given, Mapping | Iterable):
        raise RequestError(f"expected a list of output names, got {given!r:.80}")
    if not isinstance(given, Mapping):
        return tuple([m.OutputRequest(name) for name in given])
    out = []
    for name, place in given.items():
        if place is None:
            out.append(m.OutputRequest(name))
        else:
            numbers = place[:3] if isinstance(place, tuple) and len(place) == 4 else ()
            if not numbers or any(type(n) is not int or not 0 <= n < 2**63 for n in numbers):
                raise RequestError(
                    f"output {name!r}: expected an OutputPlace (see ClientRegion.place) or None,"
                    f" got {place!r:.80}"
                )
            region, offset, size = numbers
            out.append(m.OutputRequest(name, REGION, region, offset, size))
    return tuple(out)
