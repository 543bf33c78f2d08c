"""Options that several commands have: which running server is meant, and what one has."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import click

from naiad.cli.exit_codes import ExitCode
from naiad.cli.failure import CommandFailed
from naiad.config.gpu_listing import FoundGpus, found_gpus
from naiad.config.gpus import AUTO, GpuFault
from naiad.config.settings import DEFAULT_NAME

Command = Callable[..., Any]


def server_options(command: Command) -> Command:
    """Adds --run-dir (as `folder`) and --name."""
    command = click.option(
        "--name", default=DEFAULT_NAME, help="The server's name, when it was given one."
    )(command)
    return click.option("--run-dir", "folder", help="The server's run directory.")(command)


def missing_gpu_option(command: Command) -> Command:
    """Adds --on-missing-gpu."""
    return click.option(
        "--on-missing-gpu",
        type=click.Choice(["fail", "cpu"]),
        default="fail",
        help="Models without their GPU; default: fail.",
    )(command)


def gpus_option(command: Command) -> Command:
    """Adds --gpus."""
    return click.option(
        "--gpus",
        default=AUTO,
        metavar="auto|none|UUID,...",
        help="auto (default): all there are; docs/gpu.md.",
    )(command)


def model_config_option(command: Command, *, hidden: bool = False) -> Command:
    """Adds --model-config-name."""
    return click.option(
        "--model-config-name",
        default="",
        metavar="NAME",
        hidden=hidden,
        help="Prefer a model's configs/NAME.pbtxt to its config.pbtxt.",
    )(command)


def auto_complete_option(command: Command) -> Command:
    """Adds --disable-auto-complete-config."""
    return click.option(
        "--disable-auto-complete-config",
        is_flag=True,
        hidden=True,  # rarely wanted; docs/tritonserver.md has it
    )(command)


def found(gpus: str) -> FoundGpus:
    """What --gpus stands for on this machine."""
    try:
        return found_gpus(gpus, os.environ)
    except GpuFault as fault:
        raise CommandFailed(str(fault), ExitCode.USAGE) from fault
