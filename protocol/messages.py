"""Every message there is, in one place. docs/protocol.md describes them for other languages.

A message is multipart: one header frame, then payload frames. The header is a msgpack array
`[WIRE_VERSION, kind, field, field, ...]` whose fields are exactly those of the class below, in
order. Payload frames carry tensor bytes and everything unbounded (configs, tracebacks, metadata).

Nothing here has behaviour: values are NamedTuples, because a tuple is what msgpack reads and
writes without any conversion on the hot path. `naiad.protocol.codec` checks them.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any, Final, NamedTuple

from naiad.protocol.errors import WireError

WIRE_VERSION: Final = 1

SECRET_BYTES: Final = 16
"""A session or slot proves that it is the same one after a reconnect by this many random bytes."""

CLIENT_HEADER_BYTES_MAX: Final = 64 * 1024
WORKER_HEADER_BYTES_MAX: Final = 1024 * 1024
INLINE_BYTES_MAX: Final = 64 * 1024 * 1024
"""Largest payload frame, and largest sum of the payload frames of one message from a client."""
PAYLOAD_FRAMES_MAX: Final = 4096
REQUESTS_PER_MESSAGE_MAX: Final = 1024


class Kind(IntEnum):
    """The second item of every header. Numbers are never reused."""

    HELLO = 1
    INFER = 2
    CANCEL = 3
    RELEASE = 4
    REGION = 5
    FORGET_REGION = 6
    CONTROL = 7
    BYE = 8

    WELCOME = 16
    ANSWERS = 17
    RELEASED = 18
    REPLY = 19
    REFUSED = 20

    SLOT_HELLO = 32
    LOADED = 33
    RESULTS = 34
    FORGOTTEN = 35

    SLOT_WELCOME = 48
    LOAD = 49
    BATCH = 50
    FORGET = 51
    ABANDON = 52
    RETURN = 53
    STOP = 54

    SUPERVISOR_HELLO = 64
    SPAWNED = 65
    EXITED = 66
    WANT = 80


# --- Parts that several messages share ------------------------------------------------------


class Place(IntEnum):
    """Where a tensor's bytes are."""

    INLINE = 0
    """`region` is the index of a payload frame of the same message."""
    REGION = 1
    """`region` is an id the session registered (client) or the broker's own id (worker)."""
    AUTO = 2
    """Only in a requested output: the server chooses, inline when small, else LEASE."""
    LEASE = 3
    """Only in an answer: in a worker's output arena, until RELEASE names the request."""


class Tensor(NamedTuple):
    """One input of a request or one output of an answer; `size` and `offset` in bytes."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    place: int
    region: int
    offset: int
    size: int


class OutputRequest(NamedTuple):
    """A requested output. With Place.REGION, `size` bytes at `offset` may be written there."""

    name: str
    place: int = Place.AUTO
    region: int = 0
    offset: int = 0
    size: int = 0


class Sequence(NamedTuple):
    """A request's place in a sequence; id 0 or "" means none."""

    id: int | str
    start: bool
    end: bool


class Region(NamedTuple):
    """A POSIX segment. `key` has its leading slash; (device, inode, size) are as stat'ed."""

    id: int
    key: str
    device: int
    inode: int
    size: int


Parameters = dict[str, str | int | float | bool]
PARAMETERS_MAX: Final = 64

ANY_VERSION: Final = -1


class InferRequest(NamedTuple):
    """One inference request as a client sends it.

    `id` is unique within the session; `attempt` is 1, then 2, 3, ... when the client resends after
    a reconnect. `label` is the user's own request id. `outputs` empty means all. `priority` 0 means
    the model's default. `timeout_us` 0 means none. Keys are "" when absent.
    """

    id: int
    attempt: int
    model: str
    version: int
    label: str
    inputs: tuple[Tensor, ...]
    outputs: tuple[OutputRequest, ...]
    priority: int = 0
    timeout_us: int = 0
    sequence: Sequence | None = None
    accounting_key: str = ""
    fairness_key: str = ""
    traceparent: str = ""
    parameters: Parameters = {}  # noqa: RUF012 - a default that nobody may write to; never mutated


class InferAnswer(NamedTuple):
    """One part of an answer; `final` marks the last. `version` is the one that ran."""

    id: int
    error: WireError | None
    version: int
    outputs: tuple[Tensor, ...]
    part_index: int = 0
    final: bool = True
    parameters: Parameters = {}  # noqa: RUF012


class BatchRequest(NamedTuple):
    """One request of a batch as the worker gets it: REGION ids are the broker's own.

    (`session`, `id`) name it across broker restarts. `remaining_us` is what is left of its budget
    (0: unlimited).
    """

    session: int
    id: int
    label: str
    inputs: tuple[Tensor, ...]
    outputs: tuple[OutputRequest, ...]
    remaining_us: int = 0
    priority: int = 0
    sequence: Sequence | None = None
    traceparent: str = ""
    parameters: Parameters = {}  # noqa: RUF012


class BatchResult(NamedTuple):
    """What became of one request of a batch, in the batch's order."""

    error: WireError | None
    outputs: tuple[Tensor, ...]
    part_index: int = 0
    final: bool = True
    parameters: Parameters = {}  # noqa: RUF012


class HeldBatch(NamedTuple):
    """A batch that a worker still has when it says hello: `finished` ones are sent again."""

    id: int
    requests: tuple[tuple[int, int], ...]
    finished: bool


class Durations(NamedTuple):
    """Nanoseconds of one batch in the worker: reading inputs, the model itself, writing outputs."""

    input_ns: int
    infer_ns: int
    output_ns: int


# --- Client → broker -----------------------------------------------------------------------


class Hello(NamedTuple):
    """First message on a connection. `incarnation` is the broker last spoken to (0: none).

    `role` is for people ("client", "gateway", ...), as is `pid` (a container says 1).
    `leases` are the request ids whose leased outputs the client still reads.
    """

    secret: bytes
    role: str
    software: str
    pid: int
    incarnation: int
    leases: tuple[tuple[int, int], ...] = ()


class Infer(NamedTuple):
    requests: tuple[InferRequest, ...]


class Cancel(NamedTuple):
    ids: tuple[int, ...]


class Release(NamedTuple):
    """Leased outputs of these requests are no longer read: pairs (region id, request id)."""

    leases: tuple[tuple[int, int], ...]


class RegisterRegion(NamedTuple):
    """The session's own arena or region; its id is chosen by the client, never reused by it."""

    call: int
    region: Region


class ForgetRegion(NamedTuple):
    call: int
    id: int


class Control(NamedTuple):
    """Everything rare: health, metadata, repository, statistics, named regions."""

    call: int
    operation: str
    arguments: Parameters


class Bye(NamedTuple):
    """The session ends now: cancel what is queued, release everything."""


# --- Broker → client -----------------------------------------------------------------------


class Welcome(NamedTuple):
    incarnation: int
    server: str
    software: str
    requests_max: int
    bytes_max: int
    inline_bytes_max: int
    resumed: bool


class Answers(NamedTuple):
    """`regions` defines worker arenas that LEASE outputs of this or later messages point into."""

    incarnation: int
    answers: tuple[InferAnswer, ...]
    regions: tuple[Region, ...] = ()


class Released(NamedTuple):
    """No process reads or writes the memory of these (expired or cancelled) requests any more."""

    incarnation: int
    ids: tuple[int, ...]


class Reply(NamedTuple):
    """Answer to Control, RegisterRegion or ForgetRegion; the result is JSON in payload frame 0."""

    call: int
    error: WireError | None


class Refused(NamedTuple):
    """The peer may not go on. This layout is the same in every wire version."""

    code: str
    message: str


# --- Worker → broker -----------------------------------------------------------------------


class SlotHello(NamedTuple):
    """`device` is "cpu" or "gpu:<uuid>". `instance` is 0 for an empty slot.

    `arenas` are the worker's own output segments, `leases` what is still lent from them as
    (session, request id).
    """

    secret: bytes
    slot: str
    device: str
    pid: int
    software: str
    backends: tuple[str, ...]
    incarnation: int
    instance: int
    model: str
    version: int
    held: tuple[HeldBatch, ...]
    arenas: tuple[Region, ...]
    leases: tuple[tuple[int, int], ...]


class Loaded(NamedTuple):
    """Payload frame 0: the completed config as JSON, or the traceback when `error` is set."""

    instance: int
    error: WireError | None
    load_ns: int


class Results(NamedTuple):
    """`arenas`: output segments made since the last message; `splits`: extra executions."""

    batch: int
    results: tuple[BatchResult, ...]
    durations: Durations
    splits: int
    arenas: tuple[Region, ...]


class Forgotten(NamedTuple):
    """These regions are unmapped (and unregistered from CUDA)."""

    ids: tuple[int, ...]


# --- Broker → worker -----------------------------------------------------------------------


class SlotWelcome(NamedTuple):
    """`keep`: this slot's instance is still wanted; otherwise it drains and exits."""

    incarnation: int
    server: str
    keep: bool


class Load(NamedTuple):
    """Payload frame 0: the model's config as JSON. `threads` 0 leaves the backend's own default."""

    instance: int
    model: str
    version: int
    instance_name: str
    directory: str
    kind: str
    device_id: int
    threads: int


class Batch(NamedTuple):
    """`acknowledged`: the newest batch whose results arrived; `regions`: new to this worker."""

    id: int
    acknowledged: int
    requests: tuple[BatchRequest, ...]
    regions: tuple[Region, ...]


class Forget(NamedTuple):
    ids: tuple[int, ...]


class Abandon(NamedTuple):
    """Nobody waits for these any more: (session, request id) of cancelled requests."""

    requests: tuple[tuple[int, int], ...]


class Return(NamedTuple):
    """Leases that ended: (session, request id)."""

    leases: tuple[tuple[int, int], ...]


class Stop(NamedTuple):
    """Finish what is there, unload, exit with code 0 within `grace_ms`."""

    grace_ms: int


# --- Supervisor ↔ broker -------------------------------------------------------------------


class SupervisorHello(NamedTuple):
    secret: bytes
    pid: int
    incarnation: int
    slots: tuple[tuple[str, int], ...]


class Spawned(NamedTuple):
    slot: str
    pid: int


class Exited(NamedTuple):
    """`status` as os.waitstatus_to_exitcode: negative for a signal."""

    slot: str
    pid: int
    status: int


class Want(NamedTuple):
    """Keep `slots` worker processes (used ones and a warm spare) on `device`.

    `preload`: backends to import before the first HELLO, so that a spare takes over at once.
    """

    device: str
    slots: int
    preload: tuple[str, ...]


Message = (
    Hello
    | Infer
    | Cancel
    | Release
    | RegisterRegion
    | ForgetRegion
    | Control
    | Bye
    | Welcome
    | Answers
    | Released
    | Reply
    | Refused
    | SlotHello
    | Loaded
    | Results
    | Forgotten
    | SlotWelcome
    | Load
    | Batch
    | Forget
    | Abandon
    | Return
    | Stop
    | SupervisorHello
    | Spawned
    | Exited
    | Want
)

KIND_OF: Final[dict[type[Any], Kind]] = {
    Hello: Kind.HELLO,
    Infer: Kind.INFER,
    Cancel: Kind.CANCEL,
    Release: Kind.RELEASE,
    RegisterRegion: Kind.REGION,
    ForgetRegion: Kind.FORGET_REGION,
    Control: Kind.CONTROL,
    Bye: Kind.BYE,
    Welcome: Kind.WELCOME,
    Answers: Kind.ANSWERS,
    Released: Kind.RELEASED,
    Reply: Kind.REPLY,
    Refused: Kind.REFUSED,
    SlotHello: Kind.SLOT_HELLO,
    Loaded: Kind.LOADED,
    Results: Kind.RESULTS,
    Forgotten: Kind.FORGOTTEN,
    SlotWelcome: Kind.SLOT_WELCOME,
    Load: Kind.LOAD,
    Batch: Kind.BATCH,
    Forget: Kind.FORGET,
    Abandon: Kind.ABANDON,
    Return: Kind.RETURN,
    Stop: Kind.STOP,
    SupervisorHello: Kind.SUPERVISOR_HELLO,
    Spawned: Kind.SPAWNED,
    Exited: Kind.EXITED,
    Want: Kind.WANT,
}
