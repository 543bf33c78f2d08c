"""The run directory: where it is when nobody says, whether it can be used, who has it.

Owns `serve.lock` (held by a supervisor for its whole life) and the checks before anything starts.
The broker's own lock (`lock`) is only looked at.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
import time
from typing import Final

from naiad.cli.exit_codes import ExitCode
from naiad.cli.failure import CommandFailed
from naiad.config.settings import DEFAULT_NAME, RUN_DIR_VARIABLE, default_run_dir, server_name_fault
from naiad.protocol.endpoints import Endpoints, path_fault

MODE: Final = 0o700
SERVE_LOCK: Final = "serve.lock"
DYING_SECONDS_MAX: Final = 2.0
"""For the broker of a supervisor that was killed a moment ago: it dies with it, but not before."""
POLL_SECONDS: Final = 0.01
_OPEN: Final = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW


def located(run_dir: str | None, name: str = DEFAULT_NAME) -> str:
    """The run directory, absolute: the one asked for, else the usual of the server `name`.

    Raises CommandFailed (USAGE) when one of them is given and cannot be meant.
    """
    if run_dir is not None and not run_dir.strip():
        raise CommandFailed(
            "--run-dir is empty; name a directory, or leave the option out", ExitCode.USAGE
        )
    fault = server_name_fault(name)
    if fault is not None:
        raise CommandFailed(fault, ExitCode.USAGE)
    return os.path.abspath(
        run_dir or default_run_dir(name, environment=os.environ, uid=os.geteuid())
    )


def is_usual(run_dir: str, name: str) -> bool:
    """Whether nobody but naiad makes this directory, though an earlier server made it."""
    environment = {key: text for key, text in os.environ.items() if key != RUN_DIR_VARIABLE}
    return run_dir == default_run_dir(name, environment=environment, uid=os.geteuid())


def prepare(run_dir: str) -> bool:
    """Create the directory, or check that it is ours and closed to others; whether it was created.

    Its parents are not created: a path that begins with something wrong would be somewhere.

    Raises CommandFailed (RUN_DIR) with the reason and the way out.
    """
    fault = path_fault(run_dir)
    if fault is not None:
        raise CommandFailed(fault, ExitCode.RUN_DIR)
    _require_parent(run_dir)
    try:
        is_new = not os.path.lexists(run_dir)
        if is_new:
            with contextlib.suppress(FileExistsError):
                os.mkdir(run_dir, MODE)
        found = os.stat(run_dir)
    except OSError as error:
        raise CommandFailed(
            f"cannot use run directory {run_dir}: {error.strerror}; choose another --run-dir",
            ExitCode.RUN_DIR,
        ) from error
    if not stat.S_ISDIR(found.st_mode):
        raise CommandFailed(
            f"run directory {run_dir} is not a directory; choose another --run-dir",
            ExitCode.RUN_DIR,
        )
    if found.st_uid != os.geteuid():
        raise CommandFailed(
            f"run directory {run_dir} belongs to uid {found.st_uid}, this is uid {os.geteuid()}; "
            "choose another --run-dir",
            ExitCode.RUN_DIR,
        )
    if found.st_mode & 0o027:
        raise CommandFailed(
            f"run directory {run_dir} has mode {stat.S_IMODE(found.st_mode):04o}: others could "
            f"replace its sockets; run chmod 700 {run_dir} or choose another --run-dir",
            ExitCode.RUN_DIR,
        )
    if not os.access(run_dir, os.W_OK | os.X_OK):
        raise CommandFailed(
            f"run directory {run_dir} cannot be written; choose another --run-dir", ExitCode.RUN_DIR
        )
    return is_new


def _require_parent(run_dir: str) -> None:
    parent = os.path.dirname(run_dir)
    try:
        os.stat(parent)
    except FileNotFoundError as error:
        raise CommandFailed(
            f"cannot create run directory {run_dir}: there is no {parent}; create that first, or "
            "choose another --run-dir",
            ExitCode.RUN_DIR,
        ) from error
    except OSError:  # said by who creates the directory in it
        return


def lock(run_dir: str) -> int:
    """Take the directory for this supervisor; the descriptor holds it until it is closed.

    Raises CommandFailed (RUN_DIR) when another server has it; nothing of that one is touched.
    """
    descriptor = _locked(f"{run_dir}/{SERVE_LOCK}", run_dir)
    # The broker takes this one itself.
    os.close(_locked(Endpoints(run_dir).lock_path, run_dir, DYING_SECONDS_MAX))
    try:
        os.truncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
    except OSError as error:
        os.close(descriptor)
        raise CommandFailed(
            f"cannot write into run directory {run_dir}: {error.strerror}; make room there, or "
            "choose another --run-dir",
            ExitCode.RUN_DIR,
        ) from error
    return descriptor


def leave(run_dir: str, held: int, *, may_remove: bool) -> None:
    """Give the directory back: `held` is what `lock` returned, and no process of ours runs.

    Removes both lock files and what a broker made there, and the directory itself when it is empty
    then and `may_remove`. A broker that could not be ended keeps everything as it is.
    """
    endpoints = Endpoints(run_dir)
    with contextlib.suppress(CommandFailed):
        descriptor = _locked_now(endpoints.lock_path, run_dir)
        # Unlinked while they are held: see _locked_now for who waits.
        for path in (endpoints.lock_path, f"{run_dir}/{SERVE_LOCK}"):
            with contextlib.suppress(OSError):
                os.unlink(path)
        os.close(descriptor)
        # Not empty, or the file system is read-only by now: it stays.
        with contextlib.suppress(OSError):
            os.rmdir(endpoints.slots_dir)
        if may_remove:
            with contextlib.suppress(OSError):
                os.rmdir(run_dir)
    os.close(held)


def _locked(path: str, run_dir: str, patience_seconds: float = 0.0) -> int:
    end = time.monotonic() + patience_seconds
    while True:
        try:
            return _locked_now(path, run_dir)
        except CommandFailed:
            if time.monotonic() >= end:
                raise
        time.sleep(POLL_SECONDS)


def _locked_now(path: str, run_dir: str) -> int:
    try:
        descriptor = os.open(path, _OPEN, 0o600)
    except OSError as error:
        raise CommandFailed(
            f"cannot open {path}: {error.strerror}; choose another --run-dir", ExitCode.RUN_DIR
        ) from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        holder = os.pread(descriptor, 32, 0).decode("ascii", "replace").strip()
        os.close(descriptor)
        by = f" (pid {holder})" if holder.isdecimal() else ""
        raise CommandFailed(
            f"a naiad server{by} already runs in {run_dir}; stop it, or start this one with "
            "another --name or --run-dir",
            ExitCode.RUN_DIR,
        ) from error
    if os.fstat(descriptor).st_nlink == 0:  # its last holder has removed it: it keeps nobody out
        os.close(descriptor)
        return _locked_now(path, run_dir)
    return descriptor
