"""Where a server's sockets and files are, derived from its run directory alone."""

from __future__ import annotations

from typing import Final, NamedTuple

SOCKET_PATH_BYTES_MAX: Final = 107
"""Linux's sun_path holds 108 bytes with the terminating zero."""


class Endpoints(NamedTuple):
    """Paths of one server, below a run directory that only its user (or group) may enter."""

    run_dir: str

    @property
    def clients_path(self) -> str:
        return f"{self.run_dir}/clients.sock"

    @property
    def workers_path(self) -> str:
        return f"{self.run_dir}/workers.sock"

    @property
    def clients(self) -> str:
        """ZeroMQ address that clients and gateways connect to."""
        return f"ipc://{self.clients_path}"

    @property
    def workers(self) -> str:
        """ZeroMQ address for workers and the supervisor: same uid only."""
        return f"ipc://{self.workers_path}"

    @property
    def lock_path(self) -> str:
        return f"{self.run_dir}/lock"

    @property
    def state_path(self) -> str:
        return f"{self.run_dir}/state.msgpack"

    @property
    def slots_dir(self) -> str:
        """One `<slot>.page` (see worker.page) and one `<slot>.stack` per worker process."""
        return f"{self.run_dir}/slots"

    @property
    def uploads_dir(self) -> str:
        """One folder per load that brought files along, named at random; the model's in it."""
        return f"{self.run_dir}/uploads"

    def page_path(self, slot: str) -> str:
        return f"{self.slots_dir}/{slot}.page"

    def stack_path(self, slot: str) -> str:
        """Where a worker's faulthandler writes the stacks of a crash or of a hang."""
        return f"{self.slots_dir}/{slot}.stack"


def path_fault(run_dir: str) -> str | None:
    """Why no socket can live in run_dir, or None."""
    try:
        longest = len(Endpoints(run_dir).workers_path.encode())
    except UnicodeEncodeError:
        return f"run directory {run_dir!r} is not UTF-8; choose another --run-dir"
    if longest <= SOCKET_PATH_BYTES_MAX:
        return None
    return (
        f"run directory {run_dir!r} is too long: a Unix socket path holds {SOCKET_PATH_BYTES_MAX} "
        f"bytes and {Endpoints(run_dir).workers_path!r} needs {longest}; choose a shorter --run-dir"
    )
