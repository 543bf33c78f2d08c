"""CPU time of processes from /proc, and how busy the machine was meanwhile.

Reads only. A process that has ended counts as zero, which makes a difference negative: such a
measurement is of no use and its caller says so.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path
from typing import Final, NamedTuple

_TICKS_PER_SECOND: Final = os.sysconf("SC_CLK_TCK")
_UTIME, _STIME = 11, 12
"""Positions after the command's closing bracket in /proc/<pid>/stat."""

QUIET_SECONDS: Final = 0.5


class Cpu(NamedTuple):
    """Seconds of CPU that a process used since it started."""

    user: float
    system: float

    @property
    def total(self) -> float:
        return self.user + self.system

    def since(self, before: Cpu) -> Cpu:
        return Cpu(self.user - before.user, self.system - before.system)


def cpu_of(pid: int) -> Cpu:
    """What a process, all its threads included, has used."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return Cpu(0.0, 0.0)
    fields = text.rpartition(")")[2].split()
    return Cpu(int(fields[_UTIME]) / _TICKS_PER_SECOND, int(fields[_STIME]) / _TICKS_PER_SECOND)


def family_of(pid: int) -> list[int]:
    """A process and all its descendants."""
    children: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        if name.isdecimal():
            try:
                text = Path(f"/proc/{name}/stat").read_text()
            except OSError:
                continue
            children.setdefault(int(text.rpartition(")")[2].split()[1]), []).append(int(name))
    found = [pid]
    for one in found:
        found += children.get(one, [])
    return found


def machine_busy_seconds() -> float:
    """CPU seconds that everything on this machine has used since it booted."""
    fields = Path("/proc/stat").read_text().splitlines()[0].split()[1:]
    user, nice, system, _, _, irq, softirq, steal = [int(field) for field in fields[:8]]
    return (user + nice + system + irq + softirq + steal) / _TICKS_PER_SECOND


def wait_for_quiet(cores_max: float, seconds_max: float) -> bool:
    """Wait until this machine used at most `cores_max` cores for QUIET_SECONDS. False: it did not
    within `seconds_max`."""
    end = time.monotonic() + seconds_max
    while time.monotonic() < end:
        before = machine_busy_seconds()
        time.sleep(QUIET_SECONDS)
        if machine_busy_seconds() - before <= cores_max * QUIET_SECONDS:
            return True
    return False


def end_on_sigterm() -> None:
    """Let SIGTERM unwind the stack, so that servers which were started are stopped."""
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
