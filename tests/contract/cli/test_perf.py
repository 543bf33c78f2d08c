"""`naiad perf` as a command, against a broker that echoes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.clients import PATIENCE_S, ROOT, Broker


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    broker = Broker(tmp_path_factory.mktemp("run")).start()
    yield broker
    broker.stop()


def perf(run_dir: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-W", "error", "-m", "naiad", "perf", "--run-dir", str(run_dir)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "COLUMNS": "120"}
    return subprocess.run(
        [*command, *arguments], env=environment, capture_output=True, text=True, timeout=PATIENCE_S
    )


@pytest.mark.parametrize("how", [[], ["--async"], ["--shared-memory"], ["--inline"]])
def test_each_concurrency_gives_one_object(broker: Broker, how: list[str]) -> None:
    ended = perf(
        broker.run_dir, "-m", "echo", "--concurrency", "1,8", "--duration", "0.2", "--json", *how
    )
    assert (ended.returncode, ended.stderr) == (0, "")
    found = json.loads(ended.stdout)
    assert [one["concurrency"] for one in found] == [1, 8]
    for one in found:
        assert one["throughput"] > 0
        assert 0 < one["p50_us"] <= one["p90_us"] <= one["p99_us"]
        assert one["errors"] == 0
        assert (one["queue_share"], one["compute_share"]) == (0.0, 0.0)


def test_a_table_for_people(broker: Broker) -> None:
    ended = perf(
        broker.run_dir, "-m", "echo", "--concurrency", "2", "--duration", "0.1",
        "--shape", "numbers:4,16",
    )  # fmt: skip
    assert ended.returncode == 0
    header, row = ended.stdout.splitlines()
    assert header.split()[:3] == ["IN", "FLIGHT", "REQUESTS/S"]
    assert row.split()[0] == "2"


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (["-m", "nope"], 5, "no model nope; it has broken, echo"),
        (["-m", "broken"], 5, "broken is not ready (1 UNAVAILABLE no file model.py)"),
        (["-m", "echo", "--shape", "other:1"], 2, "has no input other"),
        (["-m", "echo", "--shape", "numbers"], 2, "expected NAME:1,16"),
        (["-m", "echo", "--concurrency", "0"], 2, "expected numbers of 1 to"),
        (["-m", "error", "--duration", "1"], 1, "the model said no"),
    ],
)
def test_what_goes_wrong_is_one_sentence(
    broker: Broker, arguments: list[str], code: int, text: str
) -> None:
    ended = perf(broker.run_dir, *arguments)
    assert ended.returncode == code
    assert text in ended.stderr
    assert "Traceback" not in ended.stderr


def test_no_server_is_said_at_once(tmp_path: Path) -> None:
    ended = perf(tmp_path, "-m", "echo")
    assert ended.returncode == 4
    assert "naiad serve" in ended.stderr
