"""What survives the broker, in one file: written whole and renamed, so that it is never half."""

from __future__ import annotations

import contextlib
import fcntl
import os
from typing import Any, Final

import msgpack

from naiad.protocol.endpoints import Endpoints
from naiad.protocol.errors import InternalError

STATE_BYTES_MAX: Final = 64 * 1024 * 1024


class RunDirectoryBusy(InternalError):
    """Another broker of this run directory lives."""


class StateFile:
    """`start` takes the run directory for this process alone. Owns its lock."""

    def __init__(self, endpoints: Endpoints) -> None:
        self._endpoints = endpoints
        self._lock = -1

    def start(self) -> None:
        """Make the run directory (0700) ours, before any socket: a second bind on a live path
        would silently steal it.

        Its parents are not created: a wrong path would be somewhere.

        Raises RunDirectoryBusy, or OSError when the directory cannot be used.
        """
        for path in (self._endpoints.run_dir, self._endpoints.slots_dir):
            with contextlib.suppress(FileExistsError):
                os.mkdir(path, 0o700)
        self._take()
        os.truncate(self._lock, 0)
        os.pwrite(self._lock, str(os.getpid()).encode(), 0)

    def _take(self) -> None:
        path = self._endpoints.lock_path
        self._lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as fault:
            holder = os.pread(self._lock, 32, 0).decode("ascii", "replace").strip()
            raise RunDirectoryBusy(
                f"a broker (pid {holder or 'unknown'}) already serves"
                f" {self._endpoints.run_dir}; stop it or choose another --run-dir"
            ) from fault
        if os.fstat(self._lock).st_nlink == 0:  # its last holder has removed it: keeps nobody out
            os.close(self._lock)
            self._take()

    def load(self) -> dict[str, Any] | None:
        """The last snapshot, or None when there is none that can be read."""
        try:
            with open(self._endpoints.state_path, "rb") as file:
                raw = file.read(STATE_BYTES_MAX)
        except FileNotFoundError:
            return None
        try:
            found = msgpack.unpackb(raw, strict_map_key=False, use_list=False)
        except (ValueError, msgpack.UnpackException):
            return None
        return found if type(found) is dict else None

    def save(self, snapshot: dict[str, Any]) -> None:
        """Replace the snapshot. Raises OSError (disk full): the old one stays."""
        path = self._endpoints.state_path
        with open(f"{path}.new", "wb") as file:
            file.write(msgpack.packb(snapshot))
        os.replace(f"{path}.new", path)

    def close(self) -> None:
        """Remove the sockets, which libzmq leaves behind, and let the next broker in."""
        if self._lock >= 0:
            for path in (self._endpoints.clients_path, self._endpoints.workers_path):
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(path)
            os.close(self._lock)
            self._lock = -1
