"""What an exception of somebody else's code says, told without running into its faults. Pure.

The text of an exception is made by the code that raised it: its __str__ may raise, return no text,
or be of any length. Nothing here raises for it. Whoever logs or answers a foreign exception takes
its text from here.
"""

from __future__ import annotations

import traceback
from typing import Final

from naiad.protocol.errors import ModelError, NaiadError, encodable, error_from_wire

TEXT_BYTES_MAX: Final = 16_000
NO_TEXT: Final = "its text cannot be had, because its __str__ raises"


def described(fault: BaseException) -> str:
    """`ValueError: what it says`, as UTF-8 can hold it; of our own errors the message alone."""
    own = own_error(fault)
    if own is not None:
        return own.message
    try:
        return encodable(f"{type(fault).__name__}: {fault}", TEXT_BYTES_MAX)
    except BaseException as failed:  # whatever the user's __str__ raises, also an exit
        return f"{type.__repr__(type(fault))}: ({NO_TEXT} {type.__repr__(type(failed))})"


def own_error(fault: BaseException) -> NaiadError | None:
    """One of our errors as a message can carry it; None for a foreign exception.

    Backends may derive classes from ours, so it is made anew from its code and message.
    """
    # Not isinstance, which asks the object for its __class__.
    if not issubclass(type(fault), NaiadError):
        return None
    try:
        code, message, retryable = fault.wire()  # type: ignore[attr-defined]
        return error_from_wire((str(code), str(message), bool(retryable)))
    except BaseException:
        return ModelError(f"{type.__repr__(type(fault))}: (its code and message cannot be had)")


def traceback_text(fault: BaseException) -> str:
    """The traceback as Python prints it, or as much as can be told of it."""
    try:
        return "".join(traceback.format_exception(fault))
    except BaseException:
        return f"{described(fault)} (it has no traceback that can be printed)\n"


def place_below(directory: str, fault: BaseException) -> str:
    """`1/model.py:12`, the innermost line in a file below the directory; empty: there is none."""
    found = ""
    for frame, number in traceback.walk_tb(fault.__traceback__):
        name = frame.f_code.co_filename
        if name.startswith(f"{directory}/"):
            found = f"{name.removeprefix(f'{directory}/')}:{number}"
    return found
