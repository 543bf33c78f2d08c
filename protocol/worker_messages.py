"""What workers, supervisors and brokers say to each other; imported through
`naiad.protocol.messages`.
"""

from __future__ import annotations

from typing import NamedTuple

from naiad.protocol.errors import WireError
from naiad.protocol.parts import BatchRequest, BatchResult, Durations, HeldBatch, Region

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
    """Payload frame 0: the completed config as JSON, or the traceback when `error` is set.

    `gpu_bytes`: GPU memory that the instance has taken, 0 where nobody can tell. An error that may
    be retried says that there was not enough of it.
    """

    instance: int
    error: WireError | None
    load_ns: int
    gpu_bytes: int = 0


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


class GivenBack(NamedTuple):
    """Batches that this worker has not begun, and will not: an execution before them is long."""

    batches: tuple[int, ...]


# --- Broker → worker -----------------------------------------------------------------------


class SlotWelcome(NamedTuple):
    """`keep`: this slot's instance is still wanted; otherwise it drains and exits."""

    incarnation: int
    server: str
    keep: bool


class Load(NamedTuple):
    """Payload frame 0: the model's config as JSON. `threads` 0 leaves the backend's own default.

    `auto_complete`: whether the backend, and the model's own code, may add to the config.
    `gpu_bytes`: GPU memory that another instance of the model took, 0 while nobody knows.
    """

    instance: int
    model: str
    version: int
    instance_name: str
    directory: str
    kind: str
    device_id: int
    threads: int
    auto_complete: bool
    gpu_bytes: int = 0


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


class LogLevels(NamedTuple):
    """What to write to the log from now on; also told to the supervisor. `format` as Triton's."""

    info: bool
    warning: bool
    error: bool
    verbose: int
    format: str


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


# --- Either way ----------------------------------------------------------------------------


class Bundle(NamedTuple):
    """Several messages in one: `counts` are their payload frames (see protocol.bundle)."""

    counts: tuple[int, ...]
