"""The error family, by blame, with codes that never change once released.

    bytes ─ProtocolError─▶ request ─RequestError─▶ queue ─Unavailable─▶ worker ─ModelError─▶ answer
                                       (our own fault, anywhere: InternalError)

Owns the mapping between exceptions and their wire form (code, message, retryable). HTTP and gRPC
statuses are not known here: a gateway maps codes to them.
"""

from __future__ import annotations

from enum import StrEnum
from typing import ClassVar, Final

MESSAGE_BYTES_MAX: Final = 8_000
"""A message longer than this is cut: texts from user code are not bounded otherwise. Well below the
longest string of a message, because a client's label may come in front."""


class Code(StrEnum):
    """Stable names of everything that can go wrong."""

    # yours
    INVALID_ARGUMENT = "invalid_argument"
    NOT_FOUND = "not_found"
    ALREADY_EXISTS = "already_exists"
    UNSUPPORTED = "unsupported"
    PERMISSION_DENIED = "permission_denied"
    CANCELLED = "cancelled"
    POISON_REQUEST = "poison_request"
    REGION_TRUNCATED = "region_truncated"
    # the model's
    MODEL_ERROR = "model_error"
    MODEL_OUTPUT_INVALID = "model_output_invalid"
    LOAD_FAILED = "load_failed"
    # nobody's: load, time, death; trying again later can succeed
    UNAVAILABLE = "unavailable"
    NOT_READY = "not_ready"
    DRAINING = "draining"
    QUEUE_FULL = "queue_full"
    BUDGET_EXCEEDED = "budget_exceeded"
    TIMEOUT = "timeout"
    WORKER_DIED = "worker_died"
    CONNECTION_LOST = "connection_lost"
    # a peer broke the rules
    PROTOCOL_ERROR = "protocol_error"
    VERSION_MISMATCH = "version_mismatch"
    # ours
    INTERNAL = "internal"


WireError = tuple[str, str, bool]


class NaiadError(Exception):
    """Base of the family; raised only through its subclasses.

    Attributes: `code` (see Code), `message` (what was expected, what came, what to do) and
    `retryable` (whether the same request may succeed later without being changed).
    The message is kept as any wire can carry it: see `encodable`.
    """

    default_code: ClassVar[Code] = Code.INTERNAL
    always_retryable: ClassVar[bool] = False

    def __init__(
        self, message: str, *, code: Code | None = None, retryable: bool | None = None
    ) -> None:
        self.code = self.default_code if code is None else code
        self.message = encodable(message, MESSAGE_BYTES_MAX)
        self.retryable = self.always_retryable if retryable is None else retryable
        super().__init__(self.message)

    def __reduce__(self) -> tuple[object, ...]:
        return (error_from_wire, (self.wire(),))

    def wire(self) -> WireError:
        """(code, message, retryable): the form that travels in answers."""
        return (str(self.code), self.message, self.retryable)


def encodable(text: str, size_bytes_max: int) -> str:
    """The text, cut to so many bytes of UTF-8; lone surrogates are written out, as \\udc80.

    Python's texts may hold them (file names, JSON escapes), UTF-8 may not.
    """
    content = text[:size_bytes_max].encode("utf-8", "backslashreplace")
    return content[:size_bytes_max].decode("utf-8", "ignore")


class RequestError(NaiadError):
    """The request is wrong; sending it again unchanged fails again."""

    default_code = Code.INVALID_ARGUMENT


class ModelError(NaiadError):
    """The model's own code failed, or what it returned does not fit its configuration."""

    default_code = Code.MODEL_ERROR


class Unavailable(NaiadError):
    """Nothing is wrong with the request: no capacity, no instance or no time for it now."""

    default_code = Code.UNAVAILABLE
    always_retryable = True


class ProtocolError(NaiadError):
    """A peer sent bytes that are not a message."""

    default_code = Code.PROTOCOL_ERROR


class InternalError(NaiadError):
    """A fault of naiad itself."""

    default_code = Code.INTERNAL


_BLAME: Final[dict[Code, type[NaiadError]]] = {
    **dict.fromkeys(
        (
            Code.INVALID_ARGUMENT,
            Code.NOT_FOUND,
            Code.ALREADY_EXISTS,
            Code.UNSUPPORTED,
            Code.PERMISSION_DENIED,
            Code.CANCELLED,
            Code.POISON_REQUEST,
            Code.REGION_TRUNCATED,
        ),
        RequestError,
    ),
    **dict.fromkeys((Code.MODEL_ERROR, Code.MODEL_OUTPUT_INVALID, Code.LOAD_FAILED), ModelError),
    **dict.fromkeys(
        (
            Code.UNAVAILABLE,
            Code.NOT_READY,
            Code.DRAINING,
            Code.QUEUE_FULL,
            Code.BUDGET_EXCEEDED,
            Code.TIMEOUT,
            Code.WORKER_DIED,
            Code.CONNECTION_LOST,
        ),
        Unavailable,
    ),
    Code.PROTOCOL_ERROR: ProtocolError,
    Code.VERSION_MISMATCH: ProtocolError,
    Code.INTERNAL: InternalError,
}


def error_from_wire(wire: WireError) -> NaiadError:
    """The exception for a wire triple; a code of a newer peer becomes InternalError, text kept."""
    name, message, retryable = wire
    try:
        code = Code(name)
    except ValueError:
        return InternalError(f"{name}: {message}", retryable=retryable)
    return _BLAME[code](message, code=code, retryable=retryable)
