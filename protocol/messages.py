"""Every message there is, in one place. docs/protocol.md describes them for other languages.

They are defined in `parts` (what several are made of), `client_messages` and `worker_messages`;
this is where everybody imports them from, and the list of their kinds and limits.

A message is multipart: one header frame, then payload frames. The header is a msgpack array
`[WIRE_VERSION, kind, field, field, ...]` whose fields are exactly those of its class, in
order. Payload frames carry tensor bytes and everything unbounded (configs, tracebacks, metadata).

Nothing here has behaviour: values are NamedTuples, because a tuple is what msgpack reads and
writes without any conversion on the hot path. `naiad.protocol.codec` checks them.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any, Final

from naiad.protocol.client_messages import (
    Answers,
    Bye,
    Cancel,
    Control,
    ForgetRegion,
    Hello,
    Infer,
    Refused,
    RegisterRegion,
    Release,
    Released,
    Reply,
    Welcome,
)
from naiad.protocol.parts import (
    ANY_VERSION,
    PARAMETERS_MAX,
    BatchRequest,
    BatchResult,
    Durations,
    HeldBatch,
    InferAnswer,
    InferRequest,
    OutputRequest,
    Parameters,
    Place,
    Region,
    Sequence,
    Tensor,
)
from naiad.protocol.worker_messages import (
    Abandon,
    Batch,
    Bundle,
    Exited,
    Forget,
    Forgotten,
    GivenBack,
    Load,
    Loaded,
    LogLevels,
    Results,
    Return,
    SlotHello,
    SlotWelcome,
    Spawned,
    Stop,
    SupervisorHello,
    Want,
)

__all__ = [
    "ANY_VERSION",
    "CLIENT_HEADER_BYTES_MAX",
    "COPY_BYTES_MAX",
    "INLINE_BYTES_MAX",
    "KIND_OF",
    "PARAMETERS_MAX",
    "PAYLOAD_FRAMES_MAX",
    "REQUESTS_PER_MESSAGE_MAX",
    "SECRET_BYTES",
    "WIRE_VERSION",
    "WORKER_HEADER_BYTES_MAX",
    "Abandon",
    "Answers",
    "Batch",
    "BatchRequest",
    "BatchResult",
    "Bundle",
    "Bye",
    "Cancel",
    "Control",
    "Durations",
    "Exited",
    "Forget",
    "ForgetRegion",
    "Forgotten",
    "GivenBack",
    "HeldBatch",
    "Hello",
    "Infer",
    "InferAnswer",
    "InferRequest",
    "Kind",
    "Load",
    "Loaded",
    "LogLevels",
    "Message",
    "OutputRequest",
    "Parameters",
    "Place",
    "Refused",
    "Region",
    "RegisterRegion",
    "Release",
    "Released",
    "Reply",
    "Results",
    "Return",
    "Sequence",
    "SlotHello",
    "SlotWelcome",
    "Spawned",
    "Stop",
    "SupervisorHello",
    "Tensor",
    "Want",
    "Welcome",
]

WIRE_VERSION: Final = 1

SECRET_BYTES: Final = 16
"""A session or slot proves that it is the same one after a reconnect by this many random bytes."""

CLIENT_HEADER_BYTES_MAX: Final = 64 * 1024
WORKER_HEADER_BYTES_MAX: Final = 1024 * 1024
INLINE_BYTES_MAX: Final = 64 * 1024 * 1024
"""Largest payload frame, and largest sum of the payload frames of one message from a client."""
COPY_BYTES_MAX: Final = 256 * 1024
"""Larger frames go to libzmq by reference; below, a copy costs less than the bookkeeping."""
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
    GIVEN_BACK = 36

    SLOT_WELCOME = 48
    LOAD = 49
    BATCH = 50
    FORGET = 51
    ABANDON = 52
    RETURN = 53
    STOP = 54
    LOG_LEVELS = 55

    SUPERVISOR_HELLO = 64
    SPAWNED = 65
    EXITED = 66
    WANT = 80

    BUNDLE = 96


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
    | GivenBack
    | SlotWelcome
    | Load
    | Batch
    | Forget
    | Abandon
    | Return
    | Stop
    | LogLevels
    | SupervisorHello
    | Spawned
    | Exited
    | Want
    | Bundle
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
    GivenBack: Kind.GIVEN_BACK,
    SlotWelcome: Kind.SLOT_WELCOME,
    Load: Kind.LOAD,
    Batch: Kind.BATCH,
    Forget: Kind.FORGET,
    Abandon: Kind.ABANDON,
    Return: Kind.RETURN,
    Stop: Kind.STOP,
    LogLevels: Kind.LOG_LEVELS,
    SupervisorHello: Kind.SUPERVISOR_HELLO,
    Spawned: Kind.SPAWNED,
    Exited: Kind.EXITED,
    Want: Kind.WANT,
    Bundle: Kind.BUNDLE,
}
