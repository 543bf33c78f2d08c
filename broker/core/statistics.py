"""Counters of one model version and of the server, as Triton's statistics extension counts them.

Pure sums: nothing here asks a clock. Times are nanoseconds. What can be had from these sums later
(a histogram of batch sizes, say) is not counted a second time: every request pays for it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from typing import Any, Final

from naiad.broker.core.batcher import REASONS
from naiad.protocol.messages import Durations

Json = dict[str, Any]

TIME_BOUNDS_NS: Final = tuple(
    us * 1_000
    for us in (
        200, 500, 1_000, 2_000, 5_000, 10_000, 20_000, 50_000, 100_000, 200_000, 500_000,
        1_000_000, 2_000_000, 5_000_000, 10_000_000,
    )
)  # fmt: skip
"""The inclusive upper bounds of every histogram of times; one more bucket is for what is longer."""
REASONS_MAX: Final = 32
"""Reasons of deaths that are told apart: some quote what a dying process wrote."""
REASON_CHARS_MAX: Final = 200
OTHER_REASON: Final = "other"


class BatchSizeStatistics:
    """What executions of one batch size took."""

    def __init__(self) -> None:
        self.count = 0
        self.input_ns = 0
        self.infer_ns = 0
        self.output_ns = 0


class ModelStatistics:
    """Counts since this version was loaded.

    `inference_count` adds each request's rows, `execution_count` one per batch; each request of a
    batch is charged the batch's whole compute time, as in Triton.
    """

    def __init__(self) -> None:
        self.inference_count = 0
        self.execution_count = 0
        self.success_count = 0
        self.success_ns = 0
        self.fail_count = 0
        self.fail_ns = 0
        self.failures: Counter[str] = Counter()
        """Requests that were answered with an error, by its code; `fail_count` is their sum."""
        self.queue_ns = 0
        self.compute_input_ns = 0
        self.compute_infer_ns = 0
        self.compute_output_ns = 0
        self.last_inference_ms = 0
        self.batches: dict[int, BatchSizeStatistics] = {}
        self.batch_reasons = dict.fromkeys(REASONS, 0)
        """Executions by what closed their batch: not counted when it is sent, as it may come back
        and be closed anew. No Counter: that takes 0.5 µs to count one."""
        self.worker_deaths: Counter[str] = Counter()
        buckets = len(TIME_BOUNDS_NS) + 1
        self.request_times = [0] * buckets
        self.queue_times = [0] * buckets
        """Of successful requests: their sums are `success_ns` and `queue_ns`."""
        self.compute_times = [0] * buckets
        """Of executions: the sum is that of `batches`."""

    def failed(self, code: str, ns: int) -> None:
        """One request was answered with an error, so long after it came."""
        self.fail_count += 1
        self.fail_ns += ns
        self.failures[code] += 1

    def executed(self, rows: int, answered: int, durations: Durations, reason: str) -> None:
        """One execution of so many rows, with a result for so many requests."""
        input_ns, infer_ns, output_ns = durations
        self.execution_count += 1
        self.batch_reasons[reason] += 1
        self.compute_input_ns += input_ns * answered
        self.compute_infer_ns += infer_ns * answered
        self.compute_output_ns += output_ns * answered
        sized = self.batches.get(rows)
        if sized is None:
            sized = self.batches[rows] = BatchSizeStatistics()
        sized.count += 1
        sized.input_ns += input_ns
        sized.infer_ns += infer_ns
        sized.output_ns += output_ns
        self.compute_times[bisect_left(TIME_BOUNDS_NS, input_ns + infer_ns + output_ns)] += 1

    def to_json(self, name: str, version: int) -> Json:
        """One element of `model_stats`; field names are Triton's."""

        def leaf(count: int, ns: int) -> Json:
            return {"count": count, "ns": ns}

        done = self.success_count
        return {
            "name": name,
            "version": str(version),
            "last_inference": self.last_inference_ms,
            "inference_count": self.inference_count,
            "execution_count": self.execution_count,
            "inference_stats": {
                "success": leaf(done, self.success_ns),
                "fail": leaf(self.fail_count, self.fail_ns),
                "queue": leaf(done, self.queue_ns),
                "compute_input": leaf(done, self.compute_input_ns),
                "compute_infer": leaf(done, self.compute_infer_ns),
                "compute_output": leaf(done, self.compute_output_ns),
                "cache_hit": leaf(0, 0),
                "cache_miss": leaf(0, 0),
            },
            "response_stats": {},
            "batch_stats": [
                {
                    "batch_size": rows,
                    "compute_input": leaf(sized.count, sized.input_ns),
                    "compute_infer": leaf(sized.count, sized.infer_ns),
                    "compute_output": leaf(sized.count, sized.output_ns),
                }
                for rows, sized in sorted(self.batches.items())
            ],
            "memory_usage": [],
        }


def count_reason(counts: Counter[str], reason: str) -> None:
    """Count one; long reasons are cut, those beyond REASONS_MAX are counted together."""
    reason = reason[:REASON_CHARS_MAX]
    if reason not in counts and len(counts) >= REASONS_MAX:
        reason = OTHER_REASON
    counts[reason] += 1


class ServerCounters:
    """What makes the promises visible: re-executions by reason, late and dropped answers."""

    def __init__(self) -> None:
        self.reexecutions: Counter[str] = Counter()
        self.worker_deaths: Counter[str] = Counter()
        self.refused_requests: Counter[str] = Counter()
        """Answered with an error before they were queued, by its code."""
        self.poison_requests = 0
        self.late_results = 0
        self.joined_requests = 0
        self.early_batches = 0
        """Sent ahead, those included that came back or died with their worker."""
        self.protocol_errors = 0
        self.dropped_sessions = 0
        self.internal_faults = 0
        """Calls and requests that failed by a fault of the broker itself, each alone."""
        self.inline_fallbacks = 0
        """Outputs sent inline because there was no room in shared memory."""

    def to_json(self) -> Json:
        return {
            "reexecutions": dict(self.reexecutions),
            "worker_deaths": dict(self.worker_deaths),
            "refused_requests": dict(self.refused_requests),
            "poison_requests": self.poison_requests,
            "late_results": self.late_results,
            "joined_requests": self.joined_requests,
            "early_batches": self.early_batches,
            "protocol_errors": self.protocol_errors,
            "dropped_sessions": self.dropped_sessions,
            "internal_faults": self.internal_faults,
            "inline_fallbacks": self.inline_fallbacks,
        }
