"""`naiad broker`, `worker`, `gateway` and `metrics`: processes under another supervisor.

Their options are their own; what stands here is what `naiad serve` otherwise does for them: a slot
that dies at once again and again is started more and more slowly.
"""

from __future__ import annotations

import runpy
import sys
from typing import Final

import click

_PASS_THROUGH: Final = {"ignore_unknown_options": True, "help_option_names": []}


def _run(module: str, command: str, arguments: tuple[str, ...]) -> None:
    sys.argv = [f"naiad {command}", *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=False)


@click.command(context_settings=_PASS_THROUGH)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def broker(arguments: tuple[str, ...]) -> None:
    """Run a broker alone; `naiad serve` starts one by itself."""
    _run("naiad.broker", "broker", arguments)


@click.command(context_settings=_PASS_THROUGH)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def worker(arguments: tuple[str, ...]) -> None:
    """Run one worker slot; `naiad serve` starts as many as its models need."""
    _run("naiad.worker", "worker", arguments)


@click.command(context_settings=_PASS_THROUGH)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def gateway(arguments: tuple[str, ...]) -> None:
    """Run one gateway, HTTP and gRPC; `naiad serve` starts one by itself."""
    _run("naiad.gateway", "gateway", arguments)


@click.command(context_settings=_PASS_THROUGH)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def metrics(arguments: tuple[str, ...]) -> None:
    """Run the metrics process; `naiad serve` starts one by itself."""
    _run("naiad.metrics", "metrics", arguments)
