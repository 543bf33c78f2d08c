"""Memory and descriptors of a server's processes, before and after something was done to them."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Final

import psutil

from naiad.testing.server import Server
from support.waiting import wait_until

DESCRIPTORS_GROWTH_MAX: Final = 4
MIB: Final = 2**20
RESET_PEAK: Final = "5"
"""Written to /proc/PID/clear_refs: the highest resident size begins anew."""

FAULT_SIGNS: Final = ("Traceback", "never awaited", "never retrieved")
"""In a log; Python tells of what was dropped without a traceback."""
LOG_SHOWN_CHARS: Final = 2000
"""Before such a sign, and from it on."""


class Watched:
    """`names`: as in Server.pids. They live through all of it, as the same processes."""

    def __init__(self, server: Server, *names: str) -> None:
        self._server = server
        self._processes = {name: psutil.Process(server.pids[name]) for name in names}
        self._descriptors = {name: one.num_fds() for name, one in self._processes.items()}
        self._resident = {name: one.memory_info().rss for name, one in self._processes.items()}
        for one in self._processes.values():
            Path(f"/proc/{one.pid}/clear_refs").write_text(RESET_PEAK)

    def check(self, growth_bytes_max: int) -> str:
        """They live, nothing is left open, and memory stayed within bounds; figures for people."""
        lines = []
        for name, one in self._processes.items():
            assert self._server.pids.get(name) == one.pid, (
                f"{name} died: {self._server.log[-2000:]}"
            )
            before = self._descriptors[name] + DESCRIPTORS_GROWTH_MAX
            wait_until(partial(_has_closed, one, before), f"{name}'s descriptors")
            grown = one.memory_info().rss - self._resident[name]
            peak = peak_bytes(one.pid) - self._resident[name]
            lines.append(f"  {name} grew by {grown / MIB:.0f} MiB, {peak / MIB:.0f} at most")
            assert peak < growth_bytes_max, lines[-1]
        log = self._server.log
        for sign in FAULT_SIGNS:
            at = log.find(sign)
            assert at < 0, log[max(0, at - LOG_SHOWN_CHARS) : at + LOG_SHOWN_CHARS]
        return "\n".join(lines)


def _has_closed(one: psutil.Process, descriptors: int) -> bool:
    return bool(one.num_fds() <= descriptors)


def peak_bytes(pid: int) -> int:
    """The largest resident size since it was reset."""
    text = Path(f"/proc/{pid}/status").read_text()
    (line,) = [line for line in text.splitlines() if line.startswith("VmHWM:")]
    return int(line.split()[1]) * 1024
