"""After a server's last process: remove what they left in the run directory and in /dev/shm."""

from __future__ import annotations

import contextlib
import os

from naiad.protocol.endpoints import Endpoints
from naiad.shm.janitor import Janitor


def cleanup(run_dir: str, name: str) -> list[str]:
    """Remove sockets, slot files and dead segments.

    The caller holds the run directory's lock and no process of this server runs. The broker's state
    stays: it removes it itself when it ends cleanly, and after a crash the next one needs it.

    Returns a line for each thing that could not be removed.
    """
    endpoints = Endpoints(run_dir)
    paths = [endpoints.clients_path, endpoints.workers_path]
    with contextlib.suppress(FileNotFoundError):
        paths += [entry.path for entry in os.scandir(endpoints.slots_dir)]
    faults = []
    for path in paths:
        try:
            os.unlink(path)
        except FileNotFoundError:
            continue
        except OSError as error:
            faults.append(f"cannot remove {path}: {error.strerror}")
    # Locked segments belong to clients that still live. No minimum age: none of ours is being made.
    janitor = Janitor(name, min_age_s=0)
    while not janitor.sweep().is_complete:
        pass
    return faults
