"""NVIDIA's model_analyzer searches the configurations of a model: remote, and starting the server.

It reads the index, loads and unloads with configurations of its own, asks perf_analyzer, and reads
metrics; in local mode it starts `tritonserver` with its command line for each of them.
"""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from support.models import add_python
from support.stock_models import ECHO
from support.stock_server import Stock, free_ports, naiad_server, triton_server, triton_words

SECONDS_MAX: Final = 300
SEARCH: Final[dict[str, Any]] = {
    "profile_models": {
        "identity": {
            "cpu_only": True,
            "model_config_parameters": {
                "instance_group": [{"kind": "KIND_CPU", "count": [1]}],
                "max_batch_size": [4],
            },
            "parameters": {"concurrency": [2]},
        }
    },
    # Whether it works is the question, not whether the figures are steady.
    "perf_analyzer_flags": {"measurement-interval": 300, "stability-percentage": 999},
}

Analyze = Callable[..., None]


@pytest.fixture
def models(tmp_path: Path) -> Path:
    repository = tmp_path / "models"
    repository.mkdir()
    add_python(repository, "identity", ECHO, max_batch_size=8)
    return repository


@pytest.fixture
def analyze(model_analyzer: str, perf_analyzer: str, models: Path, tmp_path: Path) -> Analyze:
    def run(http: str, grpc: str, metrics: str, *arguments: str) -> None:
        search = tmp_path / "search.yaml"
        search.write_text(json.dumps(SEARCH))
        folders = {name: tmp_path / name for name in ("output", "checkpoints", "export")}
        for folder in folders.values():
            folder.mkdir()
        command = [model_analyzer, "profile", "-f", str(search), "-m", str(models)]
        command += ["--triton-http-endpoint", http, "--triton-grpc-endpoint", grpc]
        command += ["--triton-metrics-url", f"http://{metrics}/metrics", "--gpus", "[]"]
        command += ["--output-model-repository-path", str(folders["output"])]
        command += ["--override-output-model-repository", "--perf-analyzer-path", perf_analyzer]
        command += ["--perf-analyzer-cpu-util", "1000", "-s", str(folders["checkpoints"])]
        command += ["-e", str(folders["export"]), "--skip-summary-reports"]
        done = subprocess.run(
            [*command, "--skip-detailed-reports", *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=SECONDS_MAX,
            check=False,
        )
        said = done.stdout.decode(errors="replace")
        assert done.returncode == 0, said
        assert "Profiled 2 configurations for models: ['identity']" in said

    return run


@pytest.fixture
def empty_server(request: pytest.FixtureRequest, models: Path, tmp_path: Path) -> Iterator[Stock]:
    """A server of that repository which has loaded nothing."""
    if request.config.getoption("--against") == "naiad":
        with naiad_server(models, ()) as server:
            yield server
        return
    command = request.config.getoption("--triton-command")
    with triton_server(command, models, tmp_path / "log", ()) as server:
        yield server


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_remote(empty_server: Stock, analyze: Analyze, protocol: str) -> None:
    mode = ("--triton-launch-mode", "remote", "--client-protocol", protocol)
    analyze(empty_server.http, empty_server.grpc, empty_server.metrics, *mode)


def test_local(request: pytest.FixtureRequest, analyze: Analyze, tmp_path: Path) -> None:
    """It starts the server itself, by Triton's command line."""
    ports = free_ports()
    words = [sys.executable, "-m", "naiad", "tritonserver"]
    if request.config.getoption("--against") == "triton":
        (tmp_path / "none").mkdir()
        command = request.config.getoption("--triton-command")
        words = triton_words(command, tmp_path / "none", ports)
    program = tmp_path / "tritonserver"
    program.write_text(f'#!/bin/sh\nexec {shlex.join(words)} "$@"\n')
    program.chmod(0o755)
    doors = (f"localhost:{port}" for port in ports.values())
    analyze(*doors, "--triton-launch-mode", "local", "--triton-server-path", str(program))
