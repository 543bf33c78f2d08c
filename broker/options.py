"""The command line of a broker process."""

from __future__ import annotations

import argparse
import os
from typing import Any

from naiad.config.gpus import AUTO
from naiad.config.log_levels import FORMATS, INITIAL
from naiad.config.settings import (
    SCAN_TIMEOUT_SECONDS,
    USER_BYTES_MAX,
    USER_REQUESTS_MAX,
    Settings,
    default_run_dir,
)
from naiad.protocol.messages import LogLevels


def parser() -> argparse.ArgumentParser:
    out = argparse.ArgumentParser(
        prog="naiad broker",
        usage="%(prog)s --run-dir DIR --repository DIR [options]",
        description="Queue requests, form batches, send them to workers.",
        epilog="example: naiad broker --run-dir /run/naiad --repository model_repository",
    )
    option = out.add_argument
    option("--run-dir", default="", metavar="DIR", help="sockets and state are here")
    option("--name", default="naiad", help="the server's name")
    option("--repository", action="append", default=[], metavar="DIR", help="of models; repeatable")
    option("--control-mode", default="none", help="none or explicit")
    option("--load-model", action="append", default=[], metavar="MODEL", help="repeatable")
    option(
        "--drain-seconds",
        type=float,
        default=30.0,
        metavar="SECONDS",
        help="for running work, after SIGTERM",
    )
    option(
        "--scan-timeout-seconds",
        type=float,
        default=SCAN_TIMEOUT_SECONDS,
        metavar="SECONDS",
        help="for reading the model repository, once",
    )
    option("--spares", type=int, default=1, metavar="N", help="warm empty workers per device")
    option(
        "--on-missing-gpu",
        default="fail",
        choices=("fail", "cpu"),
        help="what becomes of models without their GPU",
    )
    option("--gpus", default=AUTO, help="auto, all, none, or UUIDs with commas")
    switch: Any = {"type": int, "choices": (0, 1), "default": 1}
    option("--id", default="", help="the name in the server's metadata")
    option("--strict-readiness", **switch, help="1: ready means that every model is")
    option("--auto-complete", **switch, help="1: models add what their configuration leaves out")
    option(
        "--model-config-name",
        default="",
        metavar="NAME",
        help="configs/NAME.pbtxt is preferred",
    )
    option(
        "--allow-file-override",
        **{**switch, "default": 0},
        help="1: a load may bring the model's files along",
    )
    option(
        "--log-levels",
        type=_levels,
        default=INITIAL,
        metavar="I,W,E,VERBOSE",
        help="switches for info, warning and error, and a level; default: 1,1,1,0",
    )
    option("--log-format", default=INITIAL.format, choices=FORMATS, help="default: %(default)s")
    option("--log-file", default="", metavar="FILE", help="told to those who ask")
    for name, usual, what in (
        ("--user-requests-max", USER_REQUESTS_MAX, "requests"),
        ("--user-bytes-max", USER_BYTES_MAX, "bytes of tensors"),
    ):
        text = f"{what} of one user in flight; 0: all"
        option(name, type=int, default=usual, metavar="N", help=text)
    return out


def settings(options: argparse.Namespace) -> Settings:
    """What the options say, with absolute paths; `Settings.faults` judges it."""
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


def _levels(text: str) -> LogLevels:
    info, warning, error, verbose = map(int, text.split(","))
    return LogLevels(bool(info), bool(warning), bool(error), verbose, INITIAL.format)
