"""gRPC status codes, as numbers, of everything that can go wrong. Pure.

Triton's mapping where it has the case. Load is told apart from absence: RESOURCE_EXHAUSTED is the
caller's own share being used up, UNAVAILABLE the server's state, which another attempt may meet
otherwise.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final

from naiad.protocol.errors import Code


class Status(IntEnum):
    """The codes of the gRPC specification that are answered here."""

    OK = 0
    CANCELLED = 1
    UNKNOWN = 2
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    NOT_FOUND = 5
    ALREADY_EXISTS = 6
    PERMISSION_DENIED = 7
    RESOURCE_EXHAUSTED = 8
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14


STATUS_OF: Final[dict[Code, Status]] = {
    Code.INVALID_ARGUMENT: Status.INVALID_ARGUMENT,
    Code.NOT_FOUND: Status.NOT_FOUND,
    Code.ALREADY_EXISTS: Status.ALREADY_EXISTS,
    Code.UNSUPPORTED: Status.UNIMPLEMENTED,
    Code.PERMISSION_DENIED: Status.PERMISSION_DENIED,
    Code.CANCELLED: Status.CANCELLED,
    Code.POISON_REQUEST: Status.INTERNAL,
    Code.REGION_TRUNCATED: Status.INVALID_ARGUMENT,
    Code.MODEL_ERROR: Status.INTERNAL,
    Code.MODEL_OUTPUT_INVALID: Status.INTERNAL,
    Code.LOAD_FAILED: Status.INVALID_ARGUMENT,
    Code.UNAVAILABLE: Status.UNAVAILABLE,
    Code.NOT_READY: Status.UNAVAILABLE,
    Code.DRAINING: Status.UNAVAILABLE,
    Code.QUEUE_FULL: Status.UNAVAILABLE,
    Code.BUDGET_EXCEEDED: Status.RESOURCE_EXHAUSTED,
    Code.TIMEOUT: Status.UNAVAILABLE,
    Code.WORKER_DIED: Status.UNAVAILABLE,
    Code.CONNECTION_LOST: Status.UNAVAILABLE,
    Code.PROTOCOL_ERROR: Status.INTERNAL,
    Code.VERSION_MISMATCH: Status.UNAVAILABLE,
    Code.INTERNAL: Status.INTERNAL,
}
"""A poison request crashed its model; whose fault its bytes are, a gateway cannot know."""
