"""What the kernel knows, and the broker need not: processors, memory, processes, /dev/shm.

Reads files of /proc and names in /dev/shm; opens no segment. What cannot be read is left out.
"""

from __future__ import annotations

import os
from typing import Final, NamedTuple

from naiad.metrics.samples import Process
from naiad.shm.layout import parse_segment_name, sanitised_server

TICKS_PER_SECOND: Final = os.sysconf("SC_CLK_TCK")
PAGE_BYTES: Final = os.sysconf("SC_PAGESIZE")
SHM: Final = "/dev/shm"
SEGMENTS_MAX: Final = 20_000
"""Looked at in one scrape; more than that, and the sums are of these."""
ROLES_MAX: Final = 16
OTHER_ROLE: Final = "other"
"""Roles are chosen by clients: beyond ROLES_MAX they are counted together."""
CPU_TICKS_MIN: Final = 10
"""Of all processors together, between two looks; less says nothing."""


class Segments(NamedTuple):
    """Shared memory of one role."""

    number: int
    size_bytes: int


def process(pid: int) -> Process | None:
    """What a process has used so far; None when it is gone."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()  # a name may hold spaces and brackets
    except OSError:
        return None
    return Process(
        (int(fields[11]) + int(fields[12])) / TICKS_PER_SECOND, int(fields[21]) * PAGE_BYTES
    )


def memory() -> tuple[int, int] | None:
    """(total, used) bytes of the machine; used is what is not available, as Triton counts it."""
    found = {}
    try:
        with open("/proc/meminfo", encoding="ascii") as file:
            for line in file:
                key, _, value = line.partition(":")
                if key in ("MemTotal", "MemAvailable"):
                    found[key] = int(value.split()[0]) * 1024
    except OSError:
        return None
    if len(found) < 2:
        return None
    return found["MemTotal"], found["MemTotal"] - found["MemAvailable"]


class Processors:
    """The machine's processors; remembers its last look."""

    def __init__(self) -> None:
        self._total = self._idle = 0
        self._share = 0.0

    def share(self) -> float | None:
        """In use since the last look that is not too recent (at first: since the start)."""
        try:
            with open("/proc/stat", "rb") as file:
                ticks = [int(word) for word in file.readline().split()[1:9]]
        except OSError:
            return None
        total = sum(ticks)
        idle = ticks[3] + ticks[4]  # waiting for a disk is idle
        if total - self._total >= CPU_TICKS_MIN:
            passed = total - self._total
            self._share = min(1.0, max(0.0, 1 - (idle - self._idle) / passed))
            self._total, self._idle = total, idle
        return self._share


def segments(server: str) -> dict[str, Segments]:
    """Shared memory of a server by its owners' role, in bytes that are really taken."""
    mine = sanitised_server(server)
    found: dict[str, Segments] = {}
    try:
        with os.scandir(SHM) as entries:
            for number, entry in enumerate(entries):
                if number >= SEGMENTS_MAX:
                    break
                name = parse_segment_name(f"/{entry.name}")
                if name is None or name.server != mine:
                    continue
                try:
                    size = entry.stat(follow_symlinks=False).st_blocks * 512
                except FileNotFoundError:
                    continue  # it has gone meanwhile
                role = name.role
                if role not in found and len(found) >= ROLES_MAX:
                    role = OTHER_ROLE
                known = found.get(role, Segments(0, 0))
                found[role] = Segments(known.number + 1, known.size_bytes + size)
    except OSError:
        return {}
    return found


def shm_free_bytes() -> int | None:
    try:
        found = os.statvfs(SHM)
    except OSError:
        return None
    return found.f_bavail * found.f_frsize
