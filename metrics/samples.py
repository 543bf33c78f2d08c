"""The broker's raw counters (operation `counters`) as samples on a page. Pure.

Owns what is computed from them: Triton's failure reasons from codes, batch sizes from what their
executions took, seconds and microseconds from nanoseconds.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from naiad.metrics import families as f
from naiad.metrics.families import Family
from naiad.metrics.page import Page, labels_of
from naiad.metrics.saturation import Busy, Saturation
from naiad.protocol.errors import Code

Json = dict[str, Any]

FAILURE_REASONS: Final = ("REJECTED", "CANCELED", "BACKEND", "OTHER")
"""Triton's; each is there from the beginning, at 0."""
REASON_OF_CODE: Final[Mapping[str, str]] = {
    Code.QUEUE_FULL: "REJECTED",
    Code.TIMEOUT: "REJECTED",
    Code.CANCELLED: "CANCELED",
    Code.MODEL_ERROR: "BACKEND",
    Code.MODEL_OUTPUT_INVALID: "BACKEND",
    Code.WORKER_DIED: "BACKEND",
    Code.POISON_REQUEST: "BACKEND",
}
ROW_BOUNDS: Final = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
"""Of the histogram of batch sizes."""
ROWS_EXACT_MAX: Final = 32
"""Batch sizes that are told apart one by one."""
_ROW_TEXTS: Final = tuple(str(one) for one in ROW_BOUNDS)
_COUNTERS: Final = (
    (f.POISON_REQUESTS, "poison_requests"),
    (f.JOINED_REQUESTS, "joined_requests"),
    (f.LATE_RESULTS, "late_results"),
    (f.PROTOCOL_ERRORS, "protocol_errors"),
    (f.INTERNAL_FAULTS, "internal_faults"),
    (f.DROPPED_SESSIONS, "dropped_sessions"),
    (f.INLINE_FALLBACKS, "inline_fallbacks"),
)


class Process(NamedTuple):
    """What a process has used so far."""

    cpu_seconds: float
    resident_bytes: int


class GpuSample(NamedTuple):
    """Figures of one GPU, None for what it does not have; `process_bytes` by pid."""

    uuid: str
    utilization: float | None
    memory_total_bytes: int | None
    memory_used_bytes: int | None
    power_watts: float | None
    power_limit_watts: float | None
    energy_joules: float | None
    process_bytes: Mapping[int, int]


def add_gpus(page: Page, gpus: Iterable[GpuSample]) -> None:
    """Triton's figures of GPUs."""
    for gpu in gpus:
        labels = labels_of(f.GPU_UTILIZATION.labels, gpu.uuid)
        for family, value in (
            (f.GPU_UTILIZATION, gpu.utilization),
            (f.GPU_MEMORY_TOTAL, gpu.memory_total_bytes),
            (f.GPU_MEMORY_USED, gpu.memory_used_bytes),
            (f.GPU_POWER_USAGE, gpu.power_watts),
            (f.GPU_POWER_LIMIT, gpu.power_limit_watts),
            (f.ENERGY_CONSUMPTION, gpu.energy_joules),
        ):
            if value is not None:
                page.add(family, labels, value)


def add_gpu_memory(page: Page, row: Json, gpus: Iterable[GpuSample]) -> None:
    """What the instances of one version have of GPUs' memory, as far as the driver tells."""
    if row["gpu_bytes"]:
        labels = labels_of(f.INSTANCE_GPU_NEED.labels, row["name"], str(row["version"]))
        page.add(f.INSTANCE_GPU_NEED, labels, row["gpu_bytes"])
    family = f.WORKER_GPU_MEMORY
    for gpu in gpus:
        for one in row["instances"]:
            used = gpu.process_bytes.get(one["pid"])
            if used is not None:
                names = (gpu.uuid, one["name"], row["name"], str(row["version"]))
                page.add(family, labels_of(family.labels, *names), used)


def add_server(page: Page, server: Json) -> None:
    """The server's own figures."""
    info = f.SERVER_INFO
    page.add(info, labels_of(info.labels, server["name"], server["software"]), 1)
    page.add(f.SERVER_READY, "", int(server["ready"]))
    page.add(f.SERVER_START, "", server["started"])
    page.add(f.SESSIONS, "", server["sessions"])
    page.add(f.WORKERS, "", server["slots"])
    page.add(f.SPARE_WORKERS, "", server["spares"])
    _each(page, f.WAITING_INSTANCES, server["waiting_instances"])
    counters = server["counters"]
    _each(page, f.REFUSED_REQUESTS, counters["refused_requests"])
    _each(page, f.REEXECUTIONS, counters["reexecutions"])
    for family, key in _COUNTERS:
        page.add(family, "", counters[key])


def _each(page: Page, family: Family, values: Mapping[str, int]) -> None:
    for label, value in sorted(values.items()):
        page.add(family, labels_of(family.labels, label), value)


def busy_of(rows: Iterable[Json]) -> dict[int, Busy]:
    """What Saturation observes: every instance of these models."""
    return {
        one["id"]: Busy(one["busy_ns"] + one["executing_ns"], one["executing_ns"] > 0)
        for row in rows
        for one in row["instances"]
    }


def bounds_as_text(bounds_ns: Sequence[int]) -> tuple[str, ...]:
    """Upper bounds in seconds, as labels."""
    return tuple(f"{ns / 1e9:g}" for ns in bounds_ns)


def add_model(page: Page, row: Json, bounds: Sequence[str], saturation: Saturation) -> None:
    """One version of a model. `bounds` as bounds_as_text has them."""
    labels = labels_of(f.REQUEST_SUCCESS.labels, row["name"], str(row["version"]))
    _add_counts(page, row, labels)
    _add_state(page, row, labels, saturation)
    _add_times(page, row, labels, bounds)
    _add_reasons(page, row)
    _add_batches(page, row, labels)


def _add_counts(page: Page, row: Json, labels: str) -> None:
    add = page.add
    add(f.REQUEST_SUCCESS, labels, row["success_count"])
    add(f.INFERENCE_COUNT, labels, row["inference_count"])
    add(f.EXEC_COUNT, labels, row["execution_count"])
    add(f.REQUEST_DURATION, labels, row["success_ns"] // 1_000)
    add(f.QUEUE_DURATION, labels, row["queue_ns"] // 1_000)
    add(f.COMPUTE_INPUT_DURATION, labels, row["compute_input_ns"] // 1_000)
    add(f.COMPUTE_INFER_DURATION, labels, row["compute_infer_ns"] // 1_000)
    add(f.COMPUTE_OUTPUT_DURATION, labels, row["compute_output_ns"] // 1_000)


def _add_state(page: Page, row: Json, labels: str, saturation: Saturation) -> None:
    add = page.add
    serving = [one["id"] for one in row["instances"] if one["serves"]]
    pending, rows_max = row["pending"], row["rows_max"]
    add(f.PENDING_REQUESTS, labels, pending)
    add(f.LOAD_DURATION, labels, row["load_ns"] / 1e9)
    full = saturation.of(serving, pending=pending, rows_max=rows_max)
    add(f.SATURATION, labels, round(full, 6))
    add(f.MODEL_READY, labels, int(row["ready"]))
    add(f.INSTANCES, labels, len(row["instances"]))
    add(f.INSTANCES_READY, labels, len(serving))
    add(f.EXECUTING_REQUESTS, labels, row["executing"])
    add(f.OLDEST_PENDING, labels, row["oldest_pending_ns"] / 1e9)


def _add_times(page: Page, row: Json, labels: str, bounds: Sequence[str]) -> None:
    compute_ns = sum(sum(one[2:]) for one in row["batches"])
    for family, counts, total_ns in (
        (f.REQUEST_SECONDS, row["request_times"], row["success_ns"]),
        (f.QUEUE_SECONDS, row["queue_times"], row["queue_ns"]),
        (f.COMPUTE_SECONDS, row["compute_times"], compute_ns),
    ):
        page.add_histogram(family, labels, bounds, counts, total_ns / 1e9)


def _add_reasons(page: Page, row: Json) -> None:
    name, version = row["name"], str(row["version"])
    reasons = dict.fromkeys(FAILURE_REASONS, 0)
    for code, count in row["failures"].items():
        reasons[REASON_OF_CODE.get(code, "OTHER")] += count
    for family, counts in (
        (f.REQUEST_FAILURE, reasons),
        (f.BATCHES, row["batch_reasons"]),
        (f.WORKER_DEATHS, row["worker_deaths"]),
    ):
        for reason, count in counts.items():
            page.add(family, labels_of(family.labels, name, reason, version), count)
    codes = f.REQUEST_FAILURES
    for code, count in row["failures"].items():
        page.add(codes, labels_of(codes.labels, code, name, version), count)


def _add_batches(page: Page, row: Json, labels: str) -> None:
    counts = [0] * (len(ROW_BOUNDS) + 1)
    total_rows = 0
    by_size: dict[int, tuple[int, int]] = {}
    for rows, count, *times_ns in sorted(row["batches"]):
        counts[bisect_left(ROW_BOUNDS, rows)] += count
        total_rows += rows * count
        size = rows if rows <= ROWS_EXACT_MAX else 1 << (rows - 1).bit_length()
        known_count, known_ns = by_size.get(size, (0, 0))
        by_size[size] = (known_count + count, known_ns + sum(times_ns))
    page.add_histogram(f.BATCH_ROWS, labels, _ROW_TEXTS, counts, total_rows)
    for size, (count, time_ns) in by_size.items():
        sized = labels_of(f.EXECUTIONS_BY_ROWS.labels, row["name"], str(size), str(row["version"]))
        page.add(f.EXECUTIONS_BY_ROWS, sized, count)
        page.add(f.EXECUTION_SECONDS_BY_ROWS, sized, time_ns / 1e9)


def add_instances(page: Page, row: Json, processes: Mapping[int, Process]) -> None:
    """The instances of one version; `processes` are those that could be looked at."""
    for one in row["instances"]:
        labels = labels_of(f.INSTANCE_BUSY.labels, one["name"], row["name"], str(row["version"]))
        page.add(f.INSTANCE_BUSY, labels, one["busy_ns"] / 1e9)
        page.add(f.INSTANCE_RESTARTS, labels, one["restarts"])
        found = processes.get(one["pid"])
        if found is not None:
            page.add(f.WORKER_CPU, labels, found.cpu_seconds)
            page.add(f.WORKER_MEMORY, labels, found.resident_bytes)
