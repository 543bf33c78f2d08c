"""Answers on their way to clients: gathered while events are handled, sent once per session."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from naiad.broker.core.events import Frames, SendAnswers, TellSession
from naiad.broker.core.job import Job, JobState
from naiad.broker.core.models import ModelVersion
from naiad.broker.core.sessions import Session
from naiad.broker.core.world import World
from naiad.protocol.errors import (
    Code,
    NaiadError,
    RequestError,
    Unavailable,
    WireError,
    error_from_wire,
)
from naiad.protocol.messages import InferAnswer, Parameters, Place, Region, Released, Tensor

ANSWERS_PER_MESSAGE_MAX: Final = 512
ANSWERS_TEXT_BYTES_MAX: Final = 128 * 1024
SMALL_BYTES_MAX: Final = 16 * 1024
"""Inline tensors up to this size share one frame of a message; larger ones travel by reference."""

_INLINE = int(Place.INLINE)
_make = tuple.__new__


class Outgoing:
    """The next ANSWERS message of one session: frame 0 collects the small tensors."""

    __slots__ = (
        "answers", "frames", "regions", "released", "released_again", "session", "small",
        "small_bytes", "text_bytes",
    )  # fmt: skip

    def __init__(self, session: Session) -> None:
        self.session = session
        self.answers: list[InferAnswer] = []
        self.regions: dict[int, Region] = {}
        self.released: list[Job] = []
        self.released_again: list[int] = []
        self.frames: Frames = []
        self.small: Frames = []
        self.small_bytes = 0
        self.text_bytes = 0
        """Of all error texts and response parameters: a header is bounded, and one reason may fail
        thousands."""

    def count_texts(self, parameters: Parameters) -> None:
        """Some answer has these parameters."""
        self.text_bytes += sum(
            len(key.encode()) + (len(value.encode()) if type(value) is str else 8)
            for key, value in parameters.items()
        )

    def pack(self, tensors: tuple[Tensor, ...], frames: Frames) -> tuple[Tensor, ...]:
        """The tensors with their inline bytes moved from another message's frames into this one."""
        packed = []
        for tensor in tensors:
            name, datatype, shape, place, frame_index, offset, size = tensor
            if place == _INLINE:
                frame = frames[frame_index]
                if size <= SMALL_BYTES_MAX:
                    where, at = 0, self.small_bytes
                    self.small.append(
                        frame if len(frame) == size else frame[offset : offset + size]
                    )
                    self.small_bytes += size
                else:
                    self.frames.append(
                        frame if len(frame) == size else frame[offset : offset + size]
                    )
                    where, at = len(self.frames), 0
                tensor = _make(Tensor, (name, datatype, shape, _INLINE, where, at, size))
            packed.append(tensor)
        return tuple(packed)

    def message_frames(self) -> Frames:
        return [b"".join(self.small), *self.frames] if self.small or self.frames else []


class Answers:
    """Ends jobs: each gets exactly one final answer, whatever happens to it."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._outgoing: dict[int, Outgoing] = {}

    def to(self, session: Session) -> Outgoing:
        """The message that the session gets when this round of events is handled."""
        found = self._outgoing.get(session.key)
        if found is None or found.session is not session:  # an ended one needs no answers
            found = self._outgoing[session.key] = Outgoing(session)
        return found

    def make_room(self, session: Session) -> None:
        """Send what the session has if its message is full; call it while holding no Outgoing."""
        found = self._outgoing.get(session.key)
        if found is not None and (
            len(found.answers) >= ANSWERS_PER_MESSAGE_MAX
            or found.text_bytes >= ANSWERS_TEXT_BYTES_MAX
        ):
            del self._outgoing[session.key]
            self._flush_one(found)

    def refuse(self, session: Session, request_id: int, fault: NaiadError) -> None:
        """The error answer of a request that never became a job."""
        self._world.counters.refused_requests[fault.code] += 1
        self.make_room(session)
        self._append_error(session, InferAnswer(request_id, fault.wire(), -1, ()))

    def fail(self, job: Job, fault: NaiadError) -> None:
        """End a job that no worker has with an error."""
        self.finish(job)
        self._error(job, fault, _error_answer(job, fault))

    def failed_in_worker(self, job: Job, error: WireError) -> None:
        """End a job with its worker's error, whose text is complete."""
        self.finish(job)
        fault = error_from_wire(error)
        answer = InferAnswer(job.request.id, fault.wire(), job.model.version, ())
        self._error(job, fault, answer)

    def abandon(self, job: Job, fault: NaiadError) -> None:
        """Answer a job now although a worker still has its memory: RELEASED follows later."""
        session = job.session
        session.leave(job)
        session.zombies[job.request.id] = job
        job.state = JobState.ANSWERED
        job.fault = fault
        self._error(job, fault, _error_answer(job, fault))

    def answer_again(self, job: Job) -> None:
        """The answer of an abandoned job may have been lost with the client's connection."""
        assert job.fault is not None
        self._append_error(job.session, _error_answer(job, job.fault))

    def release(self, job: Job) -> None:
        """The worker is done with (or dead before) an abandoned job: its memory is free."""
        job.state = JobState.DONE
        if job.session.zombies.pop(job.request.id, None) is not None:
            self._released(job)

    def withdraw(self, job: Job, fault: NaiadError) -> None:
        """End a job that no worker has any more with an error after which its client waits for
        RELEASED (timeout, cancelled, worker_died): both in one go."""
        self.fail(job, fault)
        self._released(job)

    def finish(self, job: Job) -> None:
        """Bookkeeping of a job whose answer the caller puts together itself."""
        job.session.leave(job)
        job.state = JobState.DONE

    def flush(self) -> None:
        """Emit everything gathered, one message per session."""
        if self._outgoing:
            for outgoing in self._outgoing.values():
                self._flush_one(outgoing)
            self._outgoing.clear()

    def _flush_one(self, outgoing: Outgoing) -> None:
        session = outgoing.session
        if session.ended:
            return
        if outgoing.answers:
            self._send(outgoing)
        if session.connected:
            # After the error answers, never before them: the client looks for both, in this order.
            ids = [*outgoing.released_again, *(job.request.id for job in outgoing.released)]
            if ids:
                self._send_released(session, ids)
        else:
            session.released.update((job.request.id, job.fault) for job in outgoing.released)

    def _send_released(self, session: Session, ids: Iterable[int]) -> None:
        message = Released(self._world.incarnation, tuple(ids))
        self._world.actions.append(TellSession(session.key, message))

    def hold(self, session: Session) -> None:
        """What was gathered before a new connection is for that one, after its WELCOME."""
        found = self._outgoing.pop(session.key, None)
        if found is not None:
            session.connected = False
            self._flush_one(found)

    def reopen(self, session: Session) -> None:
        """Send what could not be sent while the connection was away, and note what is outstanding.

        The client sends every unanswered request again as soon as it is welcome. What is settled
        on this connection before that arrives must not run again: the client may have freed, or
        given away, the memory by the time it would be written.
        """
        session.settled = dict.fromkeys(session.jobs)
        session.settled.update((ident, job.fault) for ident, job in session.zombies.items())
        session.settled.update(session.released)
        for action in session.undelivered:
            session.settled.update((answer.id, None) for answer in action.answers)
        self._world.actions.extend(session.undelivered)
        session.undelivered = []
        if session.released:
            self._send_released(session, session.released)
            session.released = {}

    def settled_again(self, session: Session, request_id: int) -> None:
        """A request sent again after it was settled on this connection. Its error answer may have
        been lost before; a good one is on its way."""
        fault = session.settled[request_id]
        if fault is not None:
            outgoing = self.to(session)
            outgoing.answers.append(InferAnswer(request_id, fault.wire(), -1, ()))
            outgoing.released_again.append(request_id)

    def _send(self, outgoing: Outgoing) -> None:
        session = outgoing.session
        regions = tuple(outgoing.regions.values())
        frames = outgoing.message_frames()
        action = _make(SendAnswers, (session.key, outgoing.answers, regions, frames))
        if session.connected:
            self._world.actions.append(action)
        else:
            session.undelivered.append(action)

    def _error(self, job: Job, fault: NaiadError, answer: InferAnswer) -> None:
        job.model.statistics.failed(fault.code, self._world.now_ns - job.first_enqueued_ns)
        self._append_error(job.session, answer)

    def _append_error(self, session: Session, answer: InferAnswer) -> None:
        self.make_room(session)
        outgoing = self.to(session)
        outgoing.answers.append(answer)
        assert answer.error is not None
        outgoing.text_bytes += len(answer.error[1].encode())

    def _released(self, job: Job) -> None:
        if not job.session.ended:
            self.to(job.session).released.append(job)


def _error_answer(job: Job, fault: NaiadError) -> InferAnswer:
    label = job.request.label
    code, message, retryable = fault.wire()
    if label:
        message = f"[request id: {label}] {message}"
    return InferAnswer(job.request.id, (code, message, retryable), job.model.version, ())


def timeout_error() -> NaiadError:
    return Unavailable("Request timeout expired", code=Code.TIMEOUT)


def not_ready_error(model: ModelVersion, reason: str) -> NaiadError:
    return Unavailable(
        f"Request for unknown model: '{model.name}' version {model.version} is not at ready state:"
        f" {reason}",
        code=Code.NOT_READY,
    )


def cancelled_error() -> NaiadError:
    return RequestError("request was cancelled", code=Code.CANCELLED)
