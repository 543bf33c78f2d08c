"""pb_utils.InferenceRequest and InferenceResponse: what goes through execute."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from enum import IntEnum
from typing import Any, Final, NoReturn

from naiad.protocol.errors import NaiadError
from naiad.worker.backends.base import ModelRequest, ModelResponse
from naiad.worker.backends.triton_python.errors import (
    TritonError,
    TritonModelException,
    not_in_this_release,
    to_naiad,
)
from naiad.worker.backends.triton_python.reply import Reply
from naiad.worker.backends.triton_python.tensor import Tensor

TRITONSERVER_REQUEST_FLAG_SEQUENCE_START: Final = 1
TRITONSERVER_REQUEST_FLAG_SEQUENCE_END: Final = 2
TRITONSERVER_RESPONSE_COMPLETE_FINAL: Final = 1
TRITONSERVER_REQUEST_RELEASE_ALL: Final = 1
TRITONSERVER_REQUEST_RELEASE_RESCHEDULE: Final = 2

_NO_CALLS: Final = "call the other model from the client, or run its file inside this model.py"
_ONE_RESPONSE: Final = "return one InferenceResponse per request from execute"


class MemoryType(IntEnum):
    TRITONSERVER_MEMORY_CPU = 0
    TRITONSERVER_MEMORY_CPU_PINNED = 1
    TRITONSERVER_MEMORY_GPU = 2


class PreferredMemory:
    """Where a model would like the answer of another model; carried, not acted upon."""

    def __init__(self, preferred_memory: MemoryType, preferred_device_id: int = 0) -> None:
        self.preferred_memory = preferred_memory
        self.preferred_device_id = preferred_device_id


class InferenceTrace:
    """A request's trace; never sampled here."""

    def get_context(self) -> None:
        return None


class InferenceRequest:
    """A request as execute gets it, or as a model makes one for another model."""

    def __init__(
        self,
        request_id: str = "",
        correlation_id: int | str = 0,
        inputs: Iterable[Tensor] = (),
        requested_output_names: Iterable[str] = (),
        model_name: str = "",
        model_version: int = -1,
        flags: int = 0,
        timeout: int = 0,
        preferred_memory: PreferredMemory | None = None,
        trace: InferenceTrace | None = None,
        parameters: Mapping[str, str | int | bool] | None = None,
    ) -> None:
        self._received: ModelRequest | None = None
        self.reply: Reply[InferenceResponse] | None = None
        """What a response sender is given; None while the model has asked for none."""
        self._request_id = request_id
        self._correlation_id = correlation_id
        self._inputs = list(inputs)
        self._output_names: frozenset[str] | set[str] = set(requested_output_names)
        self._model = (model_name, model_version)
        self._flags = flags
        self._timeout_us = timeout
        self._preferred_memory = preferred_memory
        self._trace = trace
        self._parameters: Mapping[str, object] = _checked_parameters(parameters)

    @classmethod
    def received(cls, request: ModelRequest, *, are_views: bool) -> InferenceRequest:
        """A request of a client; with `are_views` its inputs are read-only."""
        self = cls.__new__(cls)
        self._received = request
        self.reply = None
        self._request_id = request.label
        self._correlation_id = request.sequence_id
        self._inputs = [
            Tensor.of_input(tensor, is_view=are_views) for tensor in request.inputs.values()
        ]
        self._flags = (
            request.sequence_start * TRITONSERVER_REQUEST_FLAG_SEQUENCE_START
            + request.sequence_end * TRITONSERVER_REQUEST_FLAG_SEQUENCE_END
        )
        self._timeout_us = request.timeout_us
        self._trace = None
        self._parameters = request.parameters
        return self

    def inputs(self) -> list[Tensor]:
        return self._inputs

    def request_id(self) -> str:
        return self._request_id

    def correlation_id(self) -> int | str:
        return self._correlation_id

    def flags(self) -> int:
        return self._flags

    def set_flags(self, flags: int) -> None:
        self._flags = flags

    def timeout(self) -> int:
        """Microseconds; 0 for none."""
        return self._timeout_us

    def parameters(self) -> str:
        """The request's parameters as a JSON text."""
        return json.dumps(dict(self._parameters))

    def trace(self) -> InferenceTrace:
        return self._trace or InferenceTrace()

    def requested_output_names(self) -> set[str]:
        """The names of the outputs that will be answered."""
        if self._received is not None:
            return set(self._received.requested_outputs)
        return set(self._output_names)

    def is_cancelled(self) -> bool:
        """Whether nobody waits for the answer any more."""
        return self._received is not None and self._received.is_cancelled()

    def set_release_flags(self, flags: int) -> None:
        if flags != TRITONSERVER_REQUEST_RELEASE_ALL:
            not_in_this_release("InferenceRequest.set_release_flags (reschedule)", _ONE_RESPONSE)

    def get_response_sender(self) -> InferenceResponseSender:
        """The way to answer other than by what execute returns, which is None for this request."""
        if self._received is None:
            raise TritonModelException(
                "get_response_sender: expected a request that execute was given, got one that the"
                " model made"
            )
        if self.reply is None:
            self.reply = Reply()
        return InferenceResponseSender(self.reply, self._received)

    def exec(self, decoupled: bool = False) -> NoReturn:
        """Calls of other models (BLS)."""
        not_in_this_release("InferenceRequest.exec (business logic scripting)", _NO_CALLS)

    async def async_exec(self, decoupled: bool = False) -> NoReturn:
        not_in_this_release("InferenceRequest.async_exec (business logic scripting)", _NO_CALLS)


class InferenceResponse:
    """The answer to one request: outputs, or an error."""

    def __init__(
        self,
        output_tensors: Iterable[Tensor] = (),
        error: TritonError | None = None,
        parameters: Mapping[str, str | int | bool] | None = None,
    ) -> None:
        self._output_tensors = list(output_tensors)
        for tensor in self._output_tensors:
            if not isinstance(tensor, Tensor):
                raise TritonModelException(
                    "InferenceResponse: expected Tensor objects as output_tensors, got "
                    f"{type(tensor).__name__}"
                )
        if error is not None and not isinstance(error, TritonError):
            raise TritonModelException(
                f"InferenceResponse: expected a TritonError as error, got {type(error).__name__}"
            )
        self._error = error
        self._parameters = _checked_parameters(parameters)

    def output_tensors(self) -> list[Tensor]:
        return self._output_tensors

    def has_error(self) -> bool:
        return self._error is not None

    def error(self) -> TritonError | None:
        return self._error

    def parameters(self) -> str:
        """The response's parameters as a JSON text."""
        return json.dumps(self._parameters)

    def answer(self) -> ModelResponse | NaiadError:
        """What the worker's loop takes."""
        if self._error is not None:
            return to_naiad(self._error)
        outputs = [tensor.output() for tensor in self._output_tensors]
        return ModelResponse(outputs, self._parameters)


class InferenceResponseSender:
    """Answers one request: with a response and the final flag, together or one after the other."""

    def __init__(self, reply: Reply[InferenceResponse], request: ModelRequest) -> None:
        self._reply = reply
        self._request = request
        reply.hold(self)

    def send(self, response: InferenceResponse | None = None, flags: int = 0) -> None:
        """Raises TritonModelException after the final flag, and for a second response."""
        if response is not None and not isinstance(response, InferenceResponse):
            raise TritonModelException(
                f"send: expected an InferenceResponse, got {type(response).__name__}"
            )
        if flags not in (0, TRITONSERVER_RESPONSE_COMPLETE_FINAL):
            raise TritonModelException(
                "send: expected flags 0 or TRITONSERVER_RESPONSE_COMPLETE_FINAL"
                f" ({TRITONSERVER_RESPONSE_COMPLETE_FINAL}), got {flags!r:.80}"
            )
        self._reply.send(response, is_final=bool(flags))

    def is_cancelled(self) -> bool:
        """Whether nobody waits for the answer any more."""
        return self._request.is_cancelled()


def _checked_parameters(given: Mapping[str, Any] | None) -> dict[str, str | int | float | bool]:
    """As Triton does: str keys; str, int or bool values."""
    checked: dict[str, str | int | float | bool] = {}
    for key, value in (given or {}).items():
        if not isinstance(key, str):
            raise TritonModelException(
                f"expected parameter keys to have type str, found type {type(key)}"
            )
        if not isinstance(value, str | int | bool):
            raise TritonModelException(
                "expected parameter values to have type bool/int/str, "
                f"found type {type(value)} for {key!r}"
            )
        checked[key] = value
    return checked
