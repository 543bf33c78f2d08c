"""naiad's HTTP and gRPC beside those of the peers: the same generators, models and bodies.

All sides run the peers' model.py. The bars are on the model with the dynamic batcher, as one would
serve it, against Triton with the least model there is (max_batch_size 0); beside them, for
information, the same least model on naiad and the batcher on Triton.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from benchmarks import foreign, vad
from benchmarks.closed_loop import Measured
from benchmarks.peer_servers import Mosec
from benchmarks.questions import QUESTIONS
from benchmarks.workloads import ALONE, BIG_ALONE, Bar, Context, Load, Workload

from naiad.testing.server import serve

BATCHED: Final = "identity_batched"


def http(in_flight: int) -> Callable[[Context], Workload]:
    """FP32 [1,16] over HTTP with binary tensors."""

    def workload(context: Context) -> Workload:
        mosec = _mosec(context)
        question = QUESTIONS["identity"]()
        body, raw = foreign.binary_body(question.expected), foreign.raw_body(question.expected)
        triton = context.options.triton_http
        loads = [
            _wrk(context, "naiad HTTP", _v2(context.http, BATCHED), body, in_flight),
            _wrk(context, "naiad HTTP, no batches", _v2(context.http, ALONE), body, in_flight),
            _wrk(context, "triton HTTP", _v2(triton, "identity"), body, in_flight),
            _wrk(context, "triton HTTP, batches", _v2(triton, BATCHED), body, in_flight),
            _wrk(context, "mosec HTTP", f"http://{mosec}/identity", raw, in_flight),
        ]
        ours, alone, plain, batched, other = [load.name for load in loads]
        if in_flight == 1:
            title = "p50 over HTTP at 1 in flight"
            bars = [
                Bar(f"{title}, against Triton", alone, (plain,), True, 1.3),
                Bar(f"{title}, against mosec", alone, (other,), True, None),
                Bar(f"{title}, model with batcher", ours, (plain,), True, None),
            ]
            return Workload(loads, bars)
        title = f"requests per second over HTTP at {in_flight} in flight"
        limit = 1.5 if in_flight < 64 else 2.0
        bars = [
            Bar(f"{title}, against Triton", ours, (plain,), False, limit),
            Bar(f"{title}, against mosec", ours, (other,), False, 1.2),
            Bar(f"{title}, no batches on either side", alone, (plain,), False, None),
            Bar(f"{title}, batches on both sides", ours, (batched,), False, None),
        ]
        return Workload(loads, bars)

    return workload


def http_large(context: Context) -> Workload:
    """602,112 bytes each way over HTTP, 4 in flight."""
    mosec = _mosec(context)
    question = QUESTIONS["identbig"]()
    body, raw = foreign.binary_body(question.expected), foreign.raw_body(question.expected)
    triton = context.options.triton_http
    loads = [
        _wrk(context, "naiad HTTP, 600 KB", _v2(context.http, BIG_ALONE), body, 4),
        _wrk(context, "triton HTTP, 600 KB", _v2(triton, "identbig"), body, 4),
        _wrk(context, "mosec HTTP, 600 KB", f"http://{mosec}/identbig", raw, 4),
    ]
    title = "requests of 602,112 bytes per second over HTTP at 4 in flight"
    bars = [
        Bar(f"{title}, against Triton", loads[0].name, (loads[1].name,), False, 1.0),
        Bar(f"{title}, against mosec", loads[0].name, (loads[2].name,), False, None),
    ]
    return Workload(loads, bars)


def shared_memory(context: Context) -> Workload:
    """602,112 bytes each way in system shared memory, through perf_analyzer, 4 in flight."""
    expected: Any = QUESTIONS["identbig"]().expected
    size = expected.nbytes
    options = context.options
    loads = []
    for way, ours, theirs in (
        ("http", context.http, options.triton_http),
        ("grpc", context.grpc, options.triton_grpc),
    ):
        for who, address, model in (("naiad", ours, BIG_ALONE), ("triton", theirs, "identbig")):
            name = f"{who} {way}, shared memory"
            loads.append(_perf_analyzer(context, name, way, address, model, 4, shared_bytes=size))
    title = "requests of 602,112 bytes per second in shared memory"
    bars = [
        Bar(f"{title}, over HTTP", loads[0].name, (loads[1].name,), False, 1.5),
        Bar(f"{title}, over gRPC", loads[2].name, (loads[3].name,), False, 1.5),
    ]
    return Workload(loads, bars)


def http_vad(context: Context) -> Workload:
    """The speech detector over HTTP, 16 in flight, batches of 8 within 1 ms, one instance each."""
    mosec = _mosec(context)
    urls = {
        "naiad": _v2(context.http, "vad"),
        "triton": _v2(context.options.triton_http, "vad"),
        "mosec": f"http://{mosec}/vad",
    }
    vad.require_right_answers(context.run_dir, urls, context.folder)
    frame = QUESTIONS["vad"]().inputs["INPUT0"]
    body, raw = foreign.binary_body(frame), foreign.raw_body(frame)
    loads = [
        _wrk(context, f"{who} HTTP, vad", url, raw if who == "mosec" else body, 16)
        for who, url in urls.items()
    ]
    names = [load.name for load in loads]
    title = "frames of speech per second over HTTP at 16 in flight"
    return Workload(loads, [Bar(title, names[0], tuple(names[1:]), False, 1.2)])


def grpc(in_flight: int) -> Callable[[Context], Workload]:
    """FP32 [1,16] over gRPC, unary and streaming, with one and two gateway processes."""

    def workload(context: Context) -> Workload:
        two = context.stack.enter_context(
            serve(
                context.repository,
                arguments=["--spares", "0", "--grpc-port", "0", "--gateways", "2"],
            )
        )
        loads = []
        bars = []
        for kind, is_stream in (("unary", False), ("streaming", True)):
            names = []
            for who, address, model in (
                ("naiad", context.grpc, BATCHED),
                ("naiad, two gateways", two.grpc_target, BATCHED),
                ("naiad, no batches", context.grpc, ALONE),
                ("triton", context.options.triton_grpc, "identity"),
            ):
                name = f"{who}, gRPC {kind}"
                names.append(name)
                load = _perf_analyzer(
                    context, name, "grpc", address, model, in_flight, streaming=is_stream
                )
                loads.append(load)
            title = f"requests per second over gRPC, {kind}, at {in_flight} in flight"
            bars.append(Bar(title, names[0], (names[3],), False, 0.8))
            bars.append(Bar(f"{title}, two gateways", names[1], (names[3],), False, 0.8))
            bars.append(Bar(f"{title}, no batches", names[2], (names[3],), False, None))
        return Workload(loads, bars)

    return workload


WORKLOADS: Final[dict[str, Callable[[Context], Workload]]] = {
    "http-64": http(64),
    "http-16": http(16),
    "http-1": http(1),
    "http-large": http_large,
    "http-vad": http_vad,
    "shared-memory": shared_memory,
    "grpc-16": grpc(16),
}


def _mosec(context: Context) -> str:
    """HOST:PORT of mosec, started once."""
    options = context.options
    marker = Path(context.folder / "mosec.log")
    if not marker.exists():
        context.stack.enter_context(Mosec(options, context.folder))
    return str(options.mosec_http)


def _v2(address: str, model: str) -> str:
    return f"http://{address}/v2/models/{model}/infer"


def _wrk(context: Context, name: str, url: str, body: foreign.Body, in_flight: int) -> Load:
    def run(seconds: float) -> Measured:
        return foreign.wrk(context.options.wrk, url, body, in_flight, seconds, context.folder)

    return Load(f"{name}, {in_flight} in flight", run)


def _perf_analyzer(
    context: Context, name: str, protocol: str, address: str, model: str, in_flight: int, **how: Any
) -> Load:
    program = context.options.perf_analyzer
    is_batch = model == BATCHED

    def run(seconds: float) -> Measured:
        return foreign.perf_analyzer(
            program, protocol, address, model, in_flight, seconds, context.folder,
            batch=is_batch, **how,
        )  # fmt: skip

    return Load(name, run)
