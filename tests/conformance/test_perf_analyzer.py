"""NVIDIA's perf_analyzer, as its users run it: every door, every way of asking.

Each run must succeed, get answers, and show what the server itself says of its queue and its work:
it takes that from statistics and configuration, and stops at anything it does not expect.
"""

from __future__ import annotations

import csv
import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest

from support.stock_server import Stock

SECONDS_MAX: Final = 120
WINDOW_MS: Final = 300
ANSWERED: Final = "Inferences/Second"
SERVER_COLUMNS: Final = (
    "Server Queue", "Server Compute Input", "Server Compute Infer", "Server Compute Output",
)  # fmt: skip
LOAD: Final = ("--concurrency-range", "4")

Report = list[dict[str, str]]
Analyze = Callable[..., Report]


@pytest.fixture
def analyze(perf_analyzer: str, stock: Stock, tmp_path: Path) -> Analyze:
    """Run it; the rows of its report, one per load."""

    def run(door: str, *arguments: str, model: str = "identity", load: Any = LOAD) -> Report:
        report = tmp_path / "report.csv"
        # Few, short windows and no wait until they agree: whether it works is the question.
        command = [perf_analyzer, "-m", model, "-i", door, "-u", getattr(stock, door)]
        command += ["-p", str(WINDOW_MS), "-r", "3", "-s", "999", "-f", str(report)]
        done = subprocess.run(
            [*command, *load, *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=SECONDS_MAX,
            check=False,
        )
        said = done.stdout.decode(errors="replace")
        assert done.returncode == 0, said
        assert "rror" not in said.replace("Error: 0", ""), said
        with report.open() as file:
            rows = list(csv.DictReader(file))
        assert rows, said
        for row in rows:
            assert float(row[ANSWERED]) > 0, said
            for column in SERVER_COLUMNS:
                assert row[column].isdigit(), said
            assert int(row["Server Compute Infer"]) > 0, said
        return rows

    return run


@pytest.mark.parametrize("door", ["http", "grpc"])
@pytest.mark.parametrize(
    "arguments",
    [(), ("--async",), ("--sync",), ("-b", "4"), ("--shared-memory", "system")],
    ids=" ".join,
)
def test_tensors(analyze: Analyze, door: str, arguments: tuple[str, ...]) -> None:
    analyze(door, *arguments)


@pytest.mark.parametrize("arguments", [(), ("--shared-memory", "system")], ids=" ".join)
def test_streaming(analyze: Analyze, arguments: tuple[str, ...]) -> None:
    analyze("grpc", "--streaming", "--async", *arguments)


@pytest.mark.parametrize("door", ["http", "grpc"])
def test_request_rates(analyze: Analyze, door: str) -> None:
    rows = analyze(door, load=("--request-rate-range", "20:40:20"))
    assert [row["Request Rate"] for row in rows] == ["20", "40"]


@pytest.mark.parametrize("door", ["http", "grpc"])
def test_strings(analyze: Analyze, door: str) -> None:
    analyze(door, "--string-length", "20", model="text")


@pytest.mark.parametrize("door", ["http", "grpc"])
def test_strings_from_a_file(analyze: Analyze, door: str, tmp_path: Path) -> None:
    given = tmp_path / "given.json"
    given.write_text(json.dumps({"data": [{"INPUT0": ["grün"]}, {"INPUT0": [""]}]}))
    analyze(door, "--input-data", str(given), model="text")


def test_zeros_and_two_inputs(analyze: Analyze) -> None:
    analyze("http", "--input-data", "zero", model="adder")


def test_a_variable_shape(analyze: Analyze) -> None:
    analyze("grpc", "--shape", "INPUT0:7", model="echo_int32")


def test_metrics(analyze: Analyze, stock: Stock) -> None:
    url = f"{stock.metrics}/metrics"
    analyze("http", "--collect-metrics", "--metrics-url", url, "--metrics-interval", "100")


def test_batches_of_a_busy_model(analyze: Analyze) -> None:
    """The rate counts inferences, which its configuration says are batched by the server."""
    (row,) = analyze("grpc", model="by_four", load=("--concurrency-range", "8"))
    assert int(row["Concurrency"]) == 8
