"""One closed loop of a naiad client in a process of its own: what versus.py and cpu.py start.

    python -m benchmarks.native RUN_DIR MODEL --client blocking --in-flight 64 --seconds 2

Prints "warm", waits for a line on stdin, measures, and prints one line of JSON: the figures of
`Measured`, then user and system seconds of CPU.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any, Final, NamedTuple

import numpy as np
from benchmarks.closed_loop import Measured, async_loop, blocking_loop, checked_answer
from benchmarks.processes import Cpu, cpu_of

from naiad.client import AsyncClient, Client, prepare

SHAPES: Final = {"identity": (1, 16), "identbig": (1, 3, 224, 224), "vad": (1, 576)}
INPUT: Final = "INPUT0"
WARM_UP_SECONDS: Final = 0.5


class NativeRun(NamedTuple):
    """A finished process of this module."""

    measured: Measured
    cpu: Cpu


def run(
    run_dir: str,
    model: str,
    in_flight: int,
    seconds: float,
    *,
    client: str = "blocking",
    transport: str = "auto",
    reads: bool = False,
    shape_of: str = "",
    on_warm: Callable[[], None] | None = None,
) -> NativeRun:
    """Run the loop in a process of its own; `on_warm` is called right before it measures.

    `shape_of` names the workload whose input shape the model takes, by default the model.
    """
    command = [
        sys.executable, "-m", "benchmarks.native", run_dir, model, "--client", client,
        "--in-flight", str(in_flight), "--seconds", str(seconds), "--transport", transport,
        "--shape-of", shape_of or model,
    ]  # fmt: skip
    if reads:
        command.append("--reads")
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        if process.stdout.readline() != "warm\n":
            raise SystemExit("the client ended during its warm-up")
        if on_warm is not None:
            on_warm()
        process.stdin.write("go\n")
        process.stdin.flush()
        line = process.stdout.readline()
    if not line:
        raise SystemExit("the client ended during its measurement")
    found, cpu = json.loads(line)
    return NativeRun(Measured(*found), Cpu(*cpu))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run_dir")
    parser.add_argument("model")
    parser.add_argument("--client", choices=["blocking", "async"], default="blocking")
    parser.add_argument("--in-flight", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--transport", choices=["auto", "inline", "shm"], default="auto")
    parser.add_argument("--shape-of", choices=sorted(SHAPES), default="identity")
    parser.add_argument("--reads", action="store_true")
    options = parser.parse_args()
    array = np.random.default_rng(1).random(SHAPES[options.shape_of], dtype=np.float32)
    if options.client == "async":
        asyncio.run(_async_main(options, array))
    else:
        _blocking_main(options, array)


def _blocking_main(options: argparse.Namespace, array: Any) -> None:
    request = prepare(options.model, {INPUT: array})
    with Client(options.run_dir, **_transport(options)) as client:
        answer = client.infer(request)
        if options.shape_of != "vad":
            checked_answer(answer, array)
        blocking_loop(client, request, options.in_flight, WARM_UP_SECONDS, reads=options.reads)
        before = _go()
        _print(
            blocking_loop(client, request, options.in_flight, options.seconds, reads=options.reads),
            before,
        )


async def _async_main(options: argparse.Namespace, array: Any) -> None:
    request = prepare(options.model, {INPUT: array})
    async with AsyncClient(options.run_dir, **_transport(options)) as client:
        answer = await client.infer(request)
        if options.shape_of != "vad":
            checked_answer(answer, array)
        await async_loop(client, request, options.in_flight, WARM_UP_SECONDS, reads=options.reads)
        before = _go()
        _print(
            await async_loop(
                client, request, options.in_flight, options.seconds, reads=options.reads
            ),
            before,
        )


def _transport(options: argparse.Namespace) -> dict[str, Any]:
    return {} if options.transport == "auto" else {"transport": options.transport}


def _go() -> Cpu:
    print("warm", flush=True)
    sys.stdin.readline()
    return cpu_of(os.getpid())


def _print(found: Measured, before: Cpu) -> None:
    print(json.dumps([found, cpu_of(os.getpid()).since(before)]), flush=True)


if __name__ == "__main__":
    main()
