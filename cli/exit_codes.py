"""How every naiad command ends. Scripts may rely on these numbers; they never change meaning."""

from __future__ import annotations

from enum import IntEnum


class ExitCode(IntEnum):
    """Zero is success; 2 is click's own number for a wrong command line."""

    DONE = 0
    FAILED = 1
    """What was asked for was understood and did not work: a refused request, faults in a check."""
    USAGE = 2
    """The command line is wrong: an unknown option, a path that is not there."""
    RUN_DIR = 3
    """The run directory cannot be used: taken by another server, not ours, path too long."""
    NO_SERVER = 4
    """No server answers on the run directory."""
    NOT_READY = 5
    """The server is there, the model is not ready."""
    BROKER_FAILED = 6
    """The broker did not start, or died again and again."""
    DRAIN_TIMED_OUT = 7
    """Stopped, but work was left undone when the time for draining ran out."""
    MODEL_FAILED = 8
    """--exit-on-error: a model did not load."""
    PORT = 9
    """A port cannot be had: taken by another program, or not allowed."""
    INTERRUPTED = 130
    """Ctrl-C, or a second signal during a drain: everything was ended at once."""
