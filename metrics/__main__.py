"""`python -m naiad.metrics`: the metrics process, under `naiad serve` or another supervisor.

SIGTERM and SIGINT end it at once: it has nothing to finish.
"""

from __future__ import annotations

import argparse
import os
import signal
import socket
import sys
import threading
from enum import IntEnum
from typing import Any, Final

from naiad.client import Client
from naiad.client.control import counters
from naiad.config.listening import ListenFailed, listening, port_number
from naiad.metrics.gpus import Gpus
from naiad.metrics.http_server import MetricsServer
from naiad.metrics.scrape import SCRAPE_SECONDS_MAX, Scraper
from naiad.protocol.errors import NaiadError

HIDDEN: Final = argparse.SUPPRESS
"""For a supervisor that has made the socket already: `naiad serve`."""
NICENESS: Final = 5
"""Whoever works on requests goes first."""


class ExitCode(IntEnum):
    """How it ends. 2 is argparse's own, for a wrong command line."""

    DONE = 0
    LISTEN_FAILED = 3


def parser() -> argparse.ArgumentParser:
    out = argparse.ArgumentParser(
        prog="naiad metrics",
        description="The metrics process: one page for Prometheus about the server of a run"
        " directory.",
        epilog="example: naiad metrics --run-dir /run/naiad --port 8002",
        allow_abbrev=False,
    )
    option = out.add_argument
    option("--run-dir", required=True, help="of the server to ask")
    option("--name", default="metrics", help="of this process, for people")
    option("--address", default="127.0.0.1", help="an IP address or host name")
    option("--port", type=_port, default=8002, help="default: 8002; 0: any free")
    option(
        "--gpu-metrics",
        type=int,
        choices=(0, 1),
        default=1,
        help="whether the driver is asked for figures of the server's GPUs",
    )
    option("--fd", type=int, help=HIDDEN)
    return out


def _port(text: str) -> int:
    try:
        return port_number(text)
    except ValueError as fault:  # argparse shows no words of one
        raise argparse.ArgumentTypeError(str(fault)) from None


def main(arguments: list[str] | None = None) -> int:
    options = parser().parse_args(arguments)
    ends = (signal.SIGTERM, signal.SIGINT)
    signal.pthread_sigmask(signal.SIG_BLOCK, ends)  # before there are threads
    try:
        if options.fd is not None:
            listener = socket.socket(fileno=options.fd)
        else:
            listener = listening(options.address, options.port, what="--port")
    except ListenFailed as fault:
        print(f"naiad metrics: {fault}", file=sys.stderr)
        return ExitCode.LISTEN_FAILED
    os.nice(NICENESS)
    client = Client(
        options.run_dir, role="metrics", transport="inline", connect_timeout_s=SCRAPE_SECONDS_MAX
    )

    is_told = False

    def ask(after: str | None, seconds: float) -> Any:
        nonlocal is_told
        try:
            found = client.call(counters(after, seconds))
        except NaiadError as fault:
            if not is_told:  # once, not at every scrape until it is over
                print(f"naiad metrics: {fault.message}", file=sys.stderr, flush=True)
            is_told = True
            raise
        is_told = False
        return found

    scraper = Scraper(ask, Gpus() if options.gpu_metrics else None)
    with client, MetricsServer(listener, scraper.page) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        signal.sigwait(ends)
    return ExitCode.DONE


if __name__ == "__main__":
    sys.exit(main())
