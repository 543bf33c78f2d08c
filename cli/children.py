"""One child process of the supervisor: start, watch, end. No policy.

A child is started by exec in a session of its own (Ctrl-C in the terminal reaches the supervisor
alone), dies with the supervisor, and prints into a pipe that the supervisor always empties.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import Final

from naiad.cli.output import ChildOutput
from naiad.shm.page import PageReader

READ_BYTES_MAX: Final = 64 * 1024
PIPE_BYTES: Final = 256 * 1024
"""So that a child can print for a while even when the supervisor itself is stopped."""


class Child:
    """A running process. `pidfd` becomes readable at its death, `output_fd` when it printed."""

    def __init__(self, name: str, process: subprocess.Popen[bytes], output_fd: int) -> None:
        self.name = name
        self.pid = process.pid
        self.started_ns = time.monotonic_ns()
        self.output = ChildOutput(f"{name}[{self.pid}] ", self.started_ns)
        self.output_fd = output_fd
        # The process is not reaped yet, so the pid is still its own.
        self.pidfd = os.pidfd_open(process.pid)
        self._process = process

    @classmethod
    def start(
        cls, name: str, module: str, arguments: Sequence[str], descriptors: Sequence[int] = ()
    ) -> Child:
        """Run `python -m module arguments...`; `descriptors` are open in it under the same numbers.

        Raises OSError when no process can be had.
        """
        read_end, write_end = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(read_end, False)
        with contextlib.suppress(OSError):  # over the user's pipe limit: the default size does
            fcntl.fcntl(write_end, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
        # -P: a file named like a module in the user's working directory must not be imported.
        wrapper = [sys.executable, "-P", "-m", "naiad.cli.child", str(os.getpid())]
        try:
            process = subprocess.Popen(
                [*wrapper, module, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=write_end,
                stderr=write_end,
                start_new_session=True,
                pass_fds=descriptors,
            )
        except OSError:
            os.close(read_end)
            raise
        finally:
            os.close(write_end)
        return cls(name, process, read_end)

    def read(self) -> bytes | None:
        """What it printed since the last call, bounded; None for nothing now, b"" for never again.

        A grandchild may keep the pipe open after the child's death: do not wait for the end.
        """
        try:
            return os.read(self.output_fd, READ_BYTES_MAX)
        except BlockingIOError:
            return None

    def signal(self, number: signal.Signals) -> None:
        """Send a signal by pidfd: never to somebody who got the pid later."""
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self.pidfd, number)

    def reap(self) -> int:
        """Collect the dead child and whatever it left in its session's process group.

        Returns the exit code, negative for a signal. Only after `pidfd` was readable.
        """
        # Before the wait: until then the number is still its own. Gone already is the usual case.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)
        return self._process.wait()

    def close(self) -> None:
        os.close(self.pidfd)
        os.close(self.output_fd)


def describe_status(status: int) -> str:
    """'exit code 3' or 'SIGKILL'."""
    if status >= 0:
        return f"exit code {status}"
    try:
        return signal.Signals(-status).name
    except ValueError:
        return f"signal {-status}"


def has_executed(page_path: str, pid: int) -> bool:
    """Whether this process, by its slot page, has run a batch: it did not die before its work."""
    try:
        reader = PageReader.open(page_path)
    except OSError:
        return False
    try:
        state = reader.read()
    finally:
        reader.close()
    return state is not None and state.pid == pid and (state.executions > 0 or state.executing > 0)
