"""How many cores this process may use: its affinity and the quotas of its cgroups.

A container with 2 cores of 64 sees 64 in os.cpu_count(); models that start a thread per core then
spend their time being throttled. Reads /proc and /sys, decides nothing.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

FILE_BYTES_MAX: Final = 4096


def usable_cores(root: Path = Path("/"), affinity: int | None = None) -> int:
    """Whole cores this process can keep busy, at least 1.

    The smaller of the CPU affinity and the tightest cpu.max of the cgroups above us. Part of a core
    is not counted: a thread for it would wait for its quota most of the time.

    Args:
        root: where proc/ and sys/ are, for tests.
        affinity: number of CPUs in the affinity mask, None to ask the kernel.
    """
    cores = float(len(os.sched_getaffinity(0)) if affinity is None else affinity)
    for folder in _cgroup_folders(root, "cpu"):
        quota = _quota_v2(folder) or _quota_v1(folder)
        if quota is not None:
            cores = min(cores, quota)
    return max(1, int(cores))


def _cgroup_folders(root: Path, controller: str) -> Iterator[Path]:
    """Our cgroup and its parents, up to the mount point, in version 2 or 1."""
    for line in _text(root / "proc/self/cgroup").splitlines():
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if number == "0" and not controllers:
            mount = root / "sys/fs/cgroup"
        elif controller in controllers.split(","):
            mount = root / "sys/fs/cgroup" / controller
        else:
            continue
        # In a container the path is often that of the host and does not exist: the mount does.
        folder = mount / path.strip("/")
        yield folder
        while folder != mount:
            folder = folder.parent
            yield folder


def _quota_v2(folder: Path) -> float | None:
    fields = _text(folder / "cpu.max").split()
    if len(fields) != 2 or not all(field.isdecimal() for field in fields) or fields[1] == "0":
        return None
    return int(fields[0]) / int(fields[1])


def _quota_v1(folder: Path) -> float | None:
    quota, period = _number(folder / "cpu.cfs_quota_us"), _number(folder / "cpu.cfs_period_us")
    return quota / period if quota and period else None


def _number(path: Path) -> int | None:
    """The file's number; None when it is absent, `max` or negative (no limit)."""
    text = _text(path).strip()
    return int(text) if text.isdecimal() else None


def _text(path: Path) -> str:
    """A file that this kernel may not have: then empty, which every caller reads as "no limit"."""
    try:
        with path.open("rb") as file:
            return file.read(FILE_BYTES_MAX).decode("ascii", "replace")
    except OSError:
        return ""
