"""Running one batch on the loaded model: read, execute (again by halves if it fails), write.

The one place around a user's model where everything is caught. Owns the model's backend object and
what is compiled from its config; knows no socket.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Sequence
from time import monotonic_ns
from typing import Any, Final, NamedTuple

from naiad.config.faults import without_roots
from naiad.config.model import ModelConfig
from naiad.protocol.errors import (
    Code,
    InternalError,
    ModelError,
    NaiadError,
    RequestError,
    WireError,
)
from naiad.protocol.messages import BatchRequest, BatchResult, Durations
from naiad.shm.layout import is_written_over
from naiad.shm.page import SlotPage
from naiad.worker.backends.base import (
    Backend,
    InstanceLost,
    ModelInstance,
    ModelRequest,
    ModelResponse,
)
from naiad.worker.batch import (
    Buffer,
    Lender,
    ReceivedBatch,
    RequestReader,
    ResultWriter,
    awaits_owners,
)
from naiad.worker.exception_text import described, own_error, place_below
from naiad.worker.gpu_health import GpuHealth
from naiad.worker.log import Log
from naiad.worker.outputs import OutputRules
from naiad.worker.results import bounded, told

_CANCELLED: Final = RequestError("cancelled before it was executed", code=Code.CANCELLED).wire()
_PENDING: Final = BatchResult(InternalError("never answered").wire(), ())
_make: Final = tuple.__new__

Key = tuple[int, int]
Response = ModelResponse | NaiadError


class ExecutedBatch(NamedTuple):
    results: tuple[BatchResult, ...]
    durations: Durations
    splits: int
    frames: list[Buffer]


class ReadBatch(NamedTuple):
    """A batch whose requests were read; those not among them have their results."""

    batch: ReceivedBatch
    requests: list[ModelRequest]
    results: list[BatchResult]


class Execution:
    """One loaded model instance, ready to run batches one after the other."""

    def __init__(
        self,
        backend: Backend,
        instance: ModelInstance,
        config: ModelConfig,
        *,
        page: SlotPage,
        log: Log,
        is_cancelled: Callable[[Key], bool],
        lender: Lender,
    ) -> None:
        self.backend = backend
        self.config = config
        self._directory = instance.directory
        self._page = page
        self._log = log
        self._lender = lender
        self._rules = OutputRules(config)
        takes_device_memory = getattr(backend, "takes_device_memory", False) is True
        self._reader = RequestReader(config, self._rules, is_cancelled, takes_device_memory)
        self._tells_copies = hasattr(backend, "copied_in_ns")
        self._splits_allowed = config.naiad.split_failed_batches and config.naiad.retry
        self._splits = 0
        uuid = instance.gpu_uuid
        self._gpu = GpuHealth(instance.name, uuid) if uuid else None
        self._abandoned: set[Key] = set()
        self._ahead: ReadBatch | None = None
        """The batch that the backend brings to its device while it executes another."""
        self._find_next: Callable[[], ReceivedBatch | None] | None = None
        self._may_begin: Callable[[ReceivedBatch], bool] = lambda _: True

    def overlap(
        self,
        find_next: Callable[[], ReceivedBatch | None],
        may_begin: Callable[[ReceivedBatch], bool],
    ) -> None:
        """Let a backend that can do so ask, while it executes, for the batch that comes next, and
        whether its device may begin that."""
        overlap = getattr(self.backend, "overlap", None)
        if overlap is not None:
            self._find_next, self._may_begin = find_next, may_begin
            overlap(self._stage_next, self._begin_ahead)

    def run(self, batch: ReceivedBatch, abandoned: set[Key]) -> ExecutedBatch:
        """Execute a batch; requests in `abandoned` are answered as cancelled without being run.

        The page says "executing" from here on, until whoever sends the results ends it.
        """
        started_ns = monotonic_ns()
        self._page.begin(batch.id, started_ns)
        self._splits = 0
        self._abandoned = abandoned
        batch.regions.device.begin()
        _, requests, results = self._taken(batch)
        read_ns = monotonic_ns()
        responses = self._execute(requests, batch) if requests else ()
        executed_ns = monotonic_ns()
        if self._tells_copies:
            read_ns += self._copied_in_ns(executed_ns - read_ns)
        frames = self._write(batch, requests, responses, results)
        written_ns = monotonic_ns()
        durations = _make(
            Durations, (read_ns - started_ns, executed_ns - read_ns, written_ns - executed_ns)
        )
        return _make(ExecutedBatch, (bounded(results), durations, self._splits, frames))

    def refuse(self, request: BatchRequest, error: ModelError) -> WireError:
        """The result of a request cannot be sent after all: take back what it was lent."""
        self._lender.end(request.session, request.id)
        self._log.line(f"request {request.label or '-'}: {error.message}")
        return told(request, error)

    def _copied_in_ns(self, most_ns: int) -> int:
        """What of the execution was the way of inputs to the device, as far as it tells."""
        backend: Any = self.backend
        told: int = backend.copied_in_ns
        return max(0, min(most_ns, told))

    def drop_ahead(self, waiting: Collection[ReceivedBatch]) -> None:
        """Let go of the batch that was to be next, if it is not among those that wait."""
        ahead = self._ahead
        if ahead is not None and all(batch is not ahead.batch for batch in waiting):
            self._ahead = None
            self._unstage()

    def _stage_next(self) -> None:
        """Asked by the backend, again and again, while its device executes."""
        find_next = self._find_next
        if self._ahead is not None or find_next is None:
            return
        batch = find_next()
        if batch is None or awaits_owners(batch):
            return
        self._ahead = ahead = self._read(batch)
        if ahead.requests:
            backend: Any = self.backend
            backend.stage(ahead.requests)

    def _begin_ahead(self) -> bool:
        """The device begins the next batch: from here on a fault of the device is its doing.

        False when the batch was given back meanwhile.
        """
        ahead = self._ahead
        if ahead is None or not self._may_begin(ahead.batch):
            return False
        self._page.begin(ahead.batch.id, monotonic_ns())
        return True

    def _unstage(self) -> None:
        backend: Any = self.backend
        backend.unstage()

    def _taken(self, batch: ReceivedBatch) -> ReadBatch:
        """The batch as it was read ahead, unless some of it is not to be executed any more."""
        ahead, self._ahead = self._ahead, None
        if ahead is None:
            return self._read(batch)
        keys = [(request.session, request.id) for request in batch.requests]
        if ahead.batch is batch and self._abandoned.isdisjoint(keys):
            return ahead
        self._unstage()
        return self._read(batch)

    def _read(self, batch: ReceivedBatch) -> ReadBatch:
        requests = []
        results = [_PENDING] * len(batch.requests)
        abandoned, read = self._abandoned, self._reader.read
        for index, request in enumerate(batch.requests):
            if abandoned and (request.session, request.id) in abandoned:
                results[index] = BatchResult(_CANCELLED, ())
                continue
            try:
                requests.append(read(request, batch))
            except NaiadError as fault:
                results[index] = BatchResult(told(request, fault), ())
        return _make(ReadBatch, (batch, requests, results))

    def _execute(
        self, requests: Sequence[ModelRequest], batch: ReceivedBatch
    ) -> Sequence[Response]:
        """Responses in order; a failing batch is halved until the guilty request is alone."""
        try:
            responses = self.backend.execute(requests)
            if len(responses) != len(requests):
                raise self._rules.wrong_count(len(requests), len(responses))
        except InstanceLost:
            raise
        except BaseException as fault:
            if self._gpu is not None:
                self._gpu.check(described(fault))
            if len(requests) > 1 and self._may_run_again(batch):
                self._splits += 2
                middle = len(requests) // 2
                halves = requests[:middle], requests[middle:]
                return [one for half in halves for one in self._execute(half, batch)]
            error = self._model_error(fault)
            labels = ", ".join(request.label or "-" for request in requests[:8])
            self._log.failure(f"request {labels}: {error.message}", fault)
            return [error] * len(requests)
        if self._gpu is not None:
            for response in responses:
                if isinstance(response, NaiadError):
                    self._gpu.check(response.message)
        return responses

    def _may_run_again(self, batch: ReceivedBatch) -> bool:
        """Not if the model is to see a request only once, or may have changed an input already."""
        return self._splits_allowed and not any(
            is_written_over(request.inputs, request.outputs) for request in batch.requests
        )

    def _write(
        self,
        batch: ReceivedBatch,
        requests: Sequence[ModelRequest],
        responses: Sequence[Response],
        results: list[BatchResult],
    ) -> list[Buffer]:
        """Fill the places that `_read` left empty; returns the payload frames."""
        writer = ResultWriter(self._rules, batch, self._lender)
        position = 0
        for index, request in enumerate(batch.requests):
            if results[index] is not _PENDING:
                continue
            wanted = requests[position].requested_outputs
            position += 1
            try:
                response = responses[position - 1]
                if not isinstance(response, ModelResponse):
                    raise self._refused(response)
                results[index] = writer.write(request, wanted, response)
            except InstanceLost:
                raise
            except BaseException as fault:  # a response is made of the model's own objects
                error = self._write_fault(request, fault)
                is_models = issubclass(type(fault), ModelError)
                results[index] = BatchResult(told(request, error, is_models=is_models), ())
        if writer.fallback_count:
            self._page.count_io_faults(writer.fallback_count)
        return writer.frames()

    def _write_fault(self, request: BatchRequest, fault: BaseException) -> NaiadError:
        """Why a request has no result after all; what it had in the arena already is taken back."""
        self._lender.end(request.session, request.id)
        own = own_error(fault)
        if own is not None:
            return own
        # What the model put into its response does not even act like a tensor.
        error = self._rules.not_a_response(described(fault))
        self._log.failure(f"request {request.label or '-'}: {error.message}", fault)
        return error

    def _refused(self, response: object) -> NaiadError:
        if isinstance(response, NaiadError):
            return response
        return self._rules.not_a_response(type(response).__name__)

    def _model_error(self, fault: BaseException) -> NaiadError:
        """What the client is told: type, text and the line of the model's own code."""
        own = own_error(fault)
        if own is not None:
            return own
        place = place_below(self._directory, fault).rpartition("/")[2]
        text = without_roots(described(fault), (os.path.dirname(self._directory),))
        return ModelError(text + (f" ({place})" if place else ""))
