"""Whom a request is for, read from headers that the operator names. Pure.

What stands in such a header is for whoever sits in front of the gateway to vouch for (a proxy that
authenticates); here it is only a name for budgets and turns. It is shown to nobody.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final, NamedTuple

from naiad.protocol.errors import RequestError

KEY_BYTES_MAX: Final = 256
HEADER_NAME_BYTES_MAX: Final = 128

_NAME: Final = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
_CONTROL: Final = re.compile(rb"[\x00-\x1f\x7f]")


class User(NamedTuple):
    """Both keys as they travel with a request; "" for nobody in particular."""

    accounting_key: str = ""
    fairness_key: str = ""


NOBODY: Final = User()


def header_name(text: str) -> str:
    """A name of a header, as an option gives it. Raises ValueError with one sentence."""
    if len(text) > HEADER_NAME_BYTES_MAX or not _NAME.fullmatch(text):
        raise ValueError(
            f"expected the name of a header, such as X-User (at most {HEADER_NAME_BYTES_MAX}"
            f" characters, no spaces), got {text!r:.80}"
        )
    return text


def given_twice(name: bytes) -> RequestError:
    """A proxy added its own to that of a client, who would choose his name by it."""
    return RequestError(
        f"header '{name.decode('latin-1')}' is there more than once; a proxy that says whose"
        " request it is has to replace what its client sent"
    )


class UserHeaders:
    """Where users stand in requests. Without names, all requests are nobody's."""

    def __init__(self, user: str = "", fairness: str = "") -> None:
        """`user` names the header of the accounting key, `fairness` that of the fairness key,
        which is the same if only `user` is given."""
        self._accounting = user.lower().encode()
        self._fairness = (fairness or user).lower().encode()

    def user(self, value_of: Callable[[bytes], bytes | None]) -> User:
        """Whose request it is. `value_of` gives a header by its lower-case name.

        Raises RequestError for a value that is no key.
        """
        if not self._fairness:
            return NOBODY
        fairness = self._key(self._fairness, value_of)
        if not self._accounting:
            accounting = ""
        elif self._accounting == self._fairness:
            accounting = fairness
        else:
            accounting = self._key(self._accounting, value_of)
        return User(accounting, fairness) if accounting or fairness else NOBODY

    def _key(self, name: bytes, value_of: Callable[[bytes], bytes | None]) -> str:
        value = (value_of(name) or b"").strip(b" \t")
        if len(value) > KEY_BYTES_MAX or _CONTROL.search(value):
            raise RequestError(
                f"header '{name.decode()}': expected at most {KEY_BYTES_MAX} bytes without control"
                f" characters, got {len(value)} bytes"
            )
        return value.decode("latin-1")
