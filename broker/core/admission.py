"""Requests on their way into a queue: found, checked, bounded, put in their place.

Common to all schedulers. Whatever is wrong becomes one error answer and disturbs nothing else.
"""

from __future__ import annotations

from typing import Final

from naiad.broker.core.answers import Answers
from naiad.broker.core.dispatch import Dispatch
from naiad.broker.core.events import Frames
from naiad.broker.core.job import ANYWHERE, Job
from naiad.broker.core.models import LevelPolicy, ModelState, ModelVersion
from naiad.broker.core.reach import only_on, use_gpu_memory
from naiad.broker.core.sessions import Session
from naiad.broker.core.world import NAMED_REGION_BASE, World
from naiad.protocol.errors import Code, RequestError, Unavailable
from naiad.protocol.messages import InferRequest, OutputRequest, Place, Tensor
from naiad.shm.cuda.key import is_cuda
from naiad.shm.layout import is_written_over

SHARED_FRAME_BYTES_MAX: Final = 256 * 1024
"""A larger frame that a request does not fill is copied from, so that it cannot be kept alive."""

_INLINE = int(Place.INLINE)
_REGION = int(Place.REGION)
_make = tuple.__new__


class Admission:
    """Turns InferRequests into queued Jobs."""

    def __init__(self, world: World, answers: Answers, dispatch: Dispatch) -> None:
        self._world = world
        self._answers = answers
        self._dispatch = dispatch

    def admit(self, session: Session, request: InferRequest, frames: Frames) -> None:
        """Queue one request, or answer it with its error."""
        try:
            job = self._judge(session, request, frames)
        except Exception as raised:
            fault = self._world.blame(raised, "the admission of this request")
            label = request.label
            if label:
                fault.message = f"[request id: {label}] {fault.message}"
            self._answers.refuse(session, request.id, fault)
            return
        # Nothing was changed before: what is raised from here on leaves something half done.
        if job.timeout_ns:
            self._world.deadlines.add(job)
        session.jobs[request.id] = job
        session.bytes += job.inline_bytes
        if request.accounting_key:
            session.accounts.charge(job)
        job.model.queue.push(job)
        self._world.dirty[job.model] = None

    def _judge(self, session: Session, request: InferRequest, frames: Frames) -> Job:
        """A job with its place in a queue. Raises NaiadError for what is refused."""
        world = self._world
        if world.draining:
            raise Unavailable(
                "Server is stopping, scheduler for model has stopped accepting new inference"
                " requests",
                code=Code.DRAINING,
            )
        job = self.prepare(session, request, frames)
        model = job.model
        if not job.retryable and request.attempt > 1:
            raise Unavailable(
                f"the connection broke while '{model.name}' had this request; it may have been"
                " executed, and may not be run twice",
                code=Code.CONNECTION_LOST,
            )
        if request.accounting_key and request.attempt == 1:
            self._check_user(session, request)
        level = model.level_policy(request.priority)
        if level.size_max and self._is_full(job, level):
            model.statistics.failed(Code.QUEUE_FULL, 0)
            on_gpu = "" if job.only_on == ANYWHERE else f" on GPU {job.only_on}"
            raise Unavailable(
                f"Exceeds maximum queue size: {level.size_max} requests wait for"
                f" '{model.name}'{on_gpu}; try again later",
                code=Code.QUEUE_FULL,
            )
        job.level = level.rank
        timeout_ns = level.timeout_ns
        asked_ns = request.timeout_us * 1000
        if asked_ns and level.override and (asked_ns < timeout_ns or not timeout_ns):
            timeout_ns = asked_ns
        if timeout_ns:
            job.timeout_ns = timeout_ns
            job.deadline_ns = world.now_ns + timeout_ns
        return job

    def _check_user(self, session: Session, request: InferRequest) -> None:
        """Not asked of requests that come again: they were in flight before, and the loss of a
        connection or a broker shall cost nobody an answer."""
        limits = self._world.limits
        fault = session.accounts.fault(request, limits.user_requests_max, limits.user_bytes_max)
        if fault is not None:
            raise fault

    def _is_full(self, job: Job, level: LevelPolicy) -> bool:
        """Whether max_queue_size is reached, once every idle worker has taken what it can.

        Requests of one message are admitted one after the other and dispatched together at the
        end; without a look in between, those that a worker is free for would fill the queue.
        """
        model = job.model
        queue = model.queue
        if queue.queued_at(level.rank, job.only_on) < level.size_max:
            return False
        if model.idle:
            self._dispatch.schedule()
        return queue.queued_at(level.rank, job.only_on) >= level.size_max

    def prepare(self, session: Session, request: InferRequest, frames: Frames) -> Job:
        """A job for a request that passed every check but is in no queue yet.

        Raises NaiadError: unknown model, wrong tensors, over a budget.
        """
        world = self._world
        limits = world.limits
        if len(session.jobs) >= limits.session_requests_max:
            raise Unavailable(
                f"{len(session.jobs)} requests in flight, at most {limits.session_requests_max}"
                " per client; wait for answers",
                code=Code.BUDGET_EXCEEDED,
            )
        (_, _, name, version, label, inputs, outputs, priority, _, sequence, _, fairness_key, trace,
         parameters) = request  # fmt: skip
        model = world.found.get((name, version))
        if model is None:
            model = world.found[name, version] = self.find(name, version)
        if sequence is not None:
            raise _not_yet("sequence_id", "sequence batching")
        signature = model.signature
        assert signature is not None, "a READY model has a signature"
        rows, alike = signature.check(request)

        job = Job(world.number(), session, request, model, frames, world.now_ns)
        job.rows = rows
        job.key = alike
        inline_bytes = 0
        regional = False
        for tensor in inputs:
            if tensor[3] == _INLINE:
                size = tensor[6]
                inline_bytes += size
                frame_bytes = len(frames[tensor[4]])
                if frame_bytes > SHARED_FRAME_BYTES_MAX and frame_bytes != size:
                    regional = True
            else:
                regional = True
        for wanted in outputs:
            if wanted[1] == _REGION:
                regional = True
        if regional:
            job.regional = True
            self._place(job)
            if job.gpu != ANYWHERE:
                job.only_on = only_on(model, job.gpu)
        if inline_bytes:
            job.inline_bytes = inline_bytes
            if session.bytes + inline_bytes > limits.session_bytes_max:
                raise Unavailable(
                    f"{session.bytes + inline_bytes} inline bytes in flight, at most"
                    f" {limits.session_bytes_max} per client; wait for answers",
                    code=Code.BUDGET_EXCEEDED,
                )

        if parameters or label or trace:
            job.text_bytes = _text_bytes(request)
        job.priority = priority
        if fairness_key and model.takes_turns:
            job.fairness_key = fairness_key
        if not model.config.naiad.retry:
            job.retryable = False
        return job

    def find(self, name: str, version: int) -> ModelVersion:
        """The version that serves a request; -1 is the highest READY one.

        Raises RequestError(NOT_FOUND) or Unavailable(NOT_READY) with Triton's texts.
        """
        model = self._world.models.get(name)
        if model is None:
            if self._world.scanning:
                raise Unavailable(
                    f"model '{name}' is not known yet: the server has just started and reads its"
                    " model repository; try again",
                    code=Code.NOT_READY,
                )
            raise RequestError(
                f"Request for unknown model: '{name}' is not found", code=Code.NOT_FOUND
            )
        if version < 0:
            newest = model.newest()
            if newest is not None:
                return newest
            states = {one.state for one in model.all_versions()}
            reasons = (
                "; ".join(
                    f"version {one.version} is {one.state}"
                    + (f": {one.reason}" if one.reason else "")
                    for one in model.all_versions()
                )
                or model.failure
            )
            raise RequestError(
                f"Request for unknown model: '{name}' has no available versions"
                + (f" ({reasons})" if reasons else ""),
                code=Code.NOT_FOUND,
                retryable=ModelState.LOADING in states
                or any(one.next_retry_ns > 0 for one in model.all_versions()),
            )
        found = model.versions.get(version) or model.incoming.get(version)
        if found is None:
            raise RequestError(
                f"Request for unknown model: '{name}' version {version} is not found",
                code=Code.NOT_FOUND,
            )
        if found.state is not ModelState.READY:
            why = f" ({found.state}{': ' + found.reason if found.reason else ''})"
            raise Unavailable(
                f"Request for unknown model: '{name}' version {version} is not at ready state{why}",
                code=Code.NOT_READY,
            )
        return found

    def _place(self, job: Job) -> None:
        """Give region places the broker's own ids, checked; copy out of large shared frames."""
        request = job.request
        frames = job.frames
        own_frames: Frames | None = None
        inputs = []
        for tensor in request.inputs:
            name, datatype, shape, place, region, offset, size = tensor
            if place == _REGION:
                number, offset = self._resolve(job, region, offset, size, f"input '{name}'")
                tensor = Tensor(name, datatype, shape, _REGION, number, offset, size)
            else:
                if own_frames is None:
                    own_frames = []
                frame = frames[region]
                own_frames.append(frame if len(frame) == size else frame[offset : offset + size])
                tensor = Tensor(name, datatype, shape, _INLINE, len(own_frames) - 1, 0, size)
            inputs.append(tensor)
        outputs = []
        for output in request.outputs:
            if output.place == _REGION:
                number, offset = self._resolve(
                    job, output.region, output.offset, output.size, f"output '{output.name}'"
                )
                output = OutputRequest(output.name, _REGION, number, offset, output.size)
            outputs.append(output)
        job.frames = own_frames or []
        job.wishes = request.outputs
        if outputs and is_written_over(inputs, outputs):
            job.retryable = False
        job.request = request._replace(inputs=tuple(inputs), outputs=tuple(outputs))

    def _resolve(self, job: Job, region: int, offset: int, size: int, what: str) -> tuple[int, int]:
        """(the broker's region id, offset in the segment) of a range a client named."""
        begin = 0
        if region >= NAMED_REGION_BASE:
            named = self._world.named_by_id.get(region)
            if named is None:
                raise RequestError(
                    f"Unable to find shared memory region for {what}: it was unregistered",
                    code=Code.NOT_FOUND,
                )
            known, begin, limit = named.region, named.offset, named.size
        else:
            own = job.session.regions.get(region)
            if own is None:
                raise RequestError(
                    f"{what}: region {region} is not registered by this client; register it first",
                    code=Code.NOT_FOUND,
                )
            known, limit = own, own.size
        if is_cuda(known):
            use_gpu_memory(known, job, what)
        if offset >= limit and (size or offset > limit):
            raise RequestError(
                f"Invalid offset for shared memory region: {what} begins at {offset}, the region"
                f" has {limit} bytes"
            )
        if offset + size > limit:
            raise RequestError(
                f"Invalid offset + byte size for shared memory region: {what} ends at"
                f" {offset + size}, the region has {limit} bytes"
            )
        return known.id, begin + offset


def _text_bytes(request: InferRequest) -> int:
    """What its texts take in a header, at most."""
    texts = [request.label, request.traceparent]
    for key, value in request.parameters.items():
        texts.append(key)
        texts.append(value if type(value) is str else "123456789")
    return sum(5 + len(text.encode()) for text in texts)


def _not_yet(field: str, feature: str) -> RequestError:
    return RequestError(
        f"{field}: {feature} is not in this release; send the request without it",
        code=Code.UNSUPPORTED,
    )
