"""Clients' memory and the GPU, which reads and writes a registered segment by itself, and how fast.

That it is the GPU which reads, later, shows when bytes that are changed after the call arrive
changed; memory that is not registered is read before the call returns.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from statistics import median
from time import perf_counter
from typing import Any, Final

from gpu_checks import rows
from gpu_checks.gpu import Gpu, Segment, host_microseconds, segment
from gpu_checks.kernels import Kernels
from gpu_checks.rows import Row
from gpu_checks.steps import Options

PROOF_BYTES: Final = 4 << 20
BEHIND_US: Final = 50_000
"""How long the stream is kept busy before a copy whose call must return at once."""
CALL_US_MAX: Final = 10_000
RATE_BYTES: Final = 64 << 20
RATE_ROUNDS: Final = 7
COPIES_PER_ROUND: Final = 4
RATE_SHARE_MIN: Final = 0.9
PIECES: Final = 16
"""Copies that a batch of so many requests is gathered with."""
OLD, NEW = 0x11, 0x22


def prove(options: Options) -> Iterator[Row]:
    gpu = Gpu()
    kernels = Kernels(gpu)
    stream = gpu.stream()
    kernels.load(stream)
    device = gpu.malloc(PROOF_BYTES)
    yield rows.holds("kernels", True, kernels.origin)
    with segment(PROOF_BYTES) as ours, segment(PROOF_BYTES) as other:
        begin = perf_counter()
        with gpu.registered(ours.address, PROOF_BYTES):
            took = host_microseconds(begin)
            yield rows.told("registering 4 MiB", took, "us")
            yield from _read_later(gpu, kernels, stream, device, ours)
            yield from _written(gpu, kernels, stream, device, ours)
        begin = perf_counter()
        with gpu.registered(ours.address, PROOF_BYTES):
            pass
        yield rows.told("and again, and back", host_microseconds(begin), "us")
        yield _not_registered(gpu, kernels, stream, device, other)
    gpu.free(device)


def _read_later(
    gpu: Gpu, kernels: Kernels, stream: Any, device: int, ours: Segment
) -> Iterator[Row]:
    seen, took = _changed_after_the_call(gpu, kernels, stream, device, ours)
    yield rows.at_most("a copy in from a segment returns", took, CALL_US_MAX, "us")
    what = "bytes changed by another mapping after the call arrive changed"
    yield rows.holds(what, seen == {NEW}, f"{seen}", bar=f"{{{NEW}}}", reason="the CPU copied them")


def _changed_after_the_call(
    gpu: Gpu, kernels: Kernels, stream: Any, device: int, memory: Segment
) -> tuple[set[int], float]:
    """(byte values that came to the device, microseconds of the call), behind a busy stream."""
    another = Segment(PROOF_BYTES, memory.name)
    ctypes.memset(memory.address, OLD, PROOF_BYTES)
    kernels.busy(stream, BEHIND_US)
    begin = perf_counter()
    gpu.to_device(device, memory.address, PROOF_BYTES, stream)
    took = host_microseconds(begin)
    ctypes.memset(another.address, NEW, PROOF_BYTES)
    gpu.finish(stream)
    return _values_on(gpu, stream, device), took


def _values_on(gpu: Gpu, stream: Any, device: int) -> set[int]:
    with gpu.pinned(PROOF_BYTES) as host:
        gpu.to_host(host, device, PROOF_BYTES, stream)
        gpu.finish(stream)
        return set(ctypes.string_at(host, PROOF_BYTES))


def _written(gpu: Gpu, kernels: Kernels, stream: Any, device: int, ours: Segment) -> Iterator[Row]:
    another = Segment(PROOF_BYTES, ours.name)
    ctypes.memset(ours.address, OLD, PROOF_BYTES)
    gpu.to_device(device, ours.address, PROOF_BYTES, stream)
    gpu.finish(stream)
    ctypes.memset(ours.address, 0, PROOF_BYTES)
    kernels.busy(stream, BEHIND_US)
    begin = perf_counter()
    gpu.to_host(ours.address, device, PROOF_BYTES, stream)
    took = host_microseconds(begin)
    gpu.finish(stream)
    seen = set(ctypes.string_at(another.address, PROOF_BYTES))
    yield rows.at_most("a copy out to a segment returns", took, CALL_US_MAX, "us")
    what = "another mapping of the segment sees what the GPU wrote"
    yield rows.holds(what, seen == {OLD}, f"{seen}", bar=f"{{{OLD}}}", reason="it sees other bytes")


def _not_registered(gpu: Gpu, kernels: Kernels, stream: Any, device: int, other: Segment) -> Row:
    """The control: without registration the bytes are those at the time of the call."""
    seen, _ = _changed_after_the_call(gpu, kernels, stream, device, other)
    what = "unregistered, the bytes are taken at the call (control)"
    if seen == {NEW}:
        return rows.skipped(what, "this GPU reads ordinary memory by itself, so registered too")
    return rows.holds(what, seen == {OLD}, f"{seen}", bar=f"{{{OLD}}}", reason="some of each")


def measure(options: Options) -> Iterator[Row]:
    gpu = Gpu()
    stream = gpu.stream()
    device = gpu.malloc(RATE_BYTES)
    with gpu.pinned(RATE_BYTES) as plain, segment(RATE_BYTES) as ours:
        ctypes.memset(plain, 1, RATE_BYTES)
        ctypes.memset(ours.address, 2, RATE_BYTES)
        pageable_in = _rate(gpu, stream, device, ours.address, 1, is_in=True)
        pageable_out = _rate(gpu, stream, device, ours.address, 1, is_in=False)
        with gpu.registered(ours.address, RATE_BYTES):
            for is_in, pageable in ((True, pageable_in), (False, pageable_out)):
                yield from _compared(gpu, stream, device, plain, ours.address, is_in, pageable)
    gpu.free(device)


def _compared(
    gpu: Gpu, stream: Any, device: int, plain: int, ours: int, is_in: bool, pageable: float
) -> Iterator[Row]:
    """Rounds in turn, so that a slow moment is everybody's."""
    way = "H2D" if is_in else "D2H"
    found: dict[str, list[float]] = {"plain": [], "segment": [], "pieces": []}
    for _ in range(RATE_ROUNDS):
        found["plain"].append(_rate(gpu, stream, device, plain, 1, is_in=is_in))
        found["segment"].append(_rate(gpu, stream, device, ours, 1, is_in=is_in))
        found["pieces"].append(_rate(gpu, stream, device, ours, PIECES, is_in=is_in))
    rate = {name: median(rates) for name, rates in found.items()}
    yield rows.told(f"{way}, pinned memory, 64 MiB", rate["plain"], "GB/s")
    yield rows.told(f"{way}, a segment that is not registered", pageable, "GB/s")
    for name, what in (("segment", "a segment"), ("pieces", f"a segment in {PIECES} pieces")):
        share = rate[name] / rate["plain"]
        note = f"{rate[name]:.3g} GB/s"
        yield rows.at_least(f"{way}, {what}, of pinned", share, RATE_SHARE_MIN, "x", note)


def _rate(gpu: Gpu, stream: Any, device: int, host: int, pieces: int, *, is_in: bool) -> float:
    """GB/s, by the device's clock."""
    size = RATE_BYTES // pieces
    with gpu.timed(stream) as took:
        for _ in range(COPIES_PER_ROUND):
            for offset in range(0, RATE_BYTES, size):
                if is_in:
                    gpu.to_device(device + offset, host + offset, size, stream)
                else:
                    gpu.to_host(host + offset, device + offset, size, stream)
    return COPIES_PER_ROUND * RATE_BYTES / (took[0] * 1e6)
