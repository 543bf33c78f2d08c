"""What clients of a gateway are told of an error. Pure."""

from __future__ import annotations

from naiad.protocol.errors import Code, NaiadError


def told(fault: NaiadError) -> str:
    """The error's text, but for one that is for clients of the broker, and names its socket."""
    if fault.code is Code.CONNECTION_LOST:
        return "the server's broker does not answer; try again"
    return fault.message
