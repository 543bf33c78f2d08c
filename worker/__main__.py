"""`python -m naiad.worker`: one slot, for one model instance of one broker."""

from __future__ import annotations

import argparse
import logging
import os
import re
import sys
from collections.abc import Sequence
from typing import Final, NoReturn

from naiad.config.settings import seconds
from naiad.protocol.endpoints import Endpoints
from naiad.worker.backends.base import InstanceLost
from naiad.worker.backends.registry import find_backend, importable_backends
from naiad.worker.device import take_device
from naiad.worker.exception_text import described
from naiad.worker.exit_codes import ExitCode
from naiad.worker.log import Log, LogHandler
from naiad.worker.loop import Slot, WorkerLoop
from naiad.worker.presence import BROKER_ABSENCE_MAX_S
from naiad.worker.process import RunDirFault, SlotProcess
from naiad.worker.stop_signal import TERM_GRACE_S, StopSignal
from naiad.worker.transport import Transport

RUN_DIR_PAUSE_S: Final = 1.0
"""A supervisor that restarts at once must not spin; a person at a terminal need not wait."""
QUIET: Final = {"ORT_DISABLE_TELEMETRY": "1"}
"""Of engines that would report to their makers, and keep a number of this machine under HOME, as
soon as they are imported, by a backend or by a model. What the operator set himself stands."""


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run one worker to its end. Never returns: the process exits."""
    options = _parser().parse_args(arguments)
    for variable, value in QUIET.items():
        os.environ.setdefault(variable, value)
    take_device(options.device)
    log = Log(options.slot)
    logging.getLogger().addHandler(LogHandler(log))
    stop = StopSignal(log, grace_s=options.grace, ignore_int=options.die_with_parent)
    stop.start()
    endpoints = Endpoints(options.run_dir)
    process = SlotProcess(endpoints, options.slot, log, stop)
    try:
        process.start(die_with_parent=options.die_with_parent)
    except RunDirFault as fault:
        log.line(str(fault))
        if not sys.stderr.isatty():
            stop.wait(RUN_DIR_PAUSE_S)
        sys.exit(ExitCode.RUN_DIR)
    _preload(options.preload, log)
    transport = Transport(endpoints.workers, stop.wake_descriptor, stop.wake)
    slot = Slot(options.slot, options.device, importable_backends())
    loop = WorkerLoop(
        slot,
        transport,
        page=process.page,
        log=log,
        stop=stop,
        is_orphaned=process.is_orphaned,
        on_welcome=process.starts.clear,
        absence_max_s=options.absence_max,
    )
    try:
        code = loop.run()
        loop.close()
    except InstanceLost as lost:
        log.line(f"ends at once, and another takes over: {lost}")
        code = ExitCode.INSTANCE_LOST
    except BaseException as fault:
        log.failure(f"a fault of the worker itself: {described(fault)}", fault)
        code = ExitCode.FAULT
    process.exit(code)


def _preload(backends: Sequence[str], log: Log) -> None:
    """Import what the next model will need, so that a spare slot takes over at once."""
    for name in backends:
        try:
            find_backend(name)
        except BaseException as fault:  # a backend's imports; its models will say it as well
            log.line(f"cannot preload backend {name!r}: {described(fault)}")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="naiad worker",
        description="One worker process: an empty slot that its broker gives a model instance to.",
        epilog="example: naiad worker --run-dir /run/naiad --slot cpu-0 --device cpu",
    )
    parser.add_argument(
        "--run-dir", required=True, metavar="DIR", help="the broker's run directory"
    )
    parser.add_argument("--slot", required=True, type=_slot_name, metavar="NAME")
    parser.add_argument("--device", default="cpu", type=_device, metavar="cpu|gpu:UUID")
    parser.add_argument("--preload", default=(), type=_names, metavar="BACKEND,...")
    parser.add_argument(
        "--die-with-parent",
        action="store_true",
        help="SIGKILL when the starting process dies, and no reaction to Ctrl-C",
    )
    parser.add_argument(
        "--grace",
        type=seconds,
        default=TERM_GRACE_S,
        metavar="SECONDS",
        help="time to drain on TERM",
    )
    parser.add_argument(
        "--absence-max",
        type=seconds,
        default=BROKER_ABSENCE_MAX_S,
        metavar="SECONDS",
        help="how long to wait for a broker that is away",
    )
    return parser


def _slot_name(text: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.:-]{0,63}", text):
        raise argparse.ArgumentTypeError(
            f"expected 1 to 64 letters, digits, or any of _ . : - , got {text!r}"
        )
    return text


def _device(text: str) -> str:
    if text != "cpu" and not re.fullmatch(r"gpu:.{1,64}", text):
        raise argparse.ArgumentTypeError(f"expected cpu or gpu:<uuid>, got {text!r}")
    return text


def _names(text: str) -> tuple[str, ...]:
    return tuple(name for name in text.split(",") if name)


if __name__ == "__main__":
    main()
