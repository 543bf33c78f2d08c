"""What lies in /dev/shm, by stat alone: nothing is opened, mapped or removed. No NumPy.

A broker checks here what a peer wants to register, and whether it is still there; everybody asks
here how much room is left.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Collection
from typing import Final, NamedTuple

from naiad.protocol.errors import Code, RequestError
from naiad.protocol.messages import Region
from naiad.shm.layout import REGION_BYTES_MAX, WORKER_ROLE, checked_key, parse_segment_name

DIRECTORY: Final = "/dev/shm"
"""Where Linux keeps POSIX shared memory; shm_open("/x") is this directory's x."""


class Owner(NamedTuple):
    """A segment as it is now, and whose it is; `region` has id 0."""

    region: Region
    uid: int


def free_bytes() -> int:
    """Bytes that new segments may take; 0 when there is no /dev/shm."""
    try:
        found = os.statvfs(DIRECTORY)
    except OSError:
        return 0
    if not found.f_blocks:  # a tmpfs without a limit
        return REGION_BYTES_MAX
    return found.f_bavail * found.f_frsize


def total_bytes() -> int:
    """The size of /dev/shm; 0 when there is none or it has no limit."""
    try:
        found = os.statvfs(DIRECTORY)
    except OSError:
        return 0
    return found.f_blocks * found.f_frsize


def describe(key: str, *, foreign: bool = True) -> Owner:
    """What a key names, by stat alone: nothing is opened or mapped.

    `foreign`: refuse names of naiad itself, whatever they name.
    Raises RequestError when it is not a shared memory object (text as Triton's).
    """
    key = checked_key(key, foreign=foreign)
    try:
        found = os.lstat(DIRECTORY + key)
    except OSError as fault:
        raise cannot_open(key, fault) from fault
    check_regular(key, found)
    return Owner(Region(0, key, found.st_dev, found.st_ino, found.st_size), found.st_uid)


def verified(region: Region, uids: Collection[int]) -> Region:
    """The region as a peer described it, if that is true; looked at, not opened.

    Args:
        region: what the peer says about its own segment; names of naiad's clients are allowed.
        uids: who may own it: the peer's own user.

    Raises:
        RequestError: not there, not a regular object, a worker's arena, another owner or object
            than said, or smaller than said.
    """
    name = parse_segment_name(checked_key(region.key, foreign=False))
    if name is not None and name.role == WORKER_ROLE:
        raise RequestError(
            f"Unable to open shared memory region: '{region.key}': it is a worker's and cannot be "
            "registered",
            code=Code.PERMISSION_DENIED,
        )
    owner = describe(region.key, foreign=name is None)
    try:
        found = os.lstat(DIRECTORY + owner.region.key)
    except OSError as fault:  # removed a moment ago
        raise cannot_open(region.key, fault) from fault
    check_expected(region, found, uids)
    return region._replace(key=owner.region.key)


def is_same(region: Region) -> bool:
    """Whether the key still names the object that was registered."""
    try:
        found = os.lstat(DIRECTORY + region.key)
    except OSError:
        return False
    return (found.st_dev, found.st_ino) == (region.device, region.inode)


def check_regular(key: str, found: os.stat_result) -> None:
    """Raise RequestError for anything but a shared memory object (text as Triton's)."""
    if not stat.S_ISREG(found.st_mode):
        raise RequestError(
            f"Unable to open shared memory region: '{key}': not a shared memory object"
        )


def check_expected(region: Region, found: os.stat_result, uids: Collection[int]) -> None:
    """Raise RequestError unless this is the object that was described, at least as large."""
    check_regular(region.key, found)
    if found.st_uid not in uids:
        raise RequestError(
            f"Unable to open shared memory region: '{region.key}': it belongs to user "
            f"{found.st_uid}, expected {' or '.join(map(str, sorted(uids)))}",
            code=Code.PERMISSION_DENIED,
        )
    if (found.st_dev, found.st_ino) != (region.device, region.inode):
        raise RequestError(
            f"Unable to open shared memory region: '{region.key}': it was replaced since it was "
            "registered; register the new one",
            code=Code.NOT_FOUND,
        )
    if found.st_size < region.size:
        raise truncated(region, found.st_size)


def truncated(region: Region, now: int) -> RequestError:
    """The error for a region whose owner made it smaller after it was registered."""
    return RequestError(
        f"shared memory region '{region.key}' had {region.size} bytes when it was "
        f"registered and has {now} now; do not truncate a region while it is registered",
        code=Code.REGION_TRUNCATED,
    )


def cannot_open(key: str, fault: OSError) -> RequestError:
    """The error for a key that cannot be looked at or opened (text as Triton's)."""
    denied = isinstance(fault, PermissionError)
    return RequestError(
        f"Unable to open shared memory region: '{key}': {fault.strerror or fault}",
        code=Code.PERMISSION_DENIED if denied else Code.NOT_FOUND,
    )
