"""What lies in /dev/shm, by stat alone: nothing is opened, mapped or removed. No NumPy.

A broker checks here what a peer wants to register, and whether it is still there; everybody asks
here how much room is left.
"""

from __future__ import annotations

import os
import stat
from typing import Final, NamedTuple

from naiad.protocol.errors import Code, RequestError
from naiad.protocol.messages import Region
from naiad.shm.layout import REGION_BYTES_MAX, checked_key

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


def is_same(region: Region) -> bool:
    """Whether the key still names the object that was registered."""
    try:
        found = os.lstat(DIRECTORY + region.key)
    except OSError:
        return False
    return (found.st_dev, found.st_ino) == (region.device, region.inode)


def current_size(region: Region) -> int:
    """Bytes the object has now; 0 when its key no longer names it."""
    try:
        found = os.lstat(DIRECTORY + region.key)
    except OSError:
        return 0
    same = (found.st_dev, found.st_ino) == (region.device, region.inode)
    return found.st_size if same else 0


def check_regular(key: str, found: os.stat_result) -> None:
    """Raise RequestError for anything but a shared memory object (text as Triton's)."""
    if not stat.S_ISREG(found.st_mode):
        raise RequestError(
            f"Unable to open shared memory region: '{key}': not a shared memory object"
        )


def cannot_open(key: str, fault: OSError) -> RequestError:
    """The error for a key that cannot be looked at or opened (text as Triton's)."""
    denied = isinstance(fault, PermissionError)
    return RequestError(
        f"Unable to open shared memory region: '{key}': {fault.strerror or fault}",
        code=Code.PERMISSION_DENIED if denied else Code.NOT_FOUND,
    )
