"""The text format: exactly these bytes, and prometheus_client reads the same out of them."""

from __future__ import annotations

import math

from prometheus_client.parser import text_string_to_metric_families

from naiad.metrics import families as f
from naiad.metrics.page import Page, labels_of


def test_a_page_is_written_to_the_byte() -> None:
    page = Page()
    model = labels_of(f.REQUEST_SUCCESS.labels, "m", "1")
    page.add(f.CPU_UTILIZATION, "", 0.25)
    page.add(f.REQUEST_SUCCESS, model, 7)
    page.add_histogram(f.COMPUTE_SECONDS, model, ("0.1", "1"), (2, 0, 3), 9.5)
    assert page.text().decode() == (
        "# HELP nv_inference_request_success Requests answered with a result\n"
        "# TYPE nv_inference_request_success counter\n"
        'nv_inference_request_success{model="m",version="1"} 7\n'
        "# HELP nv_cpu_utilization Share of the machine's processor time in use since the last"
        " scrape\n"
        "# TYPE nv_cpu_utilization gauge\n"
        "nv_cpu_utilization 0.25\n"
        "# HELP naiad_compute_seconds Time of one execution in the worker: inputs, model and"
        " outputs\n"
        "# TYPE naiad_compute_seconds histogram\n"
        'naiad_compute_seconds_bucket{le="0.1",model="m",version="1"} 2\n'
        'naiad_compute_seconds_bucket{le="1",model="m",version="1"} 2\n'
        'naiad_compute_seconds_bucket{le="+Inf",model="m",version="1"} 5\n'
        'naiad_compute_seconds_sum{model="m",version="1"} 9.5\n'
        'naiad_compute_seconds_count{model="m",version="1"} 5\n'
    )


def test_odd_names_are_escaped_and_read_back() -> None:
    odd = ('quote"', "back\\slash", "two\nlines", "\\n is not a line", "ünï", 'a="b",c', "")
    page = Page()
    for name in odd:
        page.add(f.REQUEST_SUCCESS, labels_of(f.REQUEST_SUCCESS.labels, name, "1"), 1)
    (family,) = text_string_to_metric_families(page.text().decode())
    assert tuple(sample.labels["model"] for sample in family.samples) == odd


def test_prometheus_reads_the_types_and_values() -> None:
    page = Page()
    model = labels_of(("model", "version"), "m", "2")
    page.add(f.INFERENCE_COUNT, model, 2**60)
    page.add(f.LOAD_DURATION, model, 1e-07)
    page.add_histogram(f.BATCH_ROWS, model, ("1", "2"), (1, 2, 4), 31)
    found = {one.name: one for one in text_string_to_metric_families(page.text().decode())}
    assert found["nv_inference_count"].type == "counter"
    assert found["nv_inference_count"].samples[0].value == 2**60
    assert found["nv_model_load_duration_secs"].samples[0].value == 1e-07
    buckets = [
        (sample.labels["le"], sample.value)
        for sample in found["naiad_batch_rows"].samples
        if sample.name.endswith("_bucket")
    ]
    assert buckets == [("1", 1), ("2", 3), ("+Inf", 7)]
    assert math.inf in {float(bound) for bound, _ in buckets}


def test_an_empty_page_has_no_headings() -> None:
    assert Page().text() == b""
