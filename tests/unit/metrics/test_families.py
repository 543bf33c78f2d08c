"""The table of metrics: Triton's names to the letter, sound labels, and docs that show the same."""

from __future__ import annotations

import re
from pathlib import Path

from naiad.metrics.families import FAMILIES, Kind

ROOT = Path(__file__).resolve().parents[3]
TRITON = {
    "nv_inference_request_success": ("counter", {"model", "version"}),
    "nv_inference_request_failure": ("counter", {"model", "version", "reason"}),
    "nv_inference_count": ("counter", {"model", "version"}),
    "nv_inference_exec_count": ("counter", {"model", "version"}),
    "nv_inference_request_duration_us": ("counter", {"model", "version"}),
    "nv_inference_queue_duration_us": ("counter", {"model", "version"}),
    "nv_inference_compute_input_duration_us": ("counter", {"model", "version"}),
    "nv_inference_compute_infer_duration_us": ("counter", {"model", "version"}),
    "nv_inference_compute_output_duration_us": ("counter", {"model", "version"}),
    "nv_inference_pending_request_count": ("gauge", {"model", "version"}),
    "nv_model_load_duration_secs": ("gauge", {"model", "version"}),
    "nv_cpu_utilization": ("gauge", set()),
    "nv_cpu_memory_total_bytes": ("gauge", set()),
    "nv_cpu_memory_used_bytes": ("gauge", set()),
    "nv_gpu_utilization": ("gauge", {"gpu_uuid"}),
    "nv_gpu_memory_total_bytes": ("gauge", {"gpu_uuid"}),
    "nv_gpu_memory_used_bytes": ("gauge", {"gpu_uuid"}),
    "nv_gpu_power_usage": ("gauge", {"gpu_uuid"}),
    "nv_gpu_power_limit": ("gauge", {"gpu_uuid"}),
    "nv_energy_consumption": ("counter", {"gpu_uuid"}),
}


def test_names_and_labels_are_tritons() -> None:
    ours = {one.name: one for one in FAMILIES if one.name.startswith("nv_")}
    assert {name: (str(one.kind), set(one.labels)) for name, one in ours.items()} == TRITON


def test_our_own_follow_the_conventions_of_prometheus() -> None:
    for one in FAMILIES:
        if one.name.startswith("nv_"):
            continue
        assert re.fullmatch(r"naiad_[a-z_]+", one.name), one
        assert one.name.endswith("_total") == (one.kind is Kind.COUNTER), one


def test_names_are_unique_and_labels_in_order() -> None:
    assert len({one.name for one in FAMILIES}) == len(FAMILIES) > 40
    for one in FAMILIES:
        assert list(one.labels) == sorted(one.labels), one
        assert "\n" not in one.help, one
        assert "\\" not in one.help, one


def test_the_document_shows_every_metric_and_no_other() -> None:
    text = (ROOT / "docs" / "metrics.md").read_text()
    rows = re.findall(
        r"^\| `((?:nv|naiad)_\w+)` \| (\w+) \| (.*?) \| (.*?) \| (.*) \|$", text, re.M
    )
    expected = [
        (
            one.name,
            str(one.kind),
            ", ".join(f"`{label}`" for label in one.labels) or "–",
            one.unit,
            one.help,
        )
        for one in FAMILIES
    ]
    assert rows == expected
