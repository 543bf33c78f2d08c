"""What makes an ordinary process a slot: its files, its place in the kernel's eyes, its end.

Owns the slot page, the stack file and the start file. Never talks to the broker.
"""

from __future__ import annotations

import ctypes
import faulthandler
import os
import signal
import sys
from contextlib import suppress
from time import monotonic
from typing import Final, NoReturn

from naiad.protocol.endpoints import Endpoints, path_fault
from naiad.shm.page import Phase, SlotPage
from naiad.worker.exit_codes import ExitCode
from naiad.worker.log import Log
from naiad.worker.stop_signal import StopSignal
from naiad.worker.throttle import StartFile, deaths_in_a_row, wait_s

OOM_SCORE_ADJUSTMENT: Final = 500
"""Out of memory, the kernel takes a worker and not the broker."""
_PR_SET_PDEATHSIG: Final = 1
FREED_BYTES_KEPT_MAX: Final = 64 * 1024 * 1024
"""Of freed memory that is used again. glibc keeps twice the largest block: the inputs of a batch
together are more, and then every batch pays for new pages."""
MAPPED_BYTES_MIN: Final = 32 * 1024 * 1024
"""Blocks from this size on are mapped on their own and go back at once (glibc's own maximum)."""
_M_TRIM_THRESHOLD: Final = -1
_M_MMAP_THRESHOLD: Final = -3


class RunDirFault(Exception):
    """The run directory cannot be used; the text says why and what to do."""


class SlotProcess:
    """`start` before anything else, `exit` last."""

    def __init__(self, endpoints: Endpoints, slot: str, log: Log, stop: StopSignal) -> None:
        self.page = SlotPage(endpoints.page_path(slot))
        self.starts = StartFile(f"{endpoints.slots_dir}/{slot}.starts")
        """Cleared once a broker took this worker: its deaths are the broker's concern then."""
        self._endpoints = endpoints
        self._slot = slot
        self._log = log
        self._stop = stop
        self._parent = os.getppid()

    def start(self, *, die_with_parent: bool) -> None:
        """Raises RunDirFault, or SystemExit when told to stop while it waits for its turn."""
        if die_with_parent:
            self._die_with_parent()
        with suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
            file.write(str(OOM_SCORE_ADJUSTMENT))
        _keep_freed_memory()
        fault = path_fault(self._endpoints.run_dir)
        if fault is not None:
            raise RunDirFault(fault)
        try:
            for path in (self._endpoints.run_dir, self._endpoints.slots_dir):
                with suppress(FileExistsError):  # no parents: a wrong path would be somewhere
                    os.mkdir(path, 0o700)
            self._write_stacks_to(self._endpoints.stack_path(self._slot))
            self._wait_for_turn()
            self.page.start()
        except OSError as failed:
            raise RunDirFault(
                f"cannot use run directory {self._endpoints.run_dir!r}: {failed}; is it the one "
                "of a running `naiad serve` or `naiad broker` of the same user?"
            ) from failed

    def is_orphaned(self) -> bool:
        """Whether the process that started this one is gone."""
        return os.getppid() != self._parent

    def exit(self, code: ExitCode) -> NoReturn:
        """End now, without atexit and destructors.

        What a library registered for the end of the process (some abort) must not turn a clean
        stop into a crash.
        """
        self.page.set_phase(Phase.DONE)
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError, ValueError):
                stream.flush()
        os._exit(code)

    def _die_with_parent(self) -> None:
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() in (0, 1) and self._parent not in (0, 1):
            os._exit(ExitCode.ORPHANED)

    def _write_stacks_to(self, path: str) -> None:
        """On a fatal signal, and of all threads on SIGUSR1."""
        file = open(path, "w")  # noqa: SIM115 - faulthandler writes to it for ever
        faulthandler.enable(file=file, all_threads=True)
        faulthandler.register(signal.SIGUSR1, file=file, all_threads=True, chain=False)

    def _wait_for_turn(self) -> None:
        found = self.starts.read()
        deaths = 0 if found is None else deaths_in_a_row(*found, monotonic())
        wait = wait_s(deaths)
        if wait > 0:
            self._log.line(f"died young {deaths} times in a row, waits {wait:g} s")
            if self._stop.wait(wait):
                os._exit(ExitCode.STOPPED)
        self.starts.write(monotonic(), deaths)


def _keep_freed_memory() -> None:
    """Let malloc keep what batches of large tensors free, unless the environment says how much."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # other C libraries have none
    if mallopt is None or any(name.startswith("MALLOC_") for name in os.environ):
        return
    mallopt(_M_TRIM_THRESHOLD, FREED_BYTES_KEPT_MAX)
    mallopt(_M_MMAP_THRESHOLD, MAPPED_BYTES_MIN)
