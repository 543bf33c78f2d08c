"""What the shell tells the scheduler (events, past tense) and what it is told to do (actions).

Sessions and slots are named by integers derived from their secrets, so that the same client or
worker keeps its name over reconnects and over restarts of the broker.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from naiad.protocol import messages as m
from naiad.protocol.errors import NaiadError, WireError

Frames = list[bytes]
Json = dict[str, Any]


# --- Events: clients ----------------------------------------------------------------------------


class SessionOpened(NamedTuple):
    """A client said HELLO; `pid` is the kernel's word, 0 if unknown."""

    session: int
    role: str
    pid: int
    leases: tuple[tuple[int, int], ...]


class SessionLost(NamedTuple):
    """The connection is gone; the client may come back."""

    session: int


class SessionEnded(NamedTuple):
    """The client said BYE, or its process is dead for certain."""

    session: int


class RequestsArrived(NamedTuple):
    """One INFER message; `frames` are its payload frames, which the requests' inputs point into."""

    session: int
    requests: tuple[m.InferRequest, ...]
    frames: Frames


class CancelAsked(NamedTuple):
    """Nobody waits for these requests any more; unknown ids are passed over."""

    session: int
    ids: tuple[int, ...]


class LeasesReleased(NamedTuple):
    """The client reads these outputs no more: (arena, request id)."""

    session: int
    leases: tuple[tuple[int, int], ...]


class RegionOffered(NamedTuple):
    """`fault` is what the shell found wrong with the segment, if anything; `gpu` is the UUID of the
    GPU, where the client told it."""

    session: int
    call: int
    region: m.Region
    fault: NaiadError | None
    gpu: str = ""


class RegionDropped(NamedTuple):
    """The client forgets a region of its own; `id` is its number for it."""

    session: int
    call: int
    id: int


class ControlAsked(NamedTuple):
    """A call beside inference, `call` is its number; `payload` is what comes with a load."""

    session: int
    call: int
    operation: str
    arguments: m.Parameters
    payload: bytes


class NamedRegionStated(NamedTuple):
    """The shell looked at the segment behind a region_register; `region.id` is still 0."""

    session: int
    call: int
    name: str
    region: m.Region | None
    fault: NaiadError | None
    offset: int
    size: int


class NamedRegionsGone(NamedTuple):
    """The segments behind these server-owned regions do not exist any more."""

    names: tuple[str, ...]


# --- Events: workers and the supervisor -----------------------------------------------------------


class SlotOpened(NamedTuple):
    """A worker said hello, new or back on another connection; `pid` is the kernel's word."""

    slot: int
    hello: m.SlotHello
    pid: int


class SlotSilent(NamedTuple):
    """Heartbeats stopped or the connection closed; the shell is fencing the process.

    `is_killed`: by SIGKILL already. Else it is unloading, and may take its time.
    """

    slot: int
    is_killed: bool


class SlotDied(NamedTuple):
    """The process is dead for certain.

    `executing` is the batch named in its slot page (0: none). `ordered` is true when the broker
    itself had it killed, for whatever reason. `truncated` lists broker region ids that shrank
    meanwhile. `begun` is the newest batch it ever began: that one and older ones may have been
    executed, whether or not their results came.
    """

    slot: int
    reason: str
    executing: int
    ordered: bool
    truncated: tuple[int, ...] = ()
    begun: int = 0


class InstanceLoaded(NamedTuple):
    """The worker's answer to LOAD: the completed config, or the error.

    `gpu_bytes` is what it took of its GPU's memory, 0 where nobody can tell.
    """

    slot: int
    instance: int
    error: WireError | None
    load_ns: int
    config: Json | None
    gpu_bytes: int = 0


class BatchFinished(NamedTuple):
    """One RESULTS message; `frames` are its payload frames, which inline outputs point into."""

    slot: int
    results: m.Results
    frames: Frames


class BatchesGivenBack(NamedTuple):
    """Its worker has not begun them, and will not."""

    slot: int
    batches: tuple[int, ...]


class RegionsForgotten(NamedTuple):
    """The worker has closed these regions of GPU memory (the broker's ids)."""

    slot: int
    ids: tuple[int, ...]


class SupervisorOpened(NamedTuple):
    """It wants to know all over again how many workers there shall be."""


# --- Events: the rest -----------------------------------------------------------------------------


class RepositoryScanned(NamedTuple):
    """Answer to ScanRepository: one entry per model (see config.repository), or a fault.

    `is_lost`: the fault is that nobody could look, and says nothing of the repository. `notes` say
    what lies there and was passed over.
    """

    token: int
    models: tuple[Json, ...]
    fault: str | None
    is_lost: bool = False
    notes: tuple[str, ...] = ()
    only_names: bool = False


class RoomWasShort(NamedTuple):
    """So many more outputs went inline, because workers found no room in shared memory."""

    outputs: int


class PeersFaulted(NamedTuple):
    """So many messages broke the protocol and were refused, and so many clients' sessions were
    ended for that, or because they did not read. To be counted: what follows from it is told by
    events of its own."""

    messages: int
    sessions: int


class TimePassed(NamedTuple):
    """Nothing happened; timers and deadlines are looked at, as with every event."""


class FaultArose(NamedTuple):
    """A part of the shell failed by a fault of its own at `what`, and nothing is half done.

    `call` of `session` is answered with it; 0: there is no call.
    """

    session: int
    call: int
    what: str
    fault: Exception


class DrainAsked(NamedTuple):
    """Stop; what is not finished by `until_ns` is given up."""

    until_ns: int


Event = (
    SessionOpened
    | SessionLost
    | SessionEnded
    | RequestsArrived
    | CancelAsked
    | LeasesReleased
    | RegionOffered
    | RegionDropped
    | ControlAsked
    | NamedRegionStated
    | NamedRegionsGone
    | SlotOpened
    | SlotSilent
    | SlotDied
    | InstanceLoaded
    | BatchFinished
    | BatchesGivenBack
    | RegionsForgotten
    | SupervisorOpened
    | RepositoryScanned
    | RoomWasShort
    | PeersFaulted
    | TimePassed
    | FaultArose
    | DrainAsked
)


# --- Actions --------------------------------------------------------------------------------------


class SendAnswers(NamedTuple):
    """One message to a client; `regions` are workers' arenas that answers lie in, `frames` the
    payload."""

    session: int
    answers: list[m.InferAnswer]
    regions: tuple[m.Region, ...]
    frames: Frames


class SendBatch(NamedTuple):
    """To a worker, with the payload frames of its inline inputs."""

    slot: int
    batch: m.Batch
    frames: Frames


class TellSession(NamedTuple):
    """Any other message to a client, without payload."""

    session: int
    message: m.Message


class TellSlot(NamedTuple):
    """Any other message to a worker."""

    slot: int
    message: m.Message
    frames: Frames


class SendReply(NamedTuple):
    """Result of a call: JSON-able, or an error."""

    session: int
    call: int
    error: NaiadError | None
    result: Any


class CloseSession(NamedTuple):
    """Forget the connection of a session that broke a limit."""

    session: int
    error: NaiadError


class ForgetSession(NamedTuple):
    """It has ended, and unless it has come back its process need not be watched any more."""

    session: int


class KillSlot(NamedTuple):
    """SIGKILL; its death is told as SlotDied, `ordered`, with this reason."""

    slot: int
    reason: str


class TellSupervisor(NamedTuple):
    """How many workers a device shall have."""

    message: m.Want


class ScanRepository(NamedTuple):
    """Ask the repository helper; `names` None means every model. `override` is JSON or None.

    `only_names`: which models lie there, without looking at any.
    `upload` names the folder to look into instead of the repositories, if any.
    """

    token: int
    names: tuple[str, ...] | None
    override: str | None
    only_names: bool = False
    upload: str = ""


class KeepUploads(NamedTuple):
    """Remove these folders of files that came with loads, and what is older and not kept."""

    kept: frozenset[str]
    dropped: tuple[str, ...]


class StatNamedRegion(NamedTuple):
    """Look at the segment `key`; answered by NamedRegionStated. `offset` and `size` in bytes."""

    session: int
    call: int
    name: str
    key: str
    offset: int
    size: int


class SaveState(NamedTuple):
    """Something that must survive the broker changed; the shell asks Scheduler.snapshot()."""


class Log(NamedTuple):
    """A line; `level` as in config.log_levels."""

    level: str
    text: str


class TellFault(NamedTuple):
    """A fault of the broker itself, which cost no more than the one thing it was doing: the log
    gets the traceback."""

    what: str
    fault: Exception


class SetLogLevels(NamedTuple):
    """What every process of this server is to write to the log from now on."""

    levels: m.LogLevels


class Quit(NamedTuple):
    """Everything ended; the process may exit with this code."""

    code: int


Action = (
    SendAnswers
    | SendBatch
    | TellSession
    | TellSlot
    | SendReply
    | CloseSession
    | ForgetSession
    | KillSlot
    | TellSupervisor
    | ScanRepository
    | KeepUploads
    | StatNamedRegion
    | SaveState
    | Log
    | TellFault
    | SetLogLevels
    | Quit
)
