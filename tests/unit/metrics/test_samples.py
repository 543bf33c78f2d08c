"""From raw counters to samples: every value computed by hand."""

from __future__ import annotations

from typing import Any

from naiad.metrics import samples
from naiad.metrics.page import Page
from naiad.metrics.saturation import Saturation
from naiad.protocol.errors import Code
from support.exposition import Series, parsed

MODEL = (("model", "m"), ("version", "3"))


def row(**fields: Any) -> dict[str, Any]:
    return {
        "name": "m", "version": 3, "generation": 1, "state": "READY", "ready": True,
        "rows_max": 4, "pending": 0, "oldest_pending_ns": 0, "executing": 0, "load_ns": 0,
        "success_count": 0, "success_ns": 0, "failures": {}, "inference_count": 0,
        "execution_count": 0, "queue_ns": 0, "compute_input_ns": 0, "compute_infer_ns": 0,
        "compute_output_ns": 0, "request_times": [0, 0, 0], "queue_times": [0, 0, 0],
        "compute_times": [0, 0, 0], "batches": [], "batch_reasons": {}, "worker_deaths": {},
        "instances": [], **fields,
    }  # fmt: skip


def instance(number: int, **fields: Any) -> dict[str, Any]:
    return {
        "name": f"m_0_{number}", "id": number, "serves": True, "pid": 40 + number, "restarts": 0,
        "busy_ns": 0, "executing_ns": 0, **fields,
    }  # fmt: skip


def series_of(page: Page) -> Series:
    return parsed(page.text())


def of_model(given: dict[str, Any]) -> Series:
    page = Page()
    saturation = Saturation()
    saturation.observe(1, samples.busy_of([given]))
    samples.add_model(page, given, samples.bounds_as_text((200_000, 10_000_000_000)), saturation)
    return series_of(page)


def test_counts_and_times() -> None:
    found = of_model(
        row(
            success_count=5, inference_count=9, execution_count=2, success_ns=7_000_999,
            queue_ns=1_500, compute_input_ns=2_000, compute_infer_ns=3_000_000,
            compute_output_ns=999, load_ns=2_500_000_000, pending=6, executing=3,
            oldest_pending_ns=1_250_000_000,
        )
    )  # fmt: skip
    expected = {
        "nv_inference_request_success": 5,
        "nv_inference_count": 9,
        "nv_inference_exec_count": 2,
        "nv_inference_request_duration_us": 7_000,
        "nv_inference_queue_duration_us": 1,
        "nv_inference_compute_input_duration_us": 2,
        "nv_inference_compute_infer_duration_us": 3_000,
        "nv_inference_compute_output_duration_us": 0,
        "nv_inference_pending_request_count": 6,
        "nv_model_load_duration_secs": 2.5,
        "naiad_executing_requests": 3,
        "naiad_oldest_pending_seconds": 1.25,
        "naiad_model_ready": 1,
        "naiad_saturation": 1.5,  # no instance: 6 waiting requests in batches of 4
    }
    assert {name: found[name, MODEL] for name in expected} == expected


def test_failures_by_tritons_reasons_and_by_our_codes() -> None:
    codes = {
        Code.QUEUE_FULL: 2, Code.TIMEOUT: 3, Code.CANCELLED: 4, Code.MODEL_ERROR: 5,
        Code.WORKER_DIED: 6, Code.POISON_REQUEST: 7, Code.NOT_READY: 8, Code.REGION_TRUNCATED: 9,
    }  # fmt: skip
    found = of_model(row(failures={str(code): count for code, count in codes.items()}))

    def reason(name: str) -> float:
        labels = tuple(sorted((*MODEL, ("reason", name))))
        return found["nv_inference_request_failure", labels]

    assert [reason(one) for one in ("REJECTED", "CANCELED", "BACKEND", "OTHER")] == [5, 4, 18, 17]
    for code, count in codes.items():
        assert found["naiad_request_failures_total", (("code", code), *MODEL)] == count


def test_all_four_reasons_are_there_before_anything_failed() -> None:
    found = of_model(row())
    reasons = {
        dict(labels)["reason"]: value
        for (name, labels), value in found.items()
        if name == "nv_inference_request_failure"
    }
    assert reasons == {"REJECTED": 0, "CANCELED": 0, "BACKEND": 0, "OTHER": 0}


def test_histograms_of_times_add_up() -> None:
    found = of_model(
        row(
            request_times=[1, 2, 3], success_ns=5_000_000_000, queue_times=[6, 0, 0],
            queue_ns=1_000_000, compute_times=[0, 4, 0], batches=[[2, 4, 1_000, 2_000, 3_000]],
        )
    )  # fmt: skip

    def bucket(name: str, bound: str) -> float:
        return found[f"{name}_bucket", (("le", bound), *MODEL)]

    request = "naiad_request_seconds"
    assert [bucket(request, bound) for bound in ("0.0002", "10", "+Inf")] == [1, 3, 6]
    assert found[f"{request}_sum", MODEL] == 5.0
    assert found[f"{request}_count", MODEL] == 6
    assert found["naiad_queue_seconds_sum", MODEL] == 0.001
    assert found["naiad_compute_seconds_count", MODEL] == 4
    assert found["naiad_compute_seconds_sum", MODEL] == 6_000 / 1e9


def test_batch_sizes_and_what_they_took() -> None:
    second = 1_000_000_000
    batches = [[1, 10, 0, second, 0], [3, 2, second, second, second], [32, 1, 0, 0, 5 * second],
               [33, 1, 0, second, 0], [64, 1, 0, second, 0], [2000, 1, 0, second, 0]]  # fmt: skip
    found = of_model(row(batches=batches))
    rows = {
        dict(labels)["le"]: value
        for (name, labels), value in found.items()
        if name == "naiad_batch_rows_bucket"
    }
    assert (rows["1"], rows["2"], rows["4"], rows["32"], rows["64"]) == (10, 10, 12, 13, 15)
    assert (rows["1024"], rows["+Inf"]) == (15, 16)
    assert found["naiad_batch_rows_sum", MODEL] == 10 + 6 + 32 + 33 + 64 + 2000

    def sized(name: str) -> dict[str, float]:
        return {dict(labels)["rows"]: v for (one, labels), v in found.items() if one == name}

    counts = {"1": 10, "3": 2, "32": 1, "64": 2, "2048": 1}
    assert sized("naiad_executions_total") == counts
    assert sized("naiad_execution_seconds_total") == {"1": 1, "3": 3, "32": 5, "64": 2, "2048": 1}


def test_reasons_of_batches_and_deaths() -> None:
    found = of_model(row(batch_reasons={"full": 3, "delay": 1}, worker_deaths={"SIGSEGV": 2}))

    def of(name: str, reason: str) -> float:
        return found[name, tuple(sorted((*MODEL, ("reason", reason))))]

    assert of("naiad_batches_total", "full") == 3
    assert of("naiad_batches_total", "delay") == 1
    assert of("naiad_worker_deaths_total", "SIGSEGV") == 2


def test_instances_with_and_without_a_process() -> None:
    page = Page()
    given = row(
        instances=[
            instance(0, busy_ns=1_500_000_000, restarts=2),
            instance(1, pid=0, serves=False),
        ]
    )
    samples.add_instances(page, given, {40: samples.Process(12.5, 4096)})
    found = series_of(page)
    first, second = ((("instance", f"m_0_{number}"), *MODEL) for number in (0, 1))
    assert found["naiad_instance_busy_seconds_total", first] == 1.5
    assert found["naiad_instance_restarts_total", first] == 2
    assert found["naiad_worker_cpu_seconds_total", first] == 12.5
    assert found["naiad_worker_resident_bytes", first] == 4096
    assert found["naiad_instance_busy_seconds_total", second] == 0
    assert ("naiad_worker_cpu_seconds_total", second) not in found


def test_instances_that_serve_and_saturation() -> None:
    found = of_model(
        row(
            pending=8,
            instances=[
                instance(0, executing_ns=5),
                instance(1),
                instance(2, serves=False, executing_ns=7),
            ],
        )
    )
    assert found["naiad_instances", MODEL] == 3
    assert found["naiad_instances_ready", MODEL] == 2
    assert found["naiad_saturation", MODEL] == 0.5 + 8 / (4 * 2)


def test_the_server() -> None:
    page = Page()
    counters = {
        "reexecutions": {"worker_died": 3}, "refused_requests": {"not_found": 5},
        "poison_requests": 1, "joined_requests": 2, "late_results": 4, "protocol_errors": 6,
        "dropped_sessions": 7, "inline_fallbacks": 8, "internal_faults": 9,
    }  # fmt: skip
    samples.add_server(
        page,
        {
            "name": 'say "hi"', "software": "1.2", "ready": False, "started": 1_700_000_000,
            "sessions": 9, "slots": 4, "spares": 1, "waiting_instances": {"cpu": 2, "gpu:x": 0},
            "counters": counters,
        },
    )  # fmt: skip
    found = series_of(page)
    assert found["naiad_server_info", (("name", 'say "hi"'), ("version", "1.2"))] == 1
    assert found["naiad_server_ready", ()] == 0
    assert found["naiad_broker_start_time_seconds", ()] == 1_700_000_000
    assert found["naiad_waiting_instances", (("device", "cpu"),)] == 2
    assert found["naiad_reexecutions_total", (("reason", "worker_died"),)] == 3
    assert found["naiad_refused_requests_total", (("code", "not_found"),)] == 5
    numbers = [
        found[f"naiad_{name}_total", ()]
        for name in (
            "poison_requests", "joined_requests", "late_results", "protocol_errors",
            "dropped_sessions", "inline_fallbacks", "internal_faults",
        )
    ]  # fmt: skip
    assert numbers == [1, 2, 4, 6, 7, 8, 9]
    assert (found["naiad_sessions", ()], found["naiad_workers", ()]) == (9, 4)
