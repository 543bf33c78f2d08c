"""HTTP statuses of everything that can go wrong, and error bodies. Pure.

The texts come from below and are not changed here; the statuses are Triton's, except where a client
could not tell its own fault from the server's (docs/compatibility.md).
"""

from __future__ import annotations

from http import HTTPStatus
from json import dumps
from typing import Final

from naiad.gateway.error_text import told
from naiad.protocol.errors import Code, NaiadError

STATUS_OF: Final[dict[Code, int]] = {
    Code.INVALID_ARGUMENT: 400,
    Code.NOT_FOUND: 404,
    Code.ALREADY_EXISTS: 400,
    Code.UNSUPPORTED: 501,
    Code.PERMISSION_DENIED: 403,
    Code.CANCELLED: 400,
    Code.POISON_REQUEST: 500,
    Code.REGION_TRUNCATED: 400,
    Code.MODEL_ERROR: 500,
    Code.MODEL_OUTPUT_INVALID: 500,
    Code.LOAD_FAILED: 400,
    Code.UNAVAILABLE: 503,
    Code.NOT_READY: 503,
    Code.DRAINING: 503,
    Code.QUEUE_FULL: 503,
    Code.BUDGET_EXCEEDED: 429,
    Code.TIMEOUT: 503,
    Code.WORKER_DIED: 503,
    Code.CONNECTION_LOST: 503,
    Code.PROTOCOL_ERROR: 500,
    Code.VERSION_MISMATCH: 503,
    Code.INTERNAL: 500,
}
"""A poison request is a 500, not a 4xx: the model crashed, and a gateway cannot know whose fault
the bytes were. It is not retryable all the same."""

RETRY_AFTER_SECONDS: Final = 1
_RETRY_LATER: Final = frozenset(
    {Code.UNAVAILABLE, Code.NOT_READY, Code.DRAINING, Code.QUEUE_FULL, Code.BUDGET_EXCEEDED}
)
"""Load, which passes. Not time that ran out or a death: those may be retried at once."""


class HttpError(Exception):
    """A fault of the HTTP request itself, or one that has a status of its own.

    `closes`: nothing more can be read from this connection.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        headers: tuple[tuple[str, str], ...] = (),
        closes: bool = False,
    ) -> None:
        self.status = status
        self.message = message
        self.headers = headers
        self.closes = closes
        super().__init__(message)


def from_fault(fault: NaiadError) -> HttpError:
    """The HTTP form of an error of the family."""
    headers: tuple[tuple[str, str], ...] = ()
    if fault.code in _RETRY_LATER and fault.retryable:
        headers = (("Retry-After", str(RETRY_AFTER_SECONDS)),)
    return HttpError(STATUS_OF[fault.code], told(fault), headers=headers)


def error_body(message: str) -> bytes:
    """Triton's error body."""
    return dumps({"error": message}, ensure_ascii=False, separators=(",", ":")).encode(
        "utf-8", "backslashreplace"
    )


def reason_of(status: int) -> str:
    return HTTPStatus(status).phrase
