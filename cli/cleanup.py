"""Remove what a server's processes left in the run directory and in /dev/shm.

After the last one has ended, and before the first one starts: an earlier server may have been
killed before it could.
"""

from __future__ import annotations

import contextlib
import os
import shutil

from naiad.protocol.endpoints import Endpoints
from naiad.shm.janitor import Janitor


def forget_state(run_dir: str) -> list[str]:
    """Remove what a broker keeps for the next one, which the same supervisor starts in its place.

    Under a new supervisor nobody is left to be adopted, and the models are those of its command
    line. Returns a line for each file that could not be removed.
    """
    state_path = Endpoints(run_dir).state_path
    return _removed([state_path, f"{state_path}.new"])


def cleanup(run_dir: str, name: str) -> list[str]:
    """Remove sockets, slot files and dead segments.

    The caller holds the run directory's lock and no process of this server runs. The broker's state
    stays (see `forget_state`).

    Returns a line for each thing that could not be removed.
    """
    endpoints = Endpoints(run_dir)
    paths = [endpoints.clients_path, endpoints.workers_path]
    with contextlib.suppress(FileNotFoundError):
        paths += [entry.path for entry in os.scandir(endpoints.slots_dir)]
    faults = _removed(paths)
    # Files that came with loads: the models of a new server are those of its command line.
    shutil.rmtree(endpoints.uploads_dir, ignore_errors=True)
    # Locked segments belong to clients that still live. No minimum age: none of ours is being made.
    janitor = Janitor(name, min_age_s=0)
    while not janitor.sweep().is_complete:
        pass
    return faults


def _removed(paths: list[str]) -> list[str]:
    faults = []
    for path in paths:
        try:
            os.unlink(path)
        except FileNotFoundError:
            continue
        except OSError as error:
            faults.append(f"cannot remove {path}: {error.strerror}")
    return faults
