"""Version directories and the version policy: names to numbers, numbers to what is served. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

from naiad.config.model import ALL, LATEST, VersionPolicy
from naiad.config.names import printable

VERSION_MAX: Final = 2**63 - 1
RESERVED_DIRECTORIES: Final = frozenset({"warmup", "initial_state", "configs"})
"""Directories with a meaning of their own beside the versions, as in Triton."""
_DIGITS_MAX: Final = len(str(VERSION_MAX))


class Skipped(NamedTuple):
    """A directory that is no version. An empty reason: nothing to tell anybody."""

    reason: str


class VersionChoice(NamedTuple):
    """`versions` to serve, ascending; `missing` were asked for by number but are not there."""

    versions: tuple[int, ...]
    missing: tuple[int, ...]


def version_of(directory_name: str) -> int | Skipped:
    """The version a directory stands for: a whole number from 0 to 2**63 - 1, in plain digits."""
    if directory_name in RESERVED_DIRECTORIES or directory_name.startswith((".", "__")):
        return Skipped("")
    shown = printable(directory_name)
    if not (directory_name.isascii() and directory_name.isdecimal()):
        return Skipped(f"directory {shown} is not a version number (0, 1, 2, ...)")
    if directory_name.startswith("0") and directory_name != "0":
        return Skipped(f"version directory {shown} has a leading zero")
    if len(directory_name) > _DIGITS_MAX or int(directory_name) > VERSION_MAX:
        return Skipped(f"version directory {shown} is larger than {VERSION_MAX}")
    return int(directory_name)


def choose_versions(policy: VersionPolicy, existing: Iterable[int]) -> VersionChoice:
    """Which of the existing versions the policy serves.

    As Triton does: `latest` with num_versions 0 serves none, `specific` serves those present.
    """
    present = sorted(set(existing))
    if policy.kind == ALL:
        return VersionChoice(tuple(present), ())
    if policy.kind == LATEST:
        newest = present[-policy.num_versions :] if policy.num_versions > 0 else []
        return VersionChoice(tuple(newest), ())
    wanted = set(policy.versions)
    return VersionChoice(
        tuple(version for version in present if version in wanted),
        tuple(sorted(wanted.difference(present))),
    )
