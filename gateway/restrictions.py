"""Groups of routes and methods that are served only to who knows a secret; Triton's rules. Pure.

The secret is a header's value. It is never part of a text or a repr.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from hmac import compare_digest
from typing import Final

CATEGORIES: Final = (
    "health",
    "metadata",
    "inference",
    "shared-memory",
    "model-config",
    "model-repository",
    "statistics",
    "trace",
    "logging",
)
GRPC_PREFIX: Final = "triton-grpc-protocol-"
"""Of the header that gRPC clients send, in front of the one that was configured."""

_FORM: Final = "CATEGORY,CATEGORY:HEADER=VALUE"
_TOKEN: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_VALUE: Final = re.compile(r"[!-~]([ -~]*[!-~])?")


class RestrictionFault(ValueError):
    """One sentence about the option, without the secret."""


@dataclass(frozen=True, slots=True)
class Restriction:
    """What a request needs: one header, with this value."""

    name: str
    """The header's, for people."""
    _value: bytes = field(repr=False)

    def allows(self, given: bytes | None) -> bool:
        """Whether that is the value; takes as long for a wrong one that begins alike."""
        return given is not None and compare_digest(given, self._value)

    @property
    def header(self) -> bytes:
        """As it is received: in lower case."""
        return self.name.lower().encode()


def parsed(option: str, groups: Iterable[str], prefix: str = "") -> dict[str, Restriction]:
    """Restrictions by category, from options such as "inference,health:key=secret".

    Args:
        prefix: in front of every header.

    Raises RestrictionFault, which names the option.
    """
    found: dict[str, Restriction] = {}
    for group in groups:
        names, colon, rest = group.partition(":")
        header, equals, value = rest.partition("=")
        if not (colon and equals and _TOKEN.fullmatch(header) and _VALUE.fullmatch(value)):
            raise RestrictionFault(
                f"{option}: expected {_FORM}, such as inference,metadata:my-key=secret, and got"
                " something else, which is not shown because of the secret in it"
            )
        restriction = Restriction(f"{prefix}{header}", value.encode())
        for name in names.split(","):
            if name not in CATEGORIES:
                raise RestrictionFault(
                    f"{option}: {name!r:.80} is no category; expected {', '.join(CATEGORIES)}"
                )
            if name in found:
                raise RestrictionFault(f"{option}: {name} is named twice; give it one header")
            found[name] = restriction
    return found
