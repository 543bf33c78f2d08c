"""`naiad tritonserver` for real: its start, what it prints, its exit codes, a stock client."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from support.repositories import add_identity
from support.waiting import wait_until

ROOT = Path(__file__).resolve().parent.parent.parent
START_SECONDS_MAX = 40.0
PORTS = ("--http-port=0", "--grpc-port", "0", "--metrics-port=0", "--http-address=127.0.0.1")


@contextmanager
def started(run_dir: Path, *flags: str) -> Iterator[tuple[subprocess.Popen[bytes], Path]]:
    """(process, its log); ended by the end of the block at the latest."""
    log = run_dir.with_suffix(".log")
    with log.open("wb") as file:
        process = subprocess.Popen(
            [sys.executable, "-m", "naiad", "tritonserver", f"--run-dir={run_dir}", *flags],
            stdout=file,
            stderr=file,
            env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        )
    try:
        yield process, log
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()


def ended(run_dir: Path, *flags: str) -> tuple[int, str]:
    """(exit code, everything printed) of a start that fails."""
    with started(run_dir, *flags) as (process, log):
        return process.wait(START_SECONDS_MAX), log.read_text()


def url_of(log: Path) -> str:
    def found() -> re.Match[str] | None:
        return re.search(r"^HTTP on (\S+)$", log.read_text(), re.MULTILINE)

    wait_until(lambda: found() is not None, "the port is open", START_SECONDS_MAX)
    match = found()
    assert match is not None
    return match[1]


def status_of(url: str) -> int:
    try:
        with urllib.request.urlopen(url, timeout=10) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as fault:
        return fault.code
    except OSError:
        return 0


def test_a_drop_in_start_serves_a_stock_client_and_ends_with_0(tmp_path: Path) -> None:
    import tritonclient.http as triton

    repository, second = tmp_path / "models", tmp_path / "more"
    add_identity(repository, "echo")
    add_identity(second, "other")
    flags = (
        f"--model-store={repository}", "--model-repository", str(second), *PORTS,
        "--strict-model-config=false", "--http-thread-count=8", "--log-verbose=1",
        "--exit-timeout-secs=5",
    )  # fmt: skip
    with started(tmp_path / "run", *flags) as (process, log):
        url = url_of(log)
        wait_until(lambda: status_of(f"{url}/v2/health/ready") == 200, "ready", START_SECONDS_MAX)
        client = triton.InferenceServerClient(url.removeprefix("http://"))
        try:
            assert client.get_server_metadata()["name"] == "triton"
            assert client.is_model_ready("other")
        finally:
            client.close()
        wait_until(lambda: "listening on" in log.read_text(), "the greeting")
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0
        text = log.read_text()
    assert "--model-store is an old spelling; use --model-repository" in text
    assert text.count("--http-thread-count has no effect") == 1
    assert "| Model | Version | Status |" in text
    assert "| echo  | 1       | READY  |" in text
    assert re.search(r"^I\d{4} \d\d:\d\d:\d\d\.\d{6} \d+ broker\[\d+\] INFO broker: ", text, re.M)


def test_a_model_that_does_not_load_ends_it_with_triton_s_words(tmp_path: Path) -> None:
    add_identity(tmp_path / "models", "good")
    add_identity(tmp_path / "models", "bad", parameters={"fail_load": "out of luck"})
    where = f"--model-repository={tmp_path / 'models'}"
    code, text = ended(tmp_path / "run", where, *PORTS)
    assert code == 1
    assert "failed to load all models" in text
    assert re.search(r"^\| bad +\| 1 +\| UNAVAILABLE: .*out of luck", text, re.M)
    with started(tmp_path / "run2", where, *PORTS, "--exit-on-error=false") as (process, log):
        url = url_of(log)
        wait_until(lambda: "1 of 2 models failed" in log.read_text(), "settled", START_SECONDS_MAX)
        assert status_of(f"{url}/v2/models/good/ready") == 200
        assert status_of(f"{url}/v2/health/ready") == 400
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0


def test_readiness_that_is_not_strict_ignores_what_failed(tmp_path: Path) -> None:
    add_identity(tmp_path / "models", "bad", parameters={"fail_load": "out of luck"})
    where = f"--model-repository={tmp_path / 'models'}"
    flags = (where, *PORTS, "--exit-on-error=false", "--strict-readiness=false")
    with started(tmp_path / "run", *flags) as (process, log):
        url = url_of(log)
        wait_until(lambda: status_of(f"{url}/v2/health/ready") == 200, "ready", START_SECONDS_MAX)
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0


def test_an_empty_repository_is_served_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "models").mkdir()
    with started(tmp_path / "run", f"--model-repository={tmp_path / 'models'}", *PORTS) as (
        process,
        log,
    ):
        url = url_of(log)
        wait_until(lambda: status_of(f"{url}/v2/health/ready") == 200, "ready", START_SECONDS_MAX)
        with urllib.request.urlopen(
            urllib.request.Request(f"{url}/v2/repository/index", data=b"")
        ) as answer:
            assert json.load(answer) == []
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0


@pytest.mark.parametrize("flag", ["--grpc-port", "--metrics-port"])
def test_a_port_that_is_taken_or_given_twice_is_exit_code_1(tmp_path: Path, flag: str) -> None:
    add_identity(tmp_path / "models", "echo")
    where = f"--model-repository={tmp_path / 'models'}"
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        code, text = ended(tmp_path / "run", where, *PORTS, f"{flag}={port}")
        assert code == 1
        assert f"port {port} on 127.0.0.1 is taken" in text
    code, text = ended(tmp_path / "run", where, *PORTS, f"{flag}={port}", f"--http-port={port}")
    assert code == 1
    assert f"--http-port and {flag} are both {port}" in text


def test_a_config_that_says_too_little_is_refused_when_nothing_is_filled_in(tmp_path: Path) -> None:
    add_identity(tmp_path / "models", "whole")
    model = tmp_path / "models" / "bare" / "1"
    model.mkdir(parents=True)
    (model / "model.py").write_text("class TritonPythonModel: pass\n")
    where = f"--model-repository={tmp_path / 'models'}"
    code, text = ended(tmp_path / "run", where, *PORTS, "--disable-auto-complete-config")
    assert code == 1
    assert re.search(r"^\| bare .*UNAVAILABLE: .*there is no config.pbtxt", text, re.M)
    assert re.search(r"^\| whole +\| 1 +\| READY", text, re.M)
