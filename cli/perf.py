"""`naiad perf`: throughput and latency of one model, in a closed loop over the native client.

The inputs are made once; with --shared-memory they lie in regions of the client, one for each
request in flight, and outputs are written there too. Server shares come from the statistics.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from typing import Any, Final

import click

from naiad.cli import run_dir
from naiad.cli.closed_loop import Measurement, Tally, async_closed_loop, closed_loop, warm_up_s
from naiad.cli.control import refused, require_server
from naiad.cli.exit_codes import ExitCode
from naiad.cli.failure import CommandFailed
from naiad.cli.perf_inputs import Workload, random_inputs
from naiad.cli.seconds import Seconds
from naiad.cli.server_options import server_options
from naiad.cli.tables import table
from naiad.client import AsyncClient, Client
from naiad.client.memory import SHARED_BYTES_MIN
from naiad.protocol.errors import NaiadError

Json = dict[str, Any]

CONNECT_TIMEOUT_S: Final = 3.0
CONCURRENCY_MAX: Final = 4096
PROGRESS_S: Final = 0.1


class Progress:
    """A bar on stderr where a person looks at it, nothing elsewhere."""

    def __init__(self, total_s: float) -> None:
        self._next_s = 0.0
        self._begun_s = time.monotonic()
        self._bar: Any = None
        if sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import Progress as Bar

            self._bar = Bar(console=Console(stderr=True), transient=True)
            self._task = self._bar.add_task("measuring", total=total_s)
            self._bar.start()

    def describe(self, concurrency: int) -> None:
        if self._bar is not None:
            self._bar.update(self._task, description=f"concurrency {concurrency}")

    def tick(self) -> None:
        if self._bar is not None:
            now_s = time.monotonic()
            if now_s >= self._next_s:
                self._next_s = now_s + PROGRESS_S
                self._bar.update(self._task, completed=now_s - self._begun_s)

    def close(self) -> None:
        if self._bar is not None:
            self._bar.stop()


def measured(
    where: str,
    model: str,
    concurrencies: list[int],
    seconds: float,
    shapes: dict[str, tuple[int, ...]],
    *,
    is_shared: bool | None,
    is_async: bool,
) -> list[Measurement]:
    """Measure one concurrency after the other.

    Raises CommandFailed when the model is not ready or does nothing but fail.
    """
    progress = Progress(len(concurrencies) * (seconds + warm_up_s(seconds)))
    try:
        with Client(where, role="perf", connect_timeout_s=CONNECT_TIMEOUT_S) as client:
            if not client.model_ready(model):
                raise CommandFailed(_not_ready(client, model), ExitCode.NOT_READY)
            workload = Workload(model, random_inputs(client.metadata(model), dict(shapes)))
            workload.learn(client.infer(workload.inline))
            if is_shared is None:
                is_shared = workload.region_bytes >= SHARED_BYTES_MIN
            elif not is_shared:
                workload.keep_inline()
            out = []
            for concurrency in concurrencies:
                progress.describe(concurrency)
                before = client.statistics(model)
                if is_async:
                    tally = asyncio.run(
                        _awaited(where, workload, concurrency, seconds, is_shared, progress)
                    )
                else:
                    tally = _blocked(client, workload, concurrency, seconds, is_shared, progress)
                out.append(tally.measurement(concurrency, before, client.statistics(model)))
            return out
    finally:
        progress.close()


def _blocked(
    client: Client,
    workload: Workload,
    concurrency: int,
    seconds: float,
    is_shared: bool,
    progress: Progress,
) -> Tally:
    requests = [workload.inline] * concurrency
    if is_shared:
        regions = [client.region(workload.region_bytes) for _ in requests]
        requests = [workload.shared(region) for region in regions]
    tally = Tally(seconds)
    closed_loop(client, requests, tally, progress.tick)
    return tally


async def _awaited(
    where: str,
    workload: Workload,
    concurrency: int,
    seconds: float,
    is_shared: bool,
    progress: Progress,
) -> Tally:
    async with AsyncClient(where, role="perf", connect_timeout_s=CONNECT_TIMEOUT_S) as client:
        requests = [workload.inline] * concurrency
        if is_shared:
            regions = [await client.region(workload.region_bytes) for _ in requests]
            requests = [workload.shared(region) for region in regions]
        tally = Tally(seconds)
        await async_closed_loop(client, requests, tally, progress.tick)
        return tally


def _not_ready(client: Client, model: str) -> str:
    rows = [row for row in client.index() if row["name"] == model]
    if not rows:
        known = ", ".join(sorted({row["name"] for row in client.index()})) or "none"
        return f"the server has no model {model}; it has {known}"
    states = "; ".join(
        " ".join(str(row[key]) for key in ("version", "state", "reason") if row.get(key))
        or "not loaded"
        for row in rows
    )
    return f"model {model} is not ready ({states}); see `naiad status`"


def _concurrencies(context: click.Context, option: click.Parameter, text: str) -> list[int]:
    try:
        numbers = [int(part) for part in text.split(",")]
    except ValueError:
        numbers = []
    if not numbers or not all(1 <= number <= CONCURRENCY_MAX for number in numbers):
        raise click.BadParameter(f"expected numbers of 1 to {CONCURRENCY_MAX}, as in 1,16,64")
    return numbers


def _shapes(
    context: click.Context, option: click.Parameter, given: tuple[str, ...]
) -> dict[str, tuple[int, ...]]:
    shapes = {}
    for text in given:
        name, _, dims = text.rpartition(":")
        try:
            shapes[name] = tuple(int(dim) for dim in dims.split(","))
        except ValueError:
            name = ""
        if not name or min(shapes[name]) < 0:
            raise click.BadParameter(f"expected NAME:1,16, got {text!r}")
    return shapes


@click.command(
    epilog="\b\nExamples:\n"
    "  naiad perf -m identity --concurrency 1,16,64 --duration 5\n"
    "  naiad perf -m classify --shape image:1,3,224,224 --shared-memory --json\n"
)
@click.option("-m", "--model", required=True, help="The model to ask.")
@click.option(
    "--concurrency",
    default="1,16,64",
    show_default=True,
    callback=_concurrencies,
    help="Requests in flight; several are measured one after the other.",
)
@click.option(
    "--duration",
    type=Seconds(0.1),
    default=3.0,
    show_default=True,
    help="Seconds each.",
)
@click.option(
    "--shape",
    "shapes",
    multiple=True,
    callback=_shapes,
    metavar="NAME:1,16",
    help="An input's shape where it may vary (default: 1 there); repeatable.",
)
@click.option(
    "--shared-memory/--inline",
    "is_shared",
    default=None,
    help="Where tensors travel; default: shared memory when large.",
)
@click.option("--async", "is_async", is_flag=True, help="Measure AsyncClient instead.")
@click.option("--json", "as_json", is_flag=True, help="A list, one object per concurrency.")
@server_options
def perf(
    model: str,
    concurrency: list[int],
    duration: float,
    shapes: dict[str, tuple[int, ...]],
    is_shared: bool | None,
    is_async: bool,
    as_json: bool,
    folder: str | None,
    name: str,
) -> None:
    """Measure throughput and latency of a model."""
    where = run_dir.located(folder, name)
    require_server(where)
    try:
        found = measured(
            where, model, concurrency, duration, shapes, is_shared=is_shared, is_async=is_async
        )
    except NaiadError as fault:
        raise refused(fault) from fault
    if as_json:
        click.echo(json.dumps([one._asdict() for one in found], indent=2))
    else:
        click.echo(_as_table(found))
    if not any(one.throughput for one in found):
        raise CommandFailed(f"no request to {model} succeeded", ExitCode.FAILED)


def _as_table(found: list[Measurement]) -> str:
    header = ("IN FLIGHT", "REQUESTS/S", "P50 µs", "P90 µs", "P99 µs", "ERRORS", "QUEUE", "COMPUTE")
    rows = [
        (
            one.concurrency, f"{one.throughput:.0f}", f"{one.p50_us:.0f}", f"{one.p90_us:.0f}",
            f"{one.p99_us:.0f}", one.errors, f"{one.queue_share:.0%}", f"{one.compute_share:.0%}",
        )
        for one in found
    ]  # fmt: skip
    return table(header, rows)
