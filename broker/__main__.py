"""`python -m naiad.broker`: options, run directory, sockets, loop, exit code."""

from __future__ import annotations

import argparse
import ctypes
import os
import resource
import signal
import sys
import time
from enum import IntEnum
from typing import Any, Final

import zmq

from naiad import __version__
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
from naiad.config.gpus import AUTO, GpuFault
from naiad.config.log_levels import FORMATS, INITIAL
from naiad.config.resources import usable_cores
from naiad.config.settings import (
    ALL_MODELS,
    SCAN_TIMEOUT_SECONDS,
    USER_BYTES_MAX,
    USER_REQUESTS_MAX,
    Settings,
    default_run_dir,
)
from naiad.config.surroundings import gpu_devices
from naiad.protocol.endpoints import Endpoints
from naiad.protocol.messages import LogLevels

_PR_SET_PDEATHSIG: Final = 1
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
    options = _parser().parse_args(arguments)
    if options.die_with_parent:
        _die_with(options.die_with_parent)
    settings = _settings(options)
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
    frame_bytes_max = settings.inline_bytes_max
    outbox_bytes_max = settings.session_outbox_bytes_max
    clients_max, workers_max = _connections_max()
    to_clients = Transport(
        context,
        endpoints.clients,
        connections_max=clients_max,
        frame_bytes_max=frame_bytes_max,
        outbox_bytes_max=outbox_bytes_max,
    )
    to_workers = Transport(
        context,
        endpoints.workers,
        connections_max=workers_max,
        frame_bytes_max=frame_bytes_max,
        outbox_bytes_max=outbox_bytes_max,
        heartbeat_interval_ms=settings.heartbeat_interval_ms,
        heartbeat_timeout_ms=settings.heartbeat_timeout_ms,
    )
    to_workers.start()
    to_clients.start()
    liveness = Liveness()
    clients = Clients(to_clients, liveness, log)
    incarnation = int.from_bytes(os.urandom(8), "little") or 1
    clients.incarnation = incarnation
    scheduler = Scheduler(
        incarnation=incarnation,
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
    repository = RepositoryHelper(
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
    loop = Loop(
        scheduler,
        clients=clients,
        workers=Workers(to_workers, liveness, endpoints, log),
        liveness=liveness,
        repository=repository,
        state=state,
        uploads=Uploads(endpoints),
        log=log,
        drain_ns=int(settings.drain_seconds * SECOND_NS),
    )
    code = loop.run(_names(settings), state.load())
    context.term()
    return code


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


def _settings(options: argparse.Namespace) -> Settings:
    run_dir = options.run_dir or default_run_dir(
        options.name, environment=os.environ, uid=os.getuid()
    )
    return Settings(
        run_dir=os.path.abspath(run_dir),
        name=options.name,
        repositories=tuple(os.path.abspath(path) for path in options.repository),
        control_mode=options.control_mode,
        load_models=tuple(options.load_model),
        drain_seconds=options.drain_seconds,
        scan_timeout_seconds=options.scan_timeout_seconds,
        spare_workers_count=options.spares,
        on_missing_gpu=options.on_missing_gpu,
        gpus=options.gpus,
        identity=options.id,
        strict_readiness=bool(options.strict_readiness),
        auto_complete=bool(options.auto_complete),
        config_name=options.model_config_name,
        allow_file_override=bool(options.allow_file_override),
        log_levels=options.log_levels._replace(format=options.log_format),
        log_file=options.log_file,
        user_requests_max=options.user_requests_max,
        user_bytes_max=options.user_bytes_max,
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="naiad broker", description="Queue requests, form batches, send them to workers."
    )
    parser.add_argument("--run-dir", default="", help="sockets and state are here")
    parser.add_argument("--name", default="naiad", help="the server's name")
    parser.add_argument("--repository", action="append", default=[], help="may be repeated")
    parser.add_argument("--control-mode", default="none", help="none or explicit")
    parser.add_argument("--load-model", action="append", default=[], help="may be repeated")
    parser.add_argument("--drain-seconds", type=float, default=30.0)
    parser.add_argument(
        "--scan-timeout-seconds",
        type=float,
        default=SCAN_TIMEOUT_SECONDS,
        help="for reading the model repository, once",
    )
    parser.add_argument("--spares", type=int, default=1, help="warm empty workers per device")
    parser.add_argument("--on-missing-gpu", default="fail", choices=("fail", "cpu"))
    parser.add_argument("--gpus", default=AUTO, help="auto, all, none, or UUIDs with commas")
    switch: Any = {"type": int, "choices": (0, 1), "default": 1}
    parser.add_argument("--id", default="", help="the name in the server's metadata")
    parser.add_argument("--strict-readiness", **switch)
    parser.add_argument("--auto-complete", **switch)
    parser.add_argument("--model-config-name", default="", help="configs/NAME.pbtxt is preferred")
    parser.add_argument("--allow-file-override", **{**switch, "default": 0})
    parser.add_argument("--log-levels", type=_levels, default=INITIAL, metavar="I,W,E,VERBOSE")
    parser.add_argument("--log-format", default=INITIAL.format, choices=FORMATS)
    parser.add_argument("--log-file", default="", help="told to those who ask")
    for option, usual, what in (
        ("--user-requests-max", USER_REQUESTS_MAX, "requests"),
        ("--user-bytes-max", USER_BYTES_MAX, "bytes of tensors"),
    ):
        text = f"{what} of one user in flight; 0: all"
        parser.add_argument(option, type=int, default=usual, metavar="N", help=text)
    parser.add_argument("--die-with-parent", type=int, default=0, metavar="PID")
    return parser


def _levels(text: str) -> LogLevels:
    info, warning, error, verbose = map(int, text.split(","))
    return LogLevels(bool(info), bool(warning), bool(error), verbose, INITIAL.format)


def _die_with(parent: int) -> None:
    """Get SIGKILL when the supervisor dies, also if it died before this line."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(ExitCode.CANNOT_START)


if __name__ == "__main__":
    sys.exit(main())
