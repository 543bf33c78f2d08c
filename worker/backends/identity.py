"""The echo backend: output i is input i. For tests, demonstrations and measuring the server itself.

A request may ask for trouble by its parameters, a model by those of its config (then it is the
default of every request): `sleep_ms`, `deaf_ms` (a sleep that no cancellation ends), `spin_ms`
(busy and holding the GIL), `raise` (a text), `exit` (os._exit with that code), `segfault`, `abort`,
`output_fault` (one of OUTPUT_FAULTS); a config also `fail_load` (a text) and `load_ms`. It never
imports NumPy.
"""

from __future__ import annotations

import ctypes
import os
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Final

from naiad.config.backend_parameters import OUTPUT_FAULTS
from naiad.config.model import ModelConfig
from naiad.protocol.errors import Code, ModelError, NaiadError
from naiad.worker.backends.base import (
    ModelInstance,
    ModelRequest,
    ModelResponse,
    OutputTensor,
)

_TROUBLE: Final = (
    "sleep_ms",
    "deaf_ms",
    "spin_ms",
    "raise",
    "exit",
    "segfault",
    "abort",
    "output_fault",
)

Value = str | int | float | bool


class IdentityBackend:
    """Pairs inputs and outputs by their position in the config."""

    def __init__(self) -> None:
        self._pairs: tuple[tuple[str, str], ...] = ()
        self._defaults: dict[str, Value] = {}

    def load(self, instance: ModelInstance) -> ModelConfig:
        config = instance.config
        parameters = config.parameters
        time.sleep(int(parameters.get("load_ms", "0")) / 1e3)
        if "fail_load" in parameters:
            raise ModelError(parameters["fail_load"], code=Code.LOAD_FAILED)
        if len(config.inputs) < len(config.outputs):
            raise ModelError(
                f"identity: expected an input for each output, got {len(config.inputs)} inputs "
                f"and {len(config.outputs)} outputs",
                code=Code.LOAD_FAILED,
            )
        self._pairs = tuple(
            (source.name, target.name)
            for source, target in zip(config.inputs, config.outputs, strict=False)
        )
        self._defaults = {name: parameters[name] for name in _TROUBLE if name in parameters}
        return config

    def warm_up(self) -> None:
        return None

    def execute(self, batch: Sequence[ModelRequest]) -> Sequence[ModelResponse | NaiadError]:
        pairs = self._pairs
        responses = []
        for request in batch:
            outputs = []
            inputs = request.inputs
            for source, target in pairs:
                if source in inputs:
                    tensor = inputs[source]
                    outputs.append(
                        OutputTensor(target, tensor.datatype, tensor.shape, None, tensor.buffer)
                    )
            responses.append(ModelResponse(outputs))
            if request.parameters or self._defaults:
                make_trouble({**self._defaults, **request.parameters}, request, responses)
        return responses

    def unload(self) -> None:
        return None


def make_trouble(
    wanted: Mapping[str, Value], request: ModelRequest, responses: list[ModelResponse]
) -> None:
    """Whatever a request's parameters ask for; the last of the responses is its own."""
    _sleep(float(wanted.get("sleep_ms", 0)) / 1e3, request)
    if "deaf_ms" in wanted:
        time.sleep(float(wanted["deaf_ms"]) / 1e3)
    _spin(float(wanted.get("spin_ms", 0)) / 1e3)
    if "raise" in wanted:
        raise ValueError(str(wanted["raise"]))
    if "exit" in wanted:
        os._exit(int(wanted["exit"]))
    if "segfault" in wanted:
        ctypes.string_at(0)
    if "abort" in wanted:
        os.abort()
    fault = wanted.get("output_fault")
    if fault == "count":
        responses.pop()
    elif fault is not None:
        _spoil(str(fault), responses[-1])


def _sleep(seconds: float, request: ModelRequest) -> None:
    """Sleep, and stop early when nobody waits for the request any more."""
    deadline = time.monotonic() + seconds
    while (left := deadline - time.monotonic()) > 0 and not request.is_cancelled():
        time.sleep(min(left, 0.01))


def _spin(seconds: float) -> None:
    """Keep a core busy and every other Python thread waiting."""
    if seconds <= 0:
        return
    deadline = time.monotonic() + seconds
    before = sys.getswitchinterval()
    sys.setswitchinterval(1000 + seconds)
    while time.monotonic() < deadline:
        sum(range(10_000))
    sys.setswitchinterval(before)


def _spoil(fault: str, response: ModelResponse) -> None:
    """Make the first output one that the config does not allow."""
    output = response.outputs[0]
    match fault:
        case "name":
            output.name = "NOT_AN_OUTPUT"
        case "datatype":
            output.datatype = "INT64" if output.datatype != "INT64" else "FP64"
        case "shape":
            output.shape = (*output.shape, 7)
        case "size":
            output.buffer = bytes(output.buffer or b"") + b"\0"
        case "missing":
            response.outputs = response.outputs[1:]
        case _:
            raise ValueError(f"output_fault: expected one of {OUTPUT_FAULTS}, got {fault!r}")
