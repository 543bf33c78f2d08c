"""`python -m naiad.cli.child PARENT MODULE ARGUMENTS...`: run a module that dies with its parent.

The supervisor starts its children through this, so that a supervisor killed by SIGKILL leaves
nothing running. The request to the kernel is made here, after exec, because code between fork and
exec (`preexec_fn`) may deadlock when the parent has threads. The module then runs in this process:
the pid is the one that the supervisor knows.
"""

from __future__ import annotations

import ctypes
import os
import runpy
import signal
import sys
from typing import Final

from naiad.worker.exit_codes import ExitCode

PR_SET_PDEATHSIG: Final = 1


def die_with(parent: int) -> None:
    """Ask for SIGKILL at the parent's death; exit at once when it is dead already."""
    if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")
    if os.getppid() != parent:  # it died before the request, which then never fires
        sys.exit(ExitCode.ORPHANED)


def main() -> None:
    parent, module, *arguments = sys.argv[1:]
    die_with(int(parent))
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
