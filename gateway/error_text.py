"""What clients of a gateway are told of an error. Pure."""

from __future__ import annotations

from naiad.protocol.errors import Code, NaiadError, Unavailable


def told(fault: NaiadError) -> str:
    """The error's text, but for one that is for clients of the broker, and names its socket."""
    if fault.code is Code.CONNECTION_LOST:
        return "the server's broker does not answer; try again"
    return fault.message


def over_budget(why: str) -> Unavailable:
    return Unavailable(
        f"{why}; try again when others have been answered", code=Code.BUDGET_EXCEEDED
    )
