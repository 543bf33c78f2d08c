"""`python -m naiad.broker`: run directory, sockets, loop, exit code."""

from __future__ import annotations

import os
import resource
import sys
import time
from enum import IntEnum
from typing import Final

import zmq

from naiad import __version__
from naiad.broker import options
from naiad.broker.clients import Clients
from naiad.broker.core.scheduler import Scheduler
from naiad.broker.core.world import Limits
from naiad.broker.liveness import Liveness
from naiad.broker.log import Log
from naiad.broker.loop import Loop
from naiad.broker.repository import RepositoryHelper
from naiad.broker.state import RunDirectoryBusy, StateFile
from naiad.broker.transport import Transport
from naiad.broker.uploads import Uploads
from naiad.broker.workers import Workers
from naiad.config.gpu_listing import FoundGpus, found_gpus
from naiad.config.gpus import GpuFault
from naiad.config.resources import usable_cores
from naiad.config.settings import ALL_MODELS, Settings
from naiad.config.surroundings import gpu_devices
from naiad.protocol.endpoints import Endpoints

SECOND_NS: Final = 1_000_000_000
DESCRIPTORS_MAX: Final = 1 << 20
DESCRIPTORS_RESERVED: Final = 256
"""For everything but connections: the log, the helper, files; and those accepted before a full
house is noticed."""
CLIENTS_SHARE: Final = 0.7
"""Of the descriptors for connections; a client needs two (its pidfd), a worker three (its page)."""


class ExitCode(IntEnum):
    CLEAN = 0
    DRAIN_TIMED_OUT = 1
    USAGE = 2
    RUN_DIRECTORY_BUSY = 3
    CANNOT_START = 4


def main(arguments: list[str] | None = None) -> int:
    settings = options.settings(options.parser().parse_args(arguments))
    faults = settings.faults()
    if faults:
        print("naiad broker: " + "; ".join(faults), file=sys.stderr)
        return ExitCode.USAGE
    endpoints = Endpoints(settings.run_dir)
    state = StateFile(endpoints)
    try:
        state.start()
    except RunDirectoryBusy as fault:
        print(f"naiad broker: {fault.message}", file=sys.stderr)
        return ExitCode.RUN_DIRECTORY_BUSY
    except OSError as fault:
        print(f"naiad broker: cannot use run directory: {fault}", file=sys.stderr)
        return ExitCode.CANNOT_START
    try:
        found = found_gpus(settings.gpus, os.environ)
    except GpuFault as fault:
        print(f"naiad broker: {fault}", file=sys.stderr)
        return ExitCode.CANNOT_START
    return _serve(settings, endpoints, state, found)


def _serve(settings: Settings, endpoints: Endpoints, state: StateFile, found: FoundGpus) -> int:
    log = Log()
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context(io_threads=1)
    os.umask(0o077)
    to_clients, to_workers = _transports(context, settings, endpoints)
    to_workers.start()
    to_clients.start()
    liveness = Liveness()
    clients = Clients(to_clients, liveness, log)
    scheduler = _scheduler(settings, found)
    clients.incarnation = scheduler.world.incarnation
    loop = Loop(
        scheduler,
        clients=clients,
        workers=Workers(to_workers, liveness, endpoints, log),
        liveness=liveness,
        repository=_repository(settings, endpoints, found),
        state=state,
        uploads=Uploads(endpoints),
        log=log,
        drain_ns=int(settings.drain_seconds * SECOND_NS),
    )
    code = loop.run(_names(settings), state.load())
    context.term()
    return code


def _transports(
    context: zmq.Context[zmq.Socket[bytes]], settings: Settings, endpoints: Endpoints
) -> tuple[Transport, Transport]:
    """To clients, to workers."""
    clients_max, workers_max = _connections_max()
    to_clients = Transport(
        context,
        endpoints.clients,
        connections_max=clients_max,
        frame_bytes_max=settings.inline_bytes_max,
        outbox_bytes_max=settings.session_outbox_bytes_max,
    )
    to_workers = Transport(
        context,
        endpoints.workers,
        connections_max=workers_max,
        frame_bytes_max=settings.inline_bytes_max,
        outbox_bytes_max=settings.session_outbox_bytes_max,
        heartbeat_interval_ms=settings.heartbeat_interval_ms,
        heartbeat_timeout_ms=settings.heartbeat_timeout_ms,
    )
    return to_clients, to_workers


def _scheduler(settings: Settings, found: FoundGpus) -> Scheduler:
    scheduler = Scheduler(
        incarnation=int.from_bytes(os.urandom(8), "little") or 1,
        server=settings.name,
        software=__version__,
        first_number=time.time_ns() // 1000,
        explicit=settings.control_mode == "explicit",
        limits=_limits(settings),
        identity=settings.identity,
        strict_readiness=settings.strict_readiness,
        log_levels=settings.log_levels,
        log_file=settings.log_file,
        allow_files=settings.allow_file_override,
        auto_complete=settings.auto_complete,
        gpus=gpu_devices(found.devices),
    )
    scheduler.world.about = {"pid": os.getpid(), "started": int(time.time())}
    return scheduler


def _repository(settings: Settings, endpoints: Endpoints, found: FoundGpus) -> RepositoryHelper:
    return RepositoryHelper(
        settings.repositories,
        {
            "devices": list(found.devices),
            "on_missing_gpu": settings.on_missing_gpu,
            "auto_complete": settings.auto_complete,
            "config_name": settings.config_name,
        },
        limit_seconds=settings.scan_timeout_seconds,
        uploads_dir=endpoints.uploads_dir,
    )


def _connections_max() -> tuple[int, int]:
    """(clients, workers) for whom there are descriptors, after raising the limit all it may be."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    if most == resource.RLIM_INFINITY:
        most = DESCRIPTORS_MAX
    left = max(0, most - DESCRIPTORS_RESERVED) / 2  # the other half: for who comes in a rush
    return max(8, int(left * CLIENTS_SHARE / 2)), max(8, int(left * (1 - CLIENTS_SHARE) / 3))


def _names(settings: Settings) -> tuple[str, ...] | None:
    if settings.control_mode == "none" or settings.load_models == (ALL_MODELS,):
        return None
    return settings.load_models


def _limits(settings: Settings) -> Limits:
    return Limits(
        session_requests_max=settings.session_requests_max,
        session_bytes_max=settings.session_bytes_max,
        session_regions_max=settings.session_regions_max,
        user_requests_max=settings.user_requests_max,
        user_bytes_max=settings.user_bytes_max,
        sessions_max=settings.sessions_max,
        inline_bytes_max=settings.inline_bytes_max,
        absence_ns=int(settings.session_absence_seconds * SECOND_NS),
        stop_grace_ns=int(max(settings.drain_seconds, 1.0) * SECOND_NS),
        spares=settings.spare_workers_count,
        cores=usable_cores(),
    )


if __name__ == "__main__":
    sys.exit(main())
