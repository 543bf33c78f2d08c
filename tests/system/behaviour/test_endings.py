"""How a server ends: at once when nobody waits, in time when somebody does, never leaving anything.

`serve` checks after each test that no process, socket or segment is left.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import numpy as np
import pytest

from naiad.cli.exit_codes import ExitCode
from naiad.client import Client, Code, NaiadError
from naiad.testing.server import Server, ServerFailed, serve
from support.models import add_echo, add_python
from support.models_python import (
    HANGS_IN_FINALIZE,
    HANGS_IN_INITIALIZE,
    HOLDS,
    TAKES_ITS_TIME_TO_FINALIZE,
    python_model,
)
from support.waiting import wait_until

ARRAYS = {"INPUT0": np.zeros(16, np.float32)}
DRAIN_S = 20.0
AT_ONCE_S = 6.0
"""Far below the drain time; a worker inside a model call has a second to come out of it."""
ASKS_AND_WAITS = """
import os, sys
import numpy as np
from naiad.client import Client

client = Client(sys.argv[1])
arrays = {"INPUT0": np.zeros(16, np.float32)}
client.submit(sys.argv[2], arrays, parameters={"sleep_ms": 60_000})
client.live()
print("asked", flush=True)
sys.stdin.read()
os._exit(0)
"""


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    repository = tmp_path_factory.mktemp("repository")
    add_echo(repository, "echo")
    deaf = python_model("time.sleep(60)\nreturn [output(array_of(one)) for one in requests]")
    add_python(repository, "deaf", deaf)
    add_python(repository, "holds", HOLDS)
    add_python(repository, "hangs", HANGS_IN_INITIALIZE)
    add_python(repository, "never_ends", HANGS_IN_FINALIZE)
    add_python(repository, "leisurely", TAKES_ITS_TIME_TO_FINALIZE)
    return repository


def serving(
    repository: Path, *models: str, drain_s: float = DRAIN_S
) -> AbstractContextManager[Server]:
    arguments = ["--control-mode", "explicit", "--drain-seconds", str(drain_s)]
    for model in models:
        arguments += ["--load-model", model]
    return serve(repository, arguments=arguments)


@contextmanager
def ending_with(code: ExitCode, serving: AbstractContextManager[Server]) -> Iterator[Server]:
    """A server that is to end with this code, which `serve` itself takes for a failure."""
    with (
        pytest.raises(ServerFailed, match=f"ended with exit code {code:d}"),
        serving as server,
    ):
        yield server


@contextmanager
def guest_of(server: Server, model: str) -> Iterator[subprocess.Popen[bytes]]:
    """Another process that waits for an answer; it exits when the block ends."""
    guest = subprocess.Popen(
        [sys.executable, "-c", ASKS_AND_WAITS, str(server.run_dir), model],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )
    with guest:
        assert guest.stdout is not None
        assert guest.stdout.readline() == b"asked\n"
        yield guest


def executing(client: Client, model: str) -> int:
    (row,) = [row for row in client.status()["models"] if row["name"] == model]
    return int(row["executing"])


def test_clients_that_left_before_their_answers_hold_nothing_up(repository: Path) -> None:
    with serving(repository, "echo", "deaf") as server:
        client = server.client()
        for model, going in (("echo", "exit"), ("echo", "kill"), ("deaf", "exit")):
            with guest_of(server, model) as guest:
                wait_until(lambda asked=model: executing(client, asked) == 1, "it executes")  # type: ignore[misc]
                if going == "kill":
                    guest.kill()
            wait_until(lambda: len(client.status()["sessions"]) == 1, "its session has ended")
            if model == "echo":  # this one asks whether it was cancelled
                wait_until(lambda: executing(client, "echo") == 0, "its execution has ended")
        asked = time.monotonic()
        assert server.stop() == ExitCode.DONE
        assert time.monotonic() - asked < AT_ONCE_S


def test_what_is_in_flight_is_answered_before_the_end_and_what_comes_late_is_told_so(
    repository: Path,
) -> None:
    hold = repository / "holds.hold"
    hold.touch()
    with serving(repository, "holds") as server:
        client = server.client()
        running, queued = [client.submit("holds", ARRAYS) for _ in range(2)]
        wait_until(lambda: executing(client, "holds") == 1, "it executes")
        os.kill(server.process.pid, signal.SIGTERM)
        wait_until(lambda: not client.ready(), "it says that it is not ready")
        with pytest.raises(NaiadError, match="Server is stopping") as caught:
            client.infer("holds", ARRAYS)
        assert caught.value.code == Code.DRAINING
        assert caught.value.retryable
        hold.unlink()
        for future in (running, queued):
            assert (future.result(timeout=20)["OUTPUT0"] == ARRAYS["INPUT0"]).all()
        assert server.process.wait(AT_ONCE_S) == ExitCode.DONE


def test_when_the_drain_time_is_over_the_rest_is_told_and_the_exit_code_says_so(
    repository: Path,
) -> None:
    with ending_with(ExitCode.DRAIN_TIMED_OUT, serving(repository, "deaf", drain_s=1)) as server:
        client = server.client()
        future = client.submit("deaf", ARRAYS)
        wait_until(lambda: executing(client, "deaf") == 1, "it executes")
        children = server.pids
        asked = time.monotonic()
        os.kill(server.process.pid, signal.SIGTERM)
        with pytest.raises(NaiadError, match="the server is stopping") as caught:
            future.result(timeout=10)
        assert caught.value.code == Code.DRAINING
        assert server.process.wait(10) == ExitCode.DRAIN_TIMED_OUT
        assert 1 <= time.monotonic() - asked < 4
        assert not any(os.path.exists(f"/proc/{pid}") for pid in children.values())
        assert server.leftovers() == []


def test_a_second_signal_ends_everything_now(repository: Path) -> None:
    with ending_with(ExitCode.INTERRUPTED, serving(repository, "deaf")) as server:
        client = server.client()
        client.submit("deaf", ARRAYS)
        wait_until(lambda: executing(client, "deaf") == 1, "it executes")
        asked = time.monotonic()
        os.kill(server.process.pid, signal.SIGTERM)
        wait_until(lambda: "draining" in server.log, "it drains")
        os.kill(server.process.pid, signal.SIGTERM)
        assert server.process.wait(10) == ExitCode.INTERRUPTED
        assert time.monotonic() - asked < AT_ONCE_S
        assert server.leftovers() == []


def test_a_load_that_hangs_does_not_hold_the_end_up(repository: Path) -> None:
    hang = repository / "hangs.hang"
    hang.touch()
    with serving(repository) as server:
        client = server.client()
        faults: list[NaiadError] = []

        def load() -> None:
            try:
                client.load("hangs")
            except NaiadError as fault:
                faults.append(fault)

        thread = threading.Thread(target=load)
        thread.start()
        wait_until(lambda: client.status()["models"], "it loads")
        asked = time.monotonic()
        os.kill(server.process.pid, signal.SIGTERM)
        assert server.process.wait(DRAIN_S) == ExitCode.DONE
        assert time.monotonic() - asked < AT_ONCE_S
        client.close()
        thread.join(20)
        assert len(faults) == 1
    hang.unlink()


def test_a_finalize_that_hangs_is_ended_by_the_drain_time(repository: Path) -> None:
    with ending_with(
        ExitCode.DRAIN_TIMED_OUT, serving(repository, "never_ends", drain_s=1)
    ) as server:
        asked = time.monotonic()
        assert server.stop() == ExitCode.DRAIN_TIMED_OUT
        assert 1 <= time.monotonic() - asked < AT_ONCE_S
        assert server.leftovers() == []


def test_a_finalize_that_takes_its_time_is_let_finish(repository: Path) -> None:
    done = repository / "leisurely.finalized"
    with serving(repository, "leisurely") as server:
        client = server.client()
        client.unload("leisurely")
        wait_until(done.exists, "its finalize has ended after an unload")
        client.load("leisurely")
        (row,) = [row for row in client.status()["instances"] if row["model"] == "leisurely"]
        os.kill(row["pid"], signal.SIGTERM)
        wait_until(lambda: done.read_text() == "xx", "its finalize has ended after SIGTERM")
        wait_until(lambda: client.model_ready("leisurely"), "the worker was replaced")
        assert "SIGKILL" not in server.log
    assert done.read_text() == "xxx", "its finalize has ended with the server"
