"""What clients and brokers say to each other; imported through `naiad.protocol.messages`."""

from __future__ import annotations

from typing import NamedTuple

from naiad.protocol.errors import WireError
from naiad.protocol.parts import InferAnswer, InferRequest, Parameters, Region

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
    """The session's own arena or region; its id is chosen by the client, never reused by it.

    `gpu` is the UUID of the GPU that the memory is on, without "GPU-" or "MIG-". With it, the
    region's `device` is the client's own number for it, which says nothing to others.
    """

    call: int
    region: Region
    gpu: str = ""


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
