"""A request while the broker has it, and the batch it travels in."""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING, Final

from naiad.protocol.messages import Place

if TYPE_CHECKING:
    from naiad.broker.core.accounts import Account
    from naiad.broker.core.events import Frames
    from naiad.broker.core.instances import Slot
    from naiad.broker.core.lanes import Flow
    from naiad.broker.core.models import ModelVersion
    from naiad.broker.core.sessions import Session
    from naiad.protocol.errors import NaiadError
    from naiad.protocol.messages import InferRequest, OutputRequest


ANYWHERE: Final = -1
"""In place of a GPU's number: a request that has no memory on one, an instance that sees all."""


class JobState(IntEnum):
    """Where a request is; who may use its memory follows from it."""

    QUEUED = 0
    EARLY = 1
    """Sent to a worker that still runs another batch: counts as queued."""
    EXECUTING = 2
    ANSWERED = 3
    """The client has its (error) answer; the worker may still touch the request's memory."""
    DONE = 4


class Job:
    """One admitted request. Created by admission, owned by its session until answered.

    `rows` is its size in a batch (dim 0, at least 1). `key` decides which requests may share a
    batch, `fairness_key` whose turn it takes. `deaths_alone` counts workers that died while
    executing it with no other request.
    """

    # Class-level defaults: most requests never touch these, and each saved store counts.
    rows = 1
    key: object = None
    gpu = ANYWHERE
    """Where tensors of it lie in GPU memory: an instance on another GPU cannot execute it."""
    only_on = ANYWHERE
    """That GPU, if its model has instances which do not see it: it waits apart from the others."""
    fairness_key = ""
    flow: Flow
    """Where it stands; set by the level it is pushed to."""
    account: Account | None = None
    """Of its user, while it is in flight; none without an accounting key."""
    priority = 0
    level = 0
    deadline_ns = 0
    timeout_ns = 0
    inline_bytes = 0
    batch: Batch | None = None
    fault: NaiadError | None = None
    """What was answered while a worker still had it."""
    deaths_alone = 0
    suspect = False
    retryable = True
    text_bytes = 0
    """Of its label, traceparent and parameters, which travel in headers."""
    wishes: tuple[OutputRequest, ...] = ()
    """With regions: the requested outputs as the client wrote them, under its own region ids."""
    regional = False
    """Whether some tensor is in a region (or was copied out of a large shared frame)."""

    def __init__(
        self,
        number: int,
        session: Session,
        request: InferRequest,
        model: ModelVersion,
        frames: Frames,
        now_ns: int,
    ) -> None:
        self.number = number
        self.session = session
        self.request = request
        self.model = model
        self.frames = frames
        self.enqueued_ns = now_ns
        self.first_enqueued_ns = now_ns
        self.state = JobState.QUEUED

    def regions(self) -> set[int]:
        """The broker's ids of the regions that inputs and outputs lie in."""
        if not self.regional:
            return set()
        request = self.request
        inputs = {one.region for one in request.inputs if one.place == Place.REGION}
        return inputs | {one.region for one in request.outputs if one.place == Place.REGION}

    def __repr__(self) -> str:
        return (
            f"<job {self.number} {self.model.name}/{self.model.version}"
            f" session={self.session.key:x} id={self.request.id} {self.state.name}>"
        )


class Batch:
    """Jobs sent to one worker together. An adopted batch (after a broker restart) has `keys`
    for requests whose clients have not come back yet: jobs[i] is None until then."""

    __slots__ = (
        "early",
        "id",
        "jobs",
        "keys",
        "reason",
        "rows",
        "sent_ns",
        "slot",
        "start_ns",
    )

    def __init__(self, ident: int, slot: Slot, jobs: list[Job | None], rows: int, now_ns: int):
        self.id = ident
        self.slot = slot
        self.jobs = jobs
        self.rows = rows
        self.sent_ns = now_ns
        self.start_ns = now_ns
        self.early = False
        self.reason = ""
        """What closed it (see batcher); counted when it was executed."""
        self.keys: list[tuple[int, int]] = []
