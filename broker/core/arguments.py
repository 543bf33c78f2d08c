"""The arguments of control calls: the values that are expected, or RequestErrors that say so."""

from __future__ import annotations

from typing import Any

from naiad.protocol.errors import RequestError
from naiad.protocol.messages import ANY_VERSION


def version_argument(arguments: dict[str, Any]) -> int:
    """The `version` of a control call: an integer, or absent for any."""
    version = arguments.get("version", ANY_VERSION)
    if type(version) is not int or version < ANY_VERSION:
        raise RequestError(f"version: expected a number of at least 0, got {version!r}")
    return version


def text_argument(arguments: dict[str, Any], name: str) -> str:
    value = arguments.get(name)
    if type(value) is not str or not value:
        raise RequestError(f"{name}: expected a non-empty string, got {value!r}")
    return value


def number_argument(arguments: dict[str, Any], name: str, default: int | None = None) -> int:
    value = arguments.get(name, default)
    if type(value) is not int or value < 0:
        raise RequestError(f"{name}: expected a number of at least 0, got {value!r}")
    return value
