"""What versus.py measures: for each workload its loads, and the bars that naiad has to reach."""

from __future__ import annotations

import argparse
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
from benchmarks import foreign, native
from benchmarks.closed_loop import Measured

HERE: Final = Path(__file__).resolve().parent
OUR_MODELS: Final = ("identity", "identbig")
PEER_MODELS: Final = ("identity", "identity_batched")


class Load(NamedTuple):
    """A closed loop by name; `run` takes seconds."""

    name: str
    run: Callable[[float], Measured]


class Bar(NamedTuple):
    """naiad's figure divided by the best of the peers' in the same round, against a limit."""

    title: str
    ours: str
    theirs: tuple[str, ...]
    is_latency: bool
    limit: float

    @property
    def sign(self) -> str:
        return "≤" if self.is_latency else "≥"

    def ratio(self, one: dict[str, Measured]) -> float:
        if self.is_latency:
            return one[self.ours].p50_us / min(one[name].p50_us for name in self.theirs)
        return one[self.ours].rate / max(one[name].rate for name in self.theirs)

    def is_met(self, ratio: float) -> bool:
        return ratio <= self.limit if self.is_latency else ratio >= self.limit


class Context(NamedTuple):
    """What the loads need to know."""

    options: argparse.Namespace
    folder: Path
    repository: Path
    peer_repository: Path
    run_dir: str
    """Of the running naiad; empty until it runs."""


Workload = tuple[list[Load], list[Bar]]


def context_of(options: argparse.Namespace, folder: Path) -> Context:
    """The repositories of both sides, made in `folder`."""
    peers = folder / "peer_repository"
    shutil.copytree(HERE / "peers" / "repository", peers)
    shutil.rmtree(peers / "vad")
    ours = folder / "repository"
    for name in OUR_MODELS:
        shutil.copytree(HERE.parent / "model_repository" / name, ours / name)
    return Context(options, folder, ours, peers, "")


def native_client(in_flight: int) -> Callable[[Context], Workload]:
    """The native client on FP32 [1,16] identity against Triton's HTTP and gRPC.

    Twice: against the least model there is (max_batch_size 0), and against the better of that and
    one with Triton's dynamic batcher, which naiad's own model has as well.
    """

    def workload(context: Context) -> Workload:
        ours = f"naiad Client, {in_flight} in flight"
        loads = [_native(context, ours, "identity", in_flight)]
        for model in PEER_MODELS:
            loads.append(_wrk(context, model, in_flight))
            loads.append(_perf_analyzer(context, "grpc", model, in_flight))
        plain = tuple([load.name for load in loads[1:3]])
        every = tuple([load.name for load in loads[1:]])
        if in_flight == 1:
            return loads, [Bar("p50 at 1 in flight", ours, every, True, 1.2)]
        title = f"requests per second at {in_flight} in flight, the peer"
        return loads, [
            Bar(f"{title} without a batcher", ours, plain, False, 3.0),
            Bar(f"{title} with and without", ours, every, False, 3.0),
        ]

    return workload


def python_service(in_flight: int) -> Callable[[Context], Workload]:
    """From a Python service: AsyncClient against tritonclient.grpc.aio."""

    def workload(context: Context) -> Workload:
        ours = f"naiad AsyncClient, {in_flight} in flight"
        loads = [
            _native(context, ours, "identity", in_flight, client="async", reads=True),
            _grpc_aio(context, "identity", in_flight),
            _grpc_aio(context, "identity_batched", in_flight),
        ]
        theirs = tuple(load.name for load in loads[1:])
        if in_flight != 1:
            title = f"requests per second at {in_flight} in flight, from Python"
            return loads, [Bar(title, ours, theirs, False, 4.0)]
        loads.append(_wrk(context, "identity", 1))
        return loads, [
            Bar("p50 at 1 in flight, from Python", ours, theirs, True, 0.6),
            Bar("p50 at 1 in flight, against HTTP from C", ours, (loads[-1].name,), True, 1.2),
        ]

    return workload


def large_tensors(context: Context) -> Workload:
    """602,112 bytes each way, 4 in flight, both sides through shared memory."""
    size = int(np.prod(native.SHAPES["identbig"])) * 4
    ours = "naiad Client, 4 in flight"
    loads = [_native(context, ours, "identbig", 4)]
    loads += [_perf_analyzer(context, way, "identbig", 4, size) for way in ("http", "grpc")]
    theirs = tuple(load.name for load in loads[1:])
    return loads, [Bar("requests of 602,112 bytes per second", ours, theirs, False, 2.0)]


WORKLOADS: Final[dict[str, Callable[[Context], Workload]]] = {
    "native-64": native_client(64),
    "native-16": native_client(16),
    "native-1": native_client(1),
    "python-16": python_service(16),
    "python-1": python_service(1),
    "large": large_tensors,
}


def _native(
    context: Context, name: str, model: str, in_flight: int, **how: Any
) -> Load:  # fmt: skip
    def run(seconds: float) -> Measured:
        return native.run(context.run_dir, model, in_flight, seconds, **how).measured

    return Load(name, run)


def _wrk(context: Context, model: str, in_flight: int) -> Load:
    options = context.options
    array = np.random.default_rng(1).random(native.SHAPES["identity"], dtype=np.float32)
    url = f"http://{options.triton_http}/v2/models/{model}/infer"
    body = foreign.binary_body(array)

    def run(seconds: float) -> Measured:
        return foreign.wrk(options.wrk, url, body, in_flight, seconds, context.folder)

    return Load(f"triton HTTP, wrk, {model}", run)


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
