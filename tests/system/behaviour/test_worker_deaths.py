"""A worker that dies or stops, at whatever moment, costs no request; nor does a whole server leave
memory behind that its next start would not find.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from naiad.client import Client, Code, Future, InferResult, NaiadError, Unavailable
from naiad.shm.layout import PREFIX, sanitised_server
from naiad.testing.server import Server, serve
from support.models import add_echo, add_python
from support.models_python import HANGS_IN_FINALIZE, HANGS_IN_INITIALIZE, python_model
from support.waiting import wait_until

ARRAYS = {"INPUT0": np.arange(16, dtype=np.float32)}
DEAF = python_model(
    """
    open(self.journal, "a").write("x")
    time.sleep(0.3)
    return [output(array_of(request)) for request in requests]
    """,
    more="""
    def initialize(self, args):
        self.journal = args["model_repository"] + ".executions"
    """,
)
"""Adds a letter to the file `<model>.executions` when an execution begins."""
IMAGE = {"INPUT0": np.ones(150_000, np.float32)}


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    repository = tmp_path_factory.mktemp("repository")
    add_echo(repository, "echo", max_batch_size=0)
    add_python(repository, "deaf", DEAF)
    add_python(repository, "slow_to_load", HANGS_IN_INITIALIZE)
    add_python(repository, "never_ends", HANGS_IN_FINALIZE)
    return repository


@pytest.fixture(scope="module")
def server(repository: Path) -> Iterator[Server]:
    arguments = ["--control-mode", "explicit", "--load-model", "echo", "--load-model", "deaf"]
    with serve(repository, arguments=arguments) as server:
        yield server


def row_of(client: Client, model: str) -> dict[str, Any]:
    rows: list[dict[str, Any]] = client.status()["instances"]
    (row,) = [row for row in rows if row["model"] == model]
    return row


def deaths(client: Client) -> dict[str, int]:
    found: dict[str, int] = client.status()["counters"]["worker_deaths"]
    return found


def answered(future: Future[InferResult]) -> None:
    assert (future.result(timeout=20)["OUTPUT0"] == ARRAYS["INPUT0"]).all()


def test_killed_while_idle_it_is_replaced_and_the_reason_is_known(client: Client) -> None:
    client.infer("echo", ARRAYS)
    before = deaths(client).get("SIGKILL", 0)
    pid = row_of(client, "echo")["pid"]
    os.kill(pid, signal.SIGKILL)
    answered(client.submit("echo", ARRAYS))
    row = row_of(client, "echo")
    assert row["pid"] != pid
    assert row["restarts"] >= 1
    assert deaths(client)["SIGKILL"] == before + 1


class Begun:
    """Sees when the model `deaf` begins an execution."""

    def __init__(self, repository: Path) -> None:
        self._journal = repository / "deaf.executions"
        self._before = self.count

    @property
    def count(self) -> int:
        return self._journal.stat().st_size if self._journal.exists() else 0

    def wait(self) -> None:
        wait_until(lambda: self.count > self._before, "the execution has begun")


def test_killed_in_the_middle_of_a_request_the_request_is_run_again(
    client: Client, repository: Path
) -> None:
    before = client.status()["counters"]["reexecutions"].get("worker_died", 0)
    begun = Begun(repository)
    future = client.submit("deaf", ARRAYS)
    waiting = [client.submit("deaf", ARRAYS) for _ in range(2)]
    client.live()  # so that they have been sent
    begun.wait()
    os.kill(row_of(client, "deaf")["pid"], signal.SIGKILL)
    for one in (future, *waiting):
        answered(one)
    assert client.status()["counters"]["reexecutions"]["worker_died"] == before + 1


def test_stopped_in_the_middle_of_a_request_it_is_killed_and_the_request_run_again(
    client: Client, server: Server, repository: Path
) -> None:
    begun = Begun(repository)
    future = client.submit("deaf", ARRAYS)
    client.live()
    begun.wait()
    pid = row_of(client, "deaf")["pid"]
    os.kill(pid, signal.SIGSTOP)
    answered(future)
    assert deaths(client)["killed: it stopped answering"] >= 1
    assert not os.path.exists(f"/proc/{pid}")
    wait_until(lambda: f"pid {pid}: SIGKILL" in server.log, "it is in the log")


def test_stopped_while_it_is_idle_it_is_replaced_and_no_crash_is_counted(
    client: Client, repository: Path
) -> None:
    name = "one_crash"
    add_echo(
        repository, name, max_batch_size=0,
        parameters={"naiad.crash_budget": 1},
    )  # fmt: skip
    client.load(name)
    pid = row_of(client, name)["pid"]
    before = deaths(client).get("killed: it stopped answering", 0)
    os.kill(pid, signal.SIGSTOP)
    wait_until(lambda: deaths(client).get("killed: it stopped answering", 0) > before, "it is dead")
    answered(client.submit(name, ARRAYS))
    client.unload(name)


def test_killed_while_it_loads_the_load_succeeds_with_the_next(
    client: Client, repository: Path
) -> None:
    hang = repository / "slow_to_load.hang"
    hang.touch()
    call = threading.Thread(target=client.load, args=("slow_to_load",))
    call.start()
    wait_until(
        lambda: [one for one in client.status()["instances"] if one["state"] == "LOADING"],
        "it loads",
    )
    os.kill(row_of(client, "slow_to_load")["pid"], signal.SIGKILL)
    hang.unlink()
    call.join(20)
    assert not call.is_alive()
    answered(client.submit("slow_to_load", ARRAYS))
    client.unload("slow_to_load")


def test_killed_in_finalize_the_unload_is_complete(client: Client, repository: Path) -> None:
    client.load("never_ends")
    pid = row_of(client, "never_ends")["pid"]
    client.unload("never_ends")
    wait_until((repository / "never_ends" / f"finalizing.{pid}").exists, "it finalizes")
    before = deaths(client)
    os.kill(pid, signal.SIGKILL)
    wait_until(
        lambda: (
            [row["reason"] for row in client.index() if row["name"] == "never_ends"] == ["unloaded"]
        ),
        "it is unloaded",
    )
    assert deaths(client) == before, "an ordered end is no death"


@pytest.mark.parametrize(
    ("trouble", "reason"),
    [
        ({"segfault": True}, "SIGSEGV"),
        ({"abort": True}, "SIGABRT"),
        ({"exit": 3}, "exit code 3"),
        ({"exit": 0}, "exit code 0"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_request_that_kills_its_worker_fails_alone_with_the_reason(
    client: Client, trouble: dict[str, Any], reason: str
) -> None:
    poison = client.submit("echo", ARRAYS, parameters=trouble, label="the culprit")
    others = [client.submit("echo", ARRAYS) for _ in range(4)]
    with pytest.raises(NaiadError, match=f"poison request.*{reason}") as caught:
        poison.result(timeout=20)
    assert caught.value.code == Code.POISON_REQUEST
    assert "[request id: the culprit]" in caught.value.message
    for other in others:
        answered(other)
    assert client.model_ready("echo")


def test_an_execution_over_its_limit_costs_the_worker(
    client: Client, server: Server, repository: Path
) -> None:
    add_echo(repository, "limited", parameters={"naiad.execution_timeout_ms": 200})
    client.load("limited")
    future = client.submit("limited", ARRAYS, parameters={"spin_ms": 60_000})
    behind = client.submit("limited", ARRAYS)
    with pytest.raises(NaiadError, match=r"naiad\.execution_timeout_ms = 200 ms"):
        future.result(timeout=20)
    answered(behind)
    client.unload("limited")


# --- a whole server ---------------------------------------------------------------------------


def segments(name: str) -> set[str]:
    prefix = f"{PREFIX[1:]}{sanitised_server(name)}."
    return {entry for entry in os.listdir("/dev/shm") if entry.startswith(prefix)}


@contextmanager
def naiad_serve(repository: Path, run_dir: Path, name: str) -> Iterator[subprocess.Popen[bytes]]:
    """The command itself, started again and again with the same name in the same place."""
    log_file = run_dir.with_suffix(".log")
    command = [sys.executable, "-m", "naiad", "serve", str(repository), "--name", name]
    command += ["--http-port", "off", "--grpc-port", "off", "--metrics-port", "off"]
    command += ["--run-dir", str(run_dir), "--log-file", str(log_file)]
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()


@pytest.mark.parametrize(
    "kills", [pytest.param(3, id="short"), pytest.param(20, marks=pytest.mark.soak, id="full")]
)
def test_a_server_killed_over_and_over_under_load_piles_nothing_up(
    tmp_path_factory: pytest.TempPathFactory, kills: int
) -> None:
    repository, run_dir = tmp_path_factory.mktemp("again"), tmp_path_factory.mktemp("run") / "r"
    add_echo(repository, "echo", "FP32 -1")
    name = f"test-killed-{os.getpid()}-{kills}"
    with Client(run_dir, connect_timeout_s=30) as client:
        for _ in range(kills):
            with naiad_serve(repository, run_dir, name) as process:
                wait_until(lambda: client.model_ready("echo"), "it serves")
                held = [client.infer("echo", IMAGE)["OUTPUT0"] for _ in range(3)]
                futures = [client.submit("echo", IMAGE) for _ in range(8)]
                process.kill()
                process.wait()
            del held
            assert segments(name), "nothing was shown: there was no segment"
        with naiad_serve(repository, run_dir, name) as process:
            for future in futures:  # a new server does not know what the one before had promised
                fault = future.exception(timeout=30)
                assert fault is None or (isinstance(fault, Unavailable) and fault.retryable)
            wait_until(lambda: client.model_ready("echo"), "it serves")
            assert (client.infer("echo", IMAGE)["OUTPUT0"] == IMAGE["INPUT0"]).all()
            client.close()
            process.terminate()
            assert process.wait(30) == 0
    wait_until(lambda: not segments(name), "every segment is gone")
    assert not [path for path in run_dir.rglob("*") if path.suffix == ".sock"]
