"""One worker process as the shell knows it: its connection, its slot page, how it ended.

Owns the reader of its page, and the words for its death. Never signals and never waits: who is
killed, and when a death is told, is decided by naiad.broker.workers.
"""

from __future__ import annotations

import contextlib
import signal
from typing import Final

from naiad.broker.core.events import SlotDied
from naiad.broker.liveness import start_time
from naiad.protocol import messages as m
from naiad.protocol.endpoints import Endpoints
from naiad.protocol.errors import NaiadError
from naiad.shm.objects import describe
from naiad.shm.page import PageReader, PageState, Phase

REGIONS_CHECKED_MAX: Final = 1024
"""Of a dead worker, the newest: whether one was truncated under it."""
UNKNOWN_END: Final = "killed (SIGKILL or out of memory)"
"""When neither a supervisor nor the stack file says more."""
_FATAL_ERROR: Final = "Fatal Python error:"
"""How faulthandler begins what it writes into the stack file."""


class WorkerProcess:
    """`kill_at_ns`, `dead_since_ns`: 0 when that is not the case."""

    def __init__(self, key: int, slot: str, pid: int, endpoints: Endpoints) -> None:
        self.key = key
        self.slot = slot
        self.pid = pid
        self.started = start_time(pid)
        self.peer: bytes | None = None
        self.kill_at_ns = 0
        self.kill_reason = ""
        self.dead_since_ns = 0
        self.regions: dict[int, m.Region] = {}
        """Of clients, which it has been told of and may have mapped."""
        self._endpoints = endpoints
        self._page: PageReader | None = None
        self._faults_told = 0
        """Of the faults on its page."""

    def open_page(self) -> None:
        """Unless it is open; a worker that has none yet says so by its next hello."""
        if self._page is None:
            with contextlib.suppress(OSError):
                self._page = PageReader.open(self._endpoints.page_path(self.slot))

    def close(self) -> None:
        if self._page is not None:
            self._page.close()

    def _state(self) -> PageState | None:
        return self._page.read() if self._page is not None else None

    @property
    def is_leaving(self) -> bool:
        """Whether it said on its page that it has nothing left to do but to unload."""
        state = self._state()
        return state is not None and state.phase in (Phase.UNLOADING, Phase.DONE)

    def new_shortages(self) -> int:
        """How often it found no room in shared memory since the last call."""
        state = self._state()
        if state is None or state.io_faults <= self._faults_told:
            return 0
        new = state.io_faults - self._faults_told
        self._faults_told = state.io_faults
        return new

    # --- its end -----------------------------------------------------------------------

    def death(self, status: int | None) -> SlotDied:
        """What is known of it; `status` is the supervisor's word (negative: a signal), if any."""
        state = self._state()
        executing, begun = (0, 0) if state is None else (state.executing, state.begun)
        is_ordered = bool(self.kill_reason)
        reason = self._reason(status)
        return SlotDied(self.key, reason, executing, is_ordered, self._truncated(), begun)

    def _reason(self, status: int | None) -> str:
        if self.kill_reason:
            return f"killed: {self.kill_reason}"
        if status is None:
            return self._fatal_error() or UNKNOWN_END
        if status >= 0:
            return f"exit code {status}"
        try:
            return signal.Signals(-status).name
        except ValueError:
            return f"signal {-status}"

    def _fatal_error(self) -> str:
        """faulthandler's own words, when nobody could tell us the wait status."""
        path = self._endpoints.stack_path(self.slot)
        with contextlib.suppress(OSError), open(path, errors="replace") as stacks:
            for line in stacks:
                if line.startswith(_FATAL_ERROR):
                    return line.removeprefix(_FATAL_ERROR).strip()
        return ""

    def _truncated(self) -> tuple[int, ...]:
        found = []
        for region in list(self.regions.values())[-REGIONS_CHECKED_MAX:]:
            with contextlib.suppress(NaiadError):
                now = describe(region.key, foreign=False).region
                if now.inode == region.inode and now.size < region.size:
                    found.append(region.id)
        return tuple(found)
