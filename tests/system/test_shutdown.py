"""SIGTERM and SIGKILL at any moment: it ends in time, with the right code, and nothing is left."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from naiad.cli.exit_codes import ExitCode
from naiad.client import Client, Code, NaiadError
from naiad.testing.server import Server, serve
from support.chaos import clients, is_alive
from support.chaos_server import begun, ended, pass_time
from support.repositories import add_identity
from support.waiting import wait_until

DRAIN_S = 8
PROMPT_S = 6.0
"""For an end with nothing to wait for, on a busy machine; far below the drain time."""
START_MOMENTS_S = (0.15, 0.25, 0.35, 0.5, 0.7, 0.9, 1.2, 1.6)
ALL_MOMENTS_S = tuple(number * 0.05 for number in range(60))
VALUES = np.zeros((1, 16), np.float32)


def add_models(repository: Path) -> Path:
    """One that serves at once, and one that takes its time to load."""
    add_identity(repository, "echo", instances=2)
    add_identity(repository, "slow", parameters={"load_ms": 1_500})
    return repository


@pytest.mark.parametrize(
    "moments_s",
    [
        pytest.param(START_MOMENTS_S, id="short"),
        pytest.param(ALL_MOMENTS_S, marks=pytest.mark.soak, id="full"),
    ],
)
def test_at_any_moment_of_the_start(moments_s: tuple[float, ...], tmp_path: Path) -> None:
    """Python starts, the broker starts, workers start, one model is ready, another loads."""
    add_models(tmp_path / "repository")
    for number, moment_s in enumerate(moments_s):
        run_dir = tmp_path / f"run{number}"
        with begun(tmp_path / "repository", run_dir, f"test-{os.getpid()}-{number}") as server:
            pass_time(moment_s, server)
            server.process.send_signal(signal.SIGTERM)
            code, took_s = ended(server)
            said = f"{moment_s} s after its start: {code} in {took_s:.2f} s:\n{server.log}"
            if code == -signal.SIGTERM:  # before it could say what a signal means to it
                assert not (run_dir / "serve.lock").exists(), said
            else:
                assert code == 0, said
            assert took_s < PROMPT_S, said
            assert server.leftovers() == [], said


def stop_in_time(server: Server, code: int = 0, within_s: float = PROMPT_S) -> None:
    """SIGTERM now; `serve` looks for leftovers."""
    server.process.send_signal(signal.SIGTERM)
    found, took_s = ended(server)
    assert found == code, server.log
    assert took_s < within_s


def worker(server: Server, model: str) -> int:
    for row in server.client().status()["instances"]:
        if row["model"] == model and row["state"] in ("READY", "BUSY"):
            return int(row["pid"])
    raise AssertionError(f"no worker of {model}")


def nothing(server: Server) -> None:
    """Idle."""


def kill_a_worker(server: Server) -> None:
    os.kill(worker(server, "echo"), signal.SIGKILL)


def stop_a_worker(server: Server) -> None:
    """SIGSTOP: whoever waits for it to end by itself waits for ever."""
    os.kill(worker(server, "echo"), signal.SIGSTOP)


def stop_every_worker(server: Server) -> None:
    for slot, pid in server.pids.items():
        if slot.startswith("cpu-"):
            os.kill(pid, signal.SIGSTOP)


def kill_the_broker(server: Server) -> None:
    os.kill(server.pids["broker"], signal.SIGKILL)


def kill_the_broker_and_let_it_recover_halfway(server: Server) -> None:
    kill_the_broker(server)
    wait_until(lambda: "broker" in server.pids, "the next broker")


def kill_everybody(server: Server) -> None:
    for slot, pid in server.pids.items():
        if slot != "supervisor":
            os.kill(pid, signal.SIGKILL)


@pytest.mark.parametrize(
    "happens",
    [
        nothing,
        kill_a_worker,
        stop_a_worker,
        stop_every_worker,
        kill_the_broker,
        kill_the_broker_and_let_it_recover_halfway,
        kill_everybody,
    ],
)
def test_right_after_something_happened(happens: Callable[[Server], None], tmp_path: Path) -> None:
    add_identity(tmp_path, "echo")
    with serve(tmp_path, arguments=["--drain-seconds", str(DRAIN_S)]) as server:
        happens(server)
        stop_in_time(server)


@pytest.mark.parametrize("happens", [nothing, kill_a_worker, kill_the_broker])
def test_under_load_every_request_is_answered_or_told_of_the_stop(
    happens: Callable[[Server], None], tmp_path: Path
) -> None:
    """Each request that was taken has its answer before the broker is gone."""
    add_identity(tmp_path, "echo", instances=2, parameters={"sleep_ms": 2})
    arguments = ["--drain-seconds", str(DRAIN_S)]
    outcomes: list[Code | None] = []
    with serve(tmp_path, arguments=arguments) as server:
        client = Client(str(server.run_dir), connect_timeout_s=1.0)
        asking = threading.Event()

        def ask() -> None:
            while True:
                try:
                    client.infer("echo", {"INPUT0": VALUES})
                    outcomes.append(None)
                    asking.set()
                except NaiadError as fault:
                    outcomes.append(fault.code)
                    if fault.code is Code.CONNECTION_LOST:
                        return

        threads = [threading.Thread(target=ask) for _ in range(4)]
        for thread in threads:
            thread.start()
        assert asking.wait(20)
        happens(server)
        stop_in_time(server)
        for thread in threads:
            thread.join()
        client.close()
    assert set(outcomes) <= {None, Code.DRAINING, Code.CONNECTION_LOST}
    print(f"{outcomes.count(None)} answered, {outcomes.count(Code.DRAINING)} told of the stop")


@pytest.mark.parametrize("trouble", ["sleep_ms", "spin_ms"])
def test_an_execution_that_hangs_is_given_up_after_the_drain_time(
    trouble: str, tmp_path: Path
) -> None:
    """A request of a minute, three seconds of drain: the exit code tells."""
    add_identity(tmp_path / "repository", "echo")
    arguments = ["--drain-seconds", "3"]
    with begun(tmp_path / "repository", tmp_path / "r", f"test-{os.getpid()}", arguments) as server:
        server.wait_ready()
        client = server.client()
        asked = client.submit("echo", {"INPUT0": VALUES}, parameters={trouble: 60_000})
        wait_until(lambda: client.status()["models"][0]["executing"] == 1, "it is being executed")
        server.process.send_signal(signal.SIGTERM)
        code, took_s = ended(server)
        assert code == ExitCode.DRAIN_TIMED_OUT
        assert 2.5 < took_s < 3.0 + PROMPT_S
        fault = asked.exception(10.0)
        assert isinstance(fault, NaiadError)
        assert fault.code in (Code.DRAINING, Code.CONNECTION_LOST)
        client.close()
        assert server.leftovers() == []


def test_a_second_signal_ends_everything_at_once(tmp_path: Path) -> None:
    add_identity(tmp_path / "repository", "echo")
    with begun(tmp_path / "repository", tmp_path / "r", f"test-{os.getpid()}") as server:
        server.wait_ready()
        client = server.client()
        client.submit("echo", {"INPUT0": VALUES}, parameters={"spin_ms": 60_000})
        wait_until(lambda: client.status()["models"][0]["executing"] == 1, "it is being executed")
        server.process.send_signal(signal.SIGTERM)
        wait_until(lambda: "draining" in server.log, "the drain begins")
        server.process.send_signal(signal.SIGTERM)
        code, took_s = ended(server)
        assert code == ExitCode.INTERRUPTED
        assert took_s < PROMPT_S
        client.close()
        assert server.leftovers() == []


def all_dead(pids: list[int]) -> bool:
    return not any(is_alive(pid) for pid in pids)


@pytest.mark.parametrize(
    "kills", [pytest.param(3, id="short"), pytest.param(20, marks=pytest.mark.soak, id="full")]
)
def test_a_killed_server_takes_its_children_along_and_the_next_serves_what_it_is_told(
    kills: int, tmp_path: Path
) -> None:
    """Under load, started again at once in the same place, each time with another model."""
    name = f"test-{os.getpid()}"
    for number in range(kills):
        repository = tmp_path / f"repository{number}"
        model = f"echo{number}"
        add_identity(repository, model, instances=2, parameters={"sleep_ms": 1})
        with begun(repository, tmp_path / "r", name) as server:
            client = server.client(connect_timeout_s=60.0)
            wait_until(client.ready, "it serves")
            assert [row["name"] for row in client.index()] == [model]
            asked = [client.submit(model, {"INPUT0": VALUES}) for _ in range(50)]
            assert asked[0].exception(60.0) is None
            children = [pid for slot, pid in server.pids.items() if slot != "supervisor"]
            server.process.kill()
            server.process.wait()
            client.close()
            wait_until(partial(all_dead, children), "the end of its children")
    with begun(repository, tmp_path / "r", name) as server:
        wait_until(server.client().ready, "it serves")
        with clients(server, model, count=1) as tallies:
            pass
        assert tallies[0].failed == 0
        stop_in_time(server)
        assert server.leftovers() == []
