"""The metrics page of a real server against the client's own ledger, and its process at its end."""

from __future__ import annotations

import os
import signal
import socket
import statistics
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from naiad.cli.exit_codes import ExitCode
from naiad.client import Client, Code, NaiadError
from naiad.testing.server import Server, serve
from support.exposition import Series, parsed, total
from support.models import add_echo, add_python
from support.models_python import RAISES_ON_NEGATIVE
from support.waiting import wait_until

ROOT = Path(__file__).resolve().parents[2]
ARRAYS = {"INPUT0": np.ones((1, 16), np.float32)}
PORTS = ("--metrics-port", "0")
BOUNDED = "dynamic_batching { default_queue_policy { max_queue_size: 2 } }"
TIMED = "dynamic_batching { default_queue_policy { default_timeout_microseconds: 50000 } }"
MODELS = 200
ROUNDS = 5
ROUND_S = 0.7
SCRAPES_APART_S = 0.2


def page_of(url: str) -> bytes:
    with urllib.request.urlopen(url, timeout=20) as answer:
        found: bytes = answer.read()
        return found


def refusal_of(url: str) -> tuple[int, str]:
    """The status and the text of an error answer."""
    with pytest.raises(urllib.error.HTTPError) as raised:
        page_of(url)
    with raised.value as answer:
        return answer.code, answer.read().decode()


def scraped(server: Server) -> Series:
    return parsed(page_of(server.metrics_url))


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    repository = tmp_path_factory.mktemp("repository")
    add_echo(repository, "batched", max_batch_size=8, extra="dynamic_batching { }")
    add_echo(repository, "bounded", max_batch_size=1, extra=BOUNDED)
    add_echo(repository, "timed", max_batch_size=1, extra=TIMED)
    add_python(repository, "wrong", RAISES_ON_NEGATIVE)
    with serve(repository, arguments=PORTS) as server:
        yield server


def test_batches_agree_with_the_ledger_and_with_the_statistics(server: Server) -> None:
    client = server.client()
    futures = [client.submit("batched", ARRAYS) for _ in range(100)]
    two = {"INPUT0": np.ones((2, 16), np.float32)}
    futures += [client.submit("batched", two) for _ in range(50)]
    for future in futures:
        future.result(20)
    found = scraped(server)

    def value(name: str) -> float:
        return total(found, name, model="batched", version="1")

    assert value("nv_inference_request_success") == 150
    assert value("nv_inference_count") == 200
    assert value("nv_inference_request_failure") == 0
    (told,) = client.statistics("batched")["model_stats"]
    assert value("nv_inference_exec_count") == told["execution_count"]
    for ours, theirs in (
        ("request", "success"),
        ("queue", "queue"),
        ("compute_input", "compute_input"),
        ("compute_infer", "compute_infer"),
        ("compute_output", "compute_output"),
    ):
        nanoseconds = told["inference_stats"][theirs]["ns"]
        assert value(f"nv_inference_{ours}_duration_us") == nanoseconds // 1000

    executions = value("nv_inference_exec_count")
    assert value("naiad_request_seconds_count") == value("naiad_queue_seconds_count") == 150
    assert value("naiad_compute_seconds_count") == value("naiad_batch_rows_count") == executions
    assert value("naiad_executions_total") == value("naiad_batches_total") == executions
    assert value("naiad_batch_rows_sum") == 200
    infinite = found["naiad_request_seconds_bucket", tuple(sorted(
        {"le": "+Inf", "model": "batched", "version": "1"}.items()
    ))]  # fmt: skip
    assert infinite == 150
    busy = value("naiad_instance_busy_seconds_total")
    assert busy == pytest.approx(value("naiad_execution_seconds_total"))
    assert busy == pytest.approx(value("naiad_compute_seconds_sum"))
    assert value("nv_inference_pending_request_count") == value("naiad_executing_requests") == 0
    assert value("nv_model_load_duration_secs") > 0
    assert value("naiad_worker_cpu_seconds_total") > 0


def outcome(client: Client, model: str, value: float = 1) -> str:
    try:
        client.infer(model, {"INPUT0": np.full(16, value, np.float32)})
    except NaiadError as fault:
        return str(fault.code)
    return "ok"


def test_failures_of_a_model_and_requests_that_never_came_so_far(server: Server) -> None:
    client = server.client()
    assert [outcome(client, "wrong", v) for v in (1, -1, 1, -1, -1)].count("ok") == 2
    assert {outcome(client, "nobody") for _ in range(4)} == {Code.NOT_FOUND}
    found = scraped(server)
    assert total(found, "nv_inference_request_success", model="wrong") == 2
    assert total(found, "nv_inference_request_failure", model="wrong", reason="BACKEND") == 3
    assert total(found, "nv_inference_request_failure", model="wrong") == 3
    assert total(found, "naiad_refused_requests_total", code="not_found") == 4


def test_a_full_queue_a_cancel_and_a_time_limit(server: Server) -> None:
    client = server.client()

    def now(name: str, model: str, **labels: str) -> float:
        return total(scraped(server), name, model=model, **labels)

    held = client.submit("bounded", ARRAYS, parameters={"sleep_ms": 60_000})
    wait_until(lambda: now("naiad_executing_requests", "bounded") == 1, "it executes")
    waiting = [client.submit("bounded", ARRAYS) for _ in range(2)]
    refused = [client.submit("bounded", ARRAYS) for _ in range(3)]
    for future in refused:
        with pytest.raises(NaiadError) as raised:
            future.result(20)
        assert raised.value.code == Code.QUEUE_FULL
    found = scraped(server)
    assert total(found, "nv_inference_pending_request_count", model="bounded") == 2
    assert total(found, "naiad_oldest_pending_seconds", model="bounded") > 0
    # Busy now or for some of the last seconds, and two batches of one wait for one instance.
    assert 2 < total(found, "naiad_saturation", model="bounded") <= 3
    for future in (*waiting, held):
        future.cancel()
    reasons = ("REJECTED", "CANCELED", "BACKEND", "OTHER")
    wait_until(
        lambda: (
            [now("nv_inference_request_failure", "bounded", reason=reason) for reason in reasons]
            == [3, 3, 0, 0]
        ),
        "all are counted",
    )
    wait_until(lambda: now("naiad_executing_requests", "bounded") == 0, "the held one has ended")

    held = client.submit("timed", ARRAYS, parameters={"sleep_ms": 60_000})
    wait_until(lambda: now("naiad_executing_requests", "timed") == 1, "it executes")
    with pytest.raises(NaiadError) as raised:
        client.infer("timed", ARRAYS)
    assert raised.value.code == Code.TIMEOUT
    held.cancel()
    assert now("nv_inference_request_failure", "timed", reason="REJECTED") == 1


def test_any_other_path_is_not_found(server: Server) -> None:
    root = server.metrics_url.removesuffix("/metrics")
    for path in ("", "/", "/v2/health/ready", "/metrics/x"):
        assert refusal_of(root + path)[0] == 404


def test_a_killed_worker_is_counted(server: Server) -> None:
    found = scraped(server)
    before = total(found, "naiad_worker_deaths_total", model="batched")
    rows = server.client().status()["instances"]
    (pid,) = [one["pid"] for one in rows if one["model"] == "batched"]
    os.kill(pid, signal.SIGKILL)

    def now(name: str, **labels: str) -> float:
        return total(scraped(server), name, model="batched", **labels)

    wait_until(
        lambda: now("naiad_worker_deaths_total", reason="SIGKILL") == before + 1, "the death"
    )
    wait_until(lambda: now("naiad_instances_ready") == 1, "the next one serves")
    assert now("naiad_instance_restarts_total") == before + 1


# --- the process ------------------------------------------------------------------------------


def test_the_metrics_process_is_killed_and_the_broker_after_it(tmp_path: Path) -> None:
    add_echo(tmp_path, "echo", max_batch_size=8)
    with serve(tmp_path, arguments=PORTS) as server:
        client = server.client()
        client.infer("echo", ARRAYS)
        first = server.pids["metrics-0"]
        os.kill(first, signal.SIGKILL)
        # The port stays open all the time: whoever asks meanwhile waits for the next process.
        found = scraped(server)
        assert total(found, "nv_inference_request_success", model="echo") == 1
        assert server.pids["metrics-0"] != first
        assert "metrics-0" in server.log
        client.infer("echo", ARRAYS)

        started = total(found, "naiad_broker_start_time_seconds")
        os.kill(server.pids["broker"], signal.SIGKILL)
        client.infer("echo", ARRAYS)
        found = scraped(server)
        assert total(found, "naiad_broker_start_time_seconds") >= started
        assert total(found, "nv_inference_request_success", model="echo") == 1, "from zero"
        assert total(found, "naiad_model_ready", model="echo") == 1


def test_a_stopped_broker_is_a_503_and_a_series_that_ends(tmp_path: Path) -> None:
    add_echo(tmp_path, "echo", max_batch_size=8)
    explicit = ("--control-mode", "explicit", "--load-model", "echo")
    with serve(tmp_path, arguments=(*PORTS, *explicit)) as server:
        client = server.client()
        assert total(scraped(server), "naiad_model_ready", model="echo") == 1
        client.unload("echo")
        wait_until(
            lambda: not any(dict(labels).get("model") for _, labels in scraped(server)),
            "the model's series are gone",
        )
        broker = server.pids["broker"]
        os.kill(broker, signal.SIGSTOP)
        try:
            status, text = refusal_of(server.metrics_url)
            assert status == 503
            assert str(server.run_dir) not in text
        finally:
            os.kill(broker, signal.SIGCONT)
        assert scraped(server)


def test_a_taken_port_is_one_sentence(tmp_path: Path) -> None:
    add_echo(tmp_path, "echo")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        command = [
            sys.executable,
            "-m",
            "naiad",
            "serve",
            str(tmp_path),
            "--http-port",
            "off",
            "--grpc-port",
            "off",
        ]
        command += ["--metrics-port", str(port), "--run-dir", str(tmp_path / "run")]
        run = subprocess.run(
            command,
            env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
            capture_output=True,
            text=True,
            timeout=60,
        )
    assert run.returncode == ExitCode.PORT
    (line,) = run.stderr.splitlines()
    assert f"port {port} on 127.0.0.1 is taken" in line
    assert "--metrics-port" in line


# --- many models ------------------------------------------------------------------------------


@contextmanager
def crowd(tmp_path: Path) -> Iterator[tuple[Path, str]]:
    """A broker with MODELS models, one worker for the first of them, and metrics: the run directory
    and the address of the page. The others wait for workers; they have all the series."""
    models, run_dir = tmp_path / "models", tmp_path / "run"
    models.mkdir()
    run_dir.mkdir(mode=0o700)
    add_echo(models, "a", max_batch_size=8, extra="dynamic_batching { }")
    for number in range(1, MODELS):
        add_echo(models, f"waiting_{number}", max_batch_size=8, extra="dynamic_batching { }")
    where = ["--run-dir", str(run_dir)]
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        commands = (
            ["naiad.broker", "--name", f"crowd-{os.getpid()}", "--repository", str(models)],
            ["naiad.worker", "--slot", "cpu-0", "--device", "cpu"],
            ["naiad.metrics", "--fd", str(listener.fileno())],
        )
        processes = [
            subprocess.Popen(
                [sys.executable, "-m", module, *where, *arguments],
                env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
                pass_fds=[listener.fileno()],
                stderr=subprocess.DEVNULL,
            )
            for module, *arguments in commands
        ]
        try:
            yield run_dir, f"http://127.0.0.1:{port}/metrics"
        finally:
            for process in processes[::-1]:
                process.terminate()
            for process in processes:
                process.wait(30)


def latencies(client: Client, seconds: float) -> list[float]:
    """Of lone requests, one after the other."""
    taken = []
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        begun = time.perf_counter()
        client.infer("a", ARRAYS)
        taken.append(time.perf_counter() - begun)
    return taken


def shown(taken: list[float]) -> str:
    cuts = statistics.quantiles(taken, n=100)
    return ", ".join(f"p{n} {cuts[n - 1] * 1e3:.2f}" for n in (50, 90, 99)) + " ms"


def test_scrapes_of_many_models_delay_nobody(tmp_path: Path) -> None:
    """Prints its figures (-s): they are in docs/performance.md."""
    with crowd(tmp_path) as (run_dir, url), Client(run_dir) as client:
        wait_until(lambda: client.model_ready("a"), "the first model serves", 60)
        found = parsed(page_of(url))
        assert total(found, "naiad_instances") == MODELS
        assert total(found, "naiad_waiting_instances") == MODELS - 1
        assert sum(name == "nv_inference_count" for name, _ in found) == MODELS

        scrapes: list[float] = []
        quiet: list[float] = []
        busy: list[float] = []

        def scrape(over: threading.Event) -> None:
            while not over.wait(SCRAPES_APART_S):
                begun = time.perf_counter()
                page_of(url)
                scrapes.append(time.perf_counter() - begun)

        latencies(client, 0.3)
        for _ in range(ROUNDS):
            quiet += latencies(client, ROUND_S)
            over = threading.Event()
            thread = threading.Thread(target=scrape, args=(over,))
            thread.start()
            busy += latencies(client, ROUND_S)
            over.set()
            thread.join()
        print(f"\nlone requests: {shown(quiet)}; while scraped: {shown(busy)}")
        print(
            f"{len(scrapes)} scrapes of {MODELS} models, {len(page_of(url)) >> 10} KiB:"
            f" median {statistics.median(scrapes) * 1e3:.0f} ms, of which the broker was asked for"
            f" {total(found, 'naiad_scrape_seconds') * 1e3:.0f} ms"
        )
        assert len(scrapes) >= ROUNDS
        # An answer that held the broker's loop for the whole page (some 15 ms) would be seen in
        # every request that met it; what the machine's other work costs is in both.
        assert statistics.median(busy) < 2 * statistics.median(quiet) + 0.002
