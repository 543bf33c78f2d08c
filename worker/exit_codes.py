"""How a worker process ends, in one number that its supervisor and the broker can read."""

from __future__ import annotations

from enum import IntEnum


class ExitCode(IntEnum):
    """Zero is a clean stop; everything else says whose fault it was."""

    STOPPED = 0
    """Drained and unloaded because it was asked to."""
    FAULT = 1
    """A fault of naiad's own code; the traceback is on stderr."""
    USAGE = 2
    """Wrong arguments."""
    NO_BROKER = 3
    """No broker answered for as long as this worker may wait."""
    ORPHANED = 4
    """The broker is gone and so is the process that started this one."""
    REFUSED = 5
    """The broker speaks another version, or does not want this slot."""
    LOAD_FAILED = 6
    """The model did not load; a failed load may have left anything behind, so nothing is kept."""
    STOPPED_NOW = 7
    """A second TERM, or the grace of a stop was over: work was left undone."""
    RUN_DIR = 8
    """The run directory cannot be used."""
    INSTANCE_LOST = 9
    """The model's device or engine can do nothing more in this process; the last line says why."""
