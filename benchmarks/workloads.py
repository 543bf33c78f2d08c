"""What versus.py measures: for each workload its loads, and the bars that naiad has to reach.

The peer of the bars is Triton with the least model there is (max_batch_size 0), as published
benchmarks serve it; the same with Triton's dynamic batcher is measured beside it, for information.
"""

from __future__ import annotations

import argparse
import shutil
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final, NamedTuple

from benchmarks import foreign, native, vad
from benchmarks.closed_loop import Measured
from benchmarks.peer_servers import Mosec
from benchmarks.questions import QUESTIONS

HERE: Final = Path(__file__).resolve().parent
OUR_MODELS: Final = ("identity", "identbig")
VAD_WORKLOADS: Final = frozenset({"vad", "http-vad"})
PEER_MODELS: Final = ("identity", "identity_batched", "identbig")
SHARED_MODELS: Final = ("identity_batched",)
"""Of the peers' repository, which naiad serves as well: the very same config and model.py."""

BATCHED_BIG: Final = "identbig_batched"
"""naiad's identbig with the dynamic batcher."""

ALONE: Final = "identity_alone"
BIG_ALONE: Final = "identbig_alone"
"""The peers' models as they are (max_batch_size 0), for naiad by other names."""


class Load(NamedTuple):
    """A closed loop by name; `run` takes seconds."""

    name: str
    run: Callable[[float], Measured]


class Bar(NamedTuple):
    """naiad's figure divided by the best of the peers' in the same round, against a limit (None:
    for information)."""

    title: str
    ours: str
    theirs: tuple[str, ...]
    is_latency: bool
    limit: float | None

    def ratio(self, one: dict[str, Measured]) -> float:
        if self.is_latency:
            return one[self.ours].p50_us / min(one[name].p50_us for name in self.theirs)
        return one[self.ours].rate / max(one[name].rate for name in self.theirs)


class Context(NamedTuple):
    """What the loads need to know."""

    options: argparse.Namespace
    folder: Path
    repository: Path
    peer_repository: Path
    stack: ExitStack
    """Ends what a workload starts."""
    run_dir: str = ""
    """Of the running naiad; empty until it runs."""
    http: str = ""
    grpc: str = ""
    """HOST:PORT of its front door."""


class Workload(NamedTuple):
    """The loads of each round, and the bars on them."""

    loads: list[Load]
    bars: list[Bar]


def context_of(options: argparse.Namespace, folder: Path, stack: ExitStack) -> Context:
    """The repositories of both sides, made in `folder`."""
    peers = folder / "peer_repository"
    ours = folder / "repository"
    for name in PEER_MODELS:
        shutil.copytree(HERE / "peers" / "repository" / name, peers / name)
    for name in SHARED_MODELS:
        shutil.copytree(HERE / "peers" / "repository" / name, ours / name)
    for name in OUR_MODELS:
        shutil.copytree(HERE.parent / "model_repository" / name, ours / name)
    batched = _renamed(ours / "identbig", ours / BATCHED_BIG)
    batched.write_text(f"{batched.read_text()}dynamic_batching {{ }}\n")
    _renamed(peers / "identity", ours / ALONE)
    _renamed(peers / "identbig", ours / BIG_ALONE)
    if VAD_WORKLOADS & set(options.workloads):
        vad.add_models(options.vad_model, ours, peers, folder)
    return Context(options, folder, ours, peers, stack)


def _renamed(source: Path, target: Path) -> Path:
    """A copy of a model by another name; its configuration."""
    config = shutil.copytree(source, target) / "config.pbtxt"
    text = config.read_text().replace(f'name: "{source.name}"', f'name: "{target.name}"')
    config.write_text(text)
    return config


def native_client(in_flight: int) -> Callable[[Context], Workload]:
    """The native client on FP32 [1,16] identity against Triton's HTTP and gRPC."""

    def workload(context: Context) -> Workload:
        ours = f"naiad Client, {in_flight} in flight"
        loads = [_native(context, ours, "identity", in_flight)]
        name = f"the same, the peer's model.py, {in_flight} in flight"
        loads.append(_native(context, name, "identity_batched", in_flight, question="identity"))
        loads.append(_wrk_triton(context, "identity", in_flight))
        loads.append(_perf_analyzer(context, "grpc", "identity", in_flight))
        loads.append(_wrk_triton(context, "identity_batched", in_flight))
        loads.append(_perf_analyzer(context, "grpc", "identity_batched", in_flight))
        names = tuple([load.name for load in loads])
        what = f"requests per second at {in_flight} in flight"
        return Workload(
            loads,
            [
                Bar(what, ours, names[2:4], False, 3.0),
                Bar(f"{what}, the peer with a batcher", ours, names[4:], False, None),
                Bar(f"{what}, both with batcher and model.py", names[1], names[4:], False, None),
            ],
        )

    return workload


def python_service(in_flight: int) -> Callable[[Context], Workload]:
    """From a Python service: AsyncClient against tritonclient.grpc.aio."""

    def workload(context: Context) -> Workload:
        ours = f"naiad AsyncClient, {in_flight} in flight"
        loads = [
            _native(context, ours, "identity", in_flight, client="async", reads=True),
            _grpc_aio(context, "identity", in_flight),
        ]
        if in_flight != 1:
            loads.append(_grpc_aio(context, "identity_batched", in_flight))
            plain, batched = loads[1].name, loads[2].name
            title = f"requests per second at {in_flight} in flight, from Python"
            return Workload(
                loads,
                [
                    Bar(title, ours, (plain,), False, 4.0),
                    Bar(f"{title}, the peer with a batcher", ours, (batched,), False, None),
                ],
            )
        blocking = "naiad Client, 1 in flight"
        loads.append(_native(context, blocking, "identity", 1, reads=True))
        loads.append(_wrk_triton(context, "identity", 1))
        aio, http = loads[1].name, loads[3].name
        title = "p50 at 1 in flight"
        return Workload(
            loads,
            [
                Bar(f"{title}, AsyncClient against tritonclient's", ours, (aio,), True, 0.6),
                Bar(f"{title}, AsyncClient against HTTP from C", ours, (http,), True, 1.2),
                Bar(f"{title}, Client against HTTP from C", blocking, (http,), True, None),
            ],
        )

    return workload


def large_tensors(context: Context) -> Workload:
    """602,112 bytes each way, 4 in flight, both sides through shared memory.

    The bar is on own places for inputs and outputs, written once, which is what perf_analyzer has,
    and naiad's model with the dynamic batcher, as in the other workloads; beside it what an
    application gets that passes arrays, or has its outputs in the worker's memory.
    """
    expected: Any = QUESTIONS["identbig"]().expected
    loads = [
        _native(context, f"naiad Client, {what}", model, 4, places=places, question="identbig")
        for model, places, what in (
            (BATCHED_BIG, "placed", "inputs and outputs in own regions"),
            ("identbig", "placed", "the same without a batcher"),
            (BATCHED_BIG, "lent", "inputs in own regions, outputs lent"),
            (BATCHED_BIG, "arrays", "arrays, copied in each time"),
        )
    ]
    others = [
        _perf_analyzer(context, way, "identbig", 4, expected.nbytes) for way in ("http", "grpc")
    ]
    theirs = tuple([load.name for load in others])
    title = "requests of 602,112 bytes per second at 4 in flight"
    bars = [Bar(title, loads[0].name, theirs, False, 2.0)]
    bars += [Bar(load.name, load.name, theirs, False, None) for load in loads[1:]]
    return Workload(loads + others, bars)


def speech(context: Context) -> Workload:
    """A small recurrent network, 16 in flight, batches of 8 within 1 ms, one instance everywhere.

    The bar is on the python backend with the very model.py that Triton runs.
    """
    options = context.options
    context.stack.enter_context(Mosec(options, context.folder))
    urls = {"triton": _url(context, "vad"), "mosec": f"http://{options.mosec_http}/vad"}
    vad.require_right_answers(context.run_dir, urls, context.folder)
    frame = QUESTIONS["vad"]().inputs["INPUT0"]
    ours = "naiad Client, python backend, batches of 8"
    theirs = "triton HTTP, wrk, vad", "mosec HTTP, wrk, vad"
    loads = [
        _native(context, ours, "vad", 16, reads=True),
        _native(context, "naiad Client, onnxruntime backend, no batches", "silero_vad", 16),
        _wrk(context, theirs[0], urls["triton"], foreign.binary_body(frame), 16),
        _wrk(context, theirs[1], urls["mosec"], foreign.raw_body(frame), 16),
    ]
    title = "frames of speech per second at 16 in flight"
    return Workload(
        loads,
        [
            Bar(title, ours, theirs, False, 1.2),
            Bar("the same, onnxruntime backend", loads[1].name, theirs, False, None),
        ],
    )


WORKLOADS: Final[dict[str, Callable[[Context], Workload]]] = {
    "native-64": native_client(64),
    "native-16": native_client(16),
    "python-16": python_service(16),
    "python-1": python_service(1),
    "large": large_tensors,
    "vad": speech,
}


def _native(context: Context, name: str, model: str, in_flight: int, **how: Any) -> Load:
    def run(seconds: float) -> Measured:
        return native.run(context.run_dir, model, in_flight, seconds, **how).measured

    return Load(name, run)


def _url(context: Context, model: str) -> str:
    return f"http://{context.options.triton_http}/v2/models/{model}/infer"


def _wrk_triton(context: Context, model: str, in_flight: int) -> Load:
    body = foreign.binary_body(QUESTIONS["identity"]().expected)
    return _wrk(context, f"triton HTTP, wrk, {model}", _url(context, model), body, in_flight)


def _wrk(context: Context, name: str, url: str, body: foreign.Body, in_flight: int) -> Load:
    def run(seconds: float) -> Measured:
        return foreign.wrk(context.options.wrk, url, body, in_flight, seconds, context.folder)

    return Load(name, run)


def _perf_analyzer(
    context: Context, protocol: str, model: str, in_flight: int, shared_bytes: int = 0
) -> Load:
    options = context.options
    address = options.triton_grpc if protocol == "grpc" else options.triton_http
    suffix = ", shared memory" if shared_bytes else ""

    def run(seconds: float) -> Measured:
        return foreign.perf_analyzer(
            options.perf_analyzer, protocol, address, model, in_flight, seconds, context.folder,
            shared_bytes=shared_bytes, batch=model.endswith("batched"),
        )  # fmt: skip

    return Load(f"triton {protocol}, perf_analyzer{suffix}, {model}", run)


def _grpc_aio(context: Context, model: str, in_flight: int) -> Load:
    options = context.options

    def run(seconds: float) -> Measured:
        python = options.tritonclient_python
        return foreign.grpc_aio(python, options.triton_grpc, model, in_flight, seconds)

    return Load(f"triton gRPC, tritonclient aio, {model}", run)
