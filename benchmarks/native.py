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
from typing import Final, NamedTuple

from benchmarks.closed_loop import Arguments, Measured, async_loop, blocking_loop, require_answer
from benchmarks.processes import Cpu, cpu_of
from benchmarks.questions import QUESTIONS, Question

from naiad.client import AsyncClient, Client, InferInput, prepare
from naiad.client.tensors import packed_arrays

PLACES: Final = ("prepared", "arrays", "placed", "lent")
"""How tensors travel: prepared once and inside the message; arrays given each time, for the client
to decide; in the client's own shared memory, outputs too; the same with outputs in the worker's."""
OWN_PLACES: Final = ("placed", "lent")
WARM_UP_SECONDS: Final = 0.4


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
    places: str = "prepared",
    reads: bool = False,
    question: str = "",
    on_warm: Callable[[], None] | None = None,
) -> NativeRun:
    """Run the loop in a process of its own; `on_warm` is called right before it measures.

    `question` is one of QUESTIONS, by default the one with the model's name.
    """
    command = [
        sys.executable, "-m", "benchmarks.native", run_dir, model, "--client", client,
        "--in-flight", str(in_flight), "--seconds", str(seconds), "--places", places,
        "--question", question or model,
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
    parser.add_argument("--places", choices=PLACES, default="prepared")
    parser.add_argument("--question", choices=sorted(QUESTIONS), default="identity")
    parser.add_argument("--reads", action="store_true")
    options = parser.parse_args()
    question = QUESTIONS[options.question]()
    if options.client == "async":
        asyncio.run(_async_main(options, question))
    else:
        _blocking_main(options, question)


def _blocking_main(options: argparse.Namespace, question: Question) -> None:
    reads = question.output if options.reads else ""
    with Client(options.run_dir) as client:
        if options.places in OWN_PLACES:
            lanes = [_placed(options, question, client) for _ in range(options.in_flight)]
        else:
            lanes = [_lane(options, question) for _ in range(options.in_flight)]
            found = client.infer(*lanes[0])[question.output]
            if question.expected is not None:
                require_answer(found, question.expected)
        blocking_loop(client, lanes, WARM_UP_SECONDS, reads=reads)
        before = _go()
        _print(blocking_loop(client, lanes, options.seconds, reads=reads), before)


async def _async_main(options: argparse.Namespace, question: Question) -> None:
    reads = question.output if options.reads else ""
    async with AsyncClient(options.run_dir) as client:
        lanes = [_lane(options, question) for _ in range(options.in_flight)]
        found = (await client.infer(*lanes[0]))[question.output]
        if question.expected is not None:
            require_answer(found, question.expected)
        await async_loop(client, lanes, WARM_UP_SECONDS, reads=reads)
        before = _go()
        _print(await async_loop(client, lanes, options.seconds, reads=reads), before)


def _lane(options: argparse.Namespace, question: Question) -> Arguments:
    if options.places in OWN_PLACES:
        raise SystemExit("own places are measured with the blocking client only")
    if options.places == "arrays":
        return (options.model, question.inputs, question.outputs)
    return (prepare(options.model, question.inputs, question.outputs),)


def _placed(options: argparse.Namespace, question: Question, client: Client) -> Arguments:
    """A request whose inputs lie in regions of its own, written once, as perf_analyzer does; asked
    once, and its answer checked."""
    inputs: list[InferInput] = []
    for name, datatype, shape, *_, size, data in packed_arrays(question.inputs):
        assert data is not None
        region = client.region(size)
        region.view[:] = data
        inputs.append(region.input(name, datatype, shape))
    expected = question.expected
    if options.places == "lent":
        request = prepare(options.model, inputs, question.outputs)
        require_answer(client.infer(request)[question.output], expected)
        return (request,)
    region = client.region(expected.nbytes)
    request = prepare(options.model, inputs, {question.output: region.place()})
    client.infer(request)
    require_answer(region.array("FP32", expected.shape), expected)
    return (request,)


def _go() -> Cpu:
    print("warm", flush=True)
    sys.stdin.readline()
    return cpu_of(os.getpid())


def _print(found: Measured, before: Cpu) -> None:
    print(json.dumps([found, cpu_of(os.getpid()).since(before)]), flush=True)


if __name__ == "__main__":
    main()
