"""Processes die one after the other while eight client processes ask: nothing is lost.

The short forms are part of every run of the suite; `make soak` runs the full ones. Counts are
asserted and times are printed, because other work on the machine may delay anything.
"""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path

import numpy as np
import pytest

from naiad.client import Client, Code, NaiadError
from naiad.protocol.messages import Parameters
from naiad.testing.server import Server, serve
from support.chaos import WORKER_WAYS, Report, Way, clients, rage
from support.chaos_journal import Executions, add_journal
from support.repositories import add_identity
from support.waiting import wait_until

FULL = pytest.param(60.0, 2.0, 10.0, marks=pytest.mark.soak, id="full")
SHORT = pytest.param(6.0, 0.7, 2.5, id="short")
BATCH_MAX = 4
SHARED_VALUES = 65_536
"""256 KiB a tensor: long enough to be killed, or stopped, in the middle of writing one."""
DEATHS_PER_POISON_MAX = 3
"""One in company, if there was any, and two alone."""


def add_echo(repository: Path, instances: int, dims: str = "16") -> None:
    """Executions of at most 4 ms: one per request of a batch."""
    folder = add_identity(
        repository,
        "echo",
        instances=instances,
        max_batch_size=BATCH_MAX,
        parameters={"sleep_ms": 1},
        extra="dynamic_batching { }",
    )
    config = folder / "config.pbtxt"
    config.write_text(config.read_text().replace("dims: [ 16 ]", f"dims: [ {dims} ]"))


def check_nothing_lost(report: Report) -> None:
    """Every request has one right answer."""
    print(f"\n{report.table()}")
    assert report.errors() == []
    assert report.sum("failed") == report.sum("wrong") == report.sum("trespasses") == 0
    assert report.sum("right") == report.sum("sent") > 0
    assert len(report.tallies) == 8


def check_deaths(report: Report) -> None:
    """Every death is counted under its reason, and nothing was executed again without one."""
    deaths = report.deaths
    suicides = report.count(Way.EXIT)
    # A worker that the busy machine kept silent for too long may have died of that just before.
    silenced = deaths["killed: it stopped answering"] - report.count(Way.STOP)
    assert report.count(Way.KILL) - silenced <= deaths["SIGKILL"] <= report.count(Way.KILL)
    assert report.count(Way.SEGV) - silenced <= deaths["SIGSEGV"] <= report.count(Way.SEGV)
    assert suicides * 2 <= deaths["exit code 77"] <= suicides * DEATHS_PER_POISON_MAX
    assert silenced >= 0
    assert set(deaths) <= {"SIGKILL", "SIGSEGV", "exit code 77", "killed: it stopped answering"}
    assert report.poisoned == suicides
    assert set(report.reexecutions) <= {"worker_died"}
    assert report.reexecutions["worker_died"] <= BATCH_MAX * deaths.total()


@pytest.mark.parametrize("instances", [2, 1])
@pytest.mark.parametrize(("seconds", "worker_every_s", "broker_every_s"), [SHORT, FULL])
def test_workers_die_in_four_ways(
    instances: int, seconds: float, worker_every_s: float, broker_every_s: float, tmp_path: Path
) -> None:
    """With one instance requests wait for the next one."""
    add_echo(tmp_path, instances)
    with serve(tmp_path) as server:
        report = rage(
            server,
            "echo",
            title=f"{instances} instances, workers die every {worker_every_s:g} s",
            seconds=seconds,
            worker_every_s=worker_every_s,
        )
        check_nothing_lost(report)
        check_deaths(report)
        assert all(report.count(way) for way in WORKER_WAYS)
        assert gauges(server) == (0, 0)


@pytest.mark.parametrize("instances", [2, 1])
@pytest.mark.parametrize(("seconds", "worker_every_s", "broker_every_s"), [SHORT, FULL])
def test_workers_die_and_so_does_the_broker(
    instances: int, seconds: float, worker_every_s: float, broker_every_s: float, tmp_path: Path
) -> None:
    add_echo(tmp_path, instances)
    with serve(tmp_path) as server:
        report = rage(
            server,
            "echo",
            title=f"{instances} instances, the broker dies every {broker_every_s:g} s as well",
            seconds=seconds,
            worker_every_s=worker_every_s,
            broker_every_s=broker_every_s,
        )
        check_nothing_lost(report)
        assert report.count(Way.BROKER) >= 2
        assert gauges(server) == (0, 0)


@pytest.mark.parametrize("broker_dies", [False, True], ids=["workers", "broker"])
@pytest.mark.parametrize(("seconds", "worker_every_s", "broker_every_s"), [SHORT, FULL])
def test_with_tensors_in_shared_memory_nobody_writes_where_he_should_not(
    broker_dies: bool,
    seconds: float,
    worker_every_s: float,
    broker_every_s: float,
    tmp_path: Path,
) -> None:
    """Each place is used again for the next request, with canaries around it."""
    add_echo(tmp_path, 2, dims="-1")
    with serve(tmp_path) as server:
        report = rage(
            server,
            "echo",
            title=f"shared memory, the broker {'dies' if broker_dies else 'lives'}",
            seconds=seconds,
            worker_every_s=worker_every_s,
            broker_every_s=broker_every_s if broker_dies else None,
            values=SHARED_VALUES,
            transport="shm",
        )
        check_nothing_lost(report)
        if not broker_dies:
            check_deaths(report)
        assert gauges(server) == (0, 0)


@pytest.mark.parametrize(("seconds", "worker_every_s", "broker_every_s"), [SHORT, FULL])
def test_only_what_died_is_executed_again(
    seconds: float, worker_every_s: float, broker_every_s: float, tmp_path: Path
) -> None:
    """The workers' own journal: each execution before the last one ended with its process."""
    journal = tmp_path / "journal"
    add_journal(tmp_path / "repository", journal)
    with serve(tmp_path / "repository") as server:
        report = rage(
            server,
            "journal",
            title="a model that keeps a journal",
            seconds=seconds,
            worker_every_s=worker_every_s,
        )
        check_nothing_lost(report)
        check_deaths(report)
        dead = {int(pid) for pid in re.findall(r"worker \S+ pid (\d+) .* died: ", server.log)}
        executions = Executions(journal)
        assert executions.without_a_death(dead) == []
        assert executions.repeated_count <= report.reexecutions["worker_died"]


def test_a_worker_that_pauses_briefly_is_left_alone(tmp_path: Path) -> None:
    """Less than the heartbeat's patience is no death, and costs nothing but the time."""
    add_echo(tmp_path, 1)
    with serve(tmp_path) as server, clients(server, "echo", count=2) as tallies:
        client = server.client()
        (pid,) = [row["pid"] for row in client.status()["instances"] if row["model"] == "echo"]
        os.kill(pid, signal.SIGSTOP)
        before = executed(client)
        os.kill(pid, signal.SIGCONT)
        wait_until(lambda: executed(client) > before + 100, "a hundred more executions")
        assert client.status()["counters"]["worker_deaths"] == {}
    assert [tally.failed for tally in tallies] == [0, 0]


def test_a_poison_request_fails_alone(tmp_path: Path) -> None:
    """It takes its batch down; its neighbours succeed, and it is named for what it is."""
    add_identity(
        tmp_path,
        "echo",
        max_batch_size=8,
        extra="dynamic_batching { max_queue_delay_microseconds: 2000000 }",
    )
    with serve(tmp_path) as server:
        client = server.client()
        asked = []
        for number in range(8):
            values = np.full((1, 16), number, np.float32)
            trouble: Parameters = {"segfault": True} if number == 3 else {}
            asked.append(client.submit("echo", {"INPUT0": values}, parameters=trouble))
        for number, future in enumerate(asked):
            if number != 3:
                assert (future.result(60.0)["OUTPUT0"] == number).all()
        fault = asked[3].exception(60.0)
        assert isinstance(fault, NaiadError)
        assert fault.code is Code.POISON_REQUEST
        assert not fault.retryable
        assert "SIGSEGV" in fault.message
        counters = client.status()["counters"]
        assert counters["poison_requests"] == 1
        assert counters["worker_deaths"] == {"SIGSEGV": DEATHS_PER_POISON_MAX}
        # Eight suspects of the first death; the guilty one once more, after its second.
        assert counters["reexecutions"] == {"worker_died": 9}
        wait_until(lambda: client.model_ready("echo"), "the next worker")


def executed(client: Client) -> int:
    """Requests that have succeeded."""
    (found,) = client.statistics()["model_stats"]
    return int(found["inference_count"])


def gauges(server: Server) -> tuple[int, int]:
    """(queued, executing) of the only model."""
    (model,) = server.client().status()["models"]
    return model["queued"], model["executing"]
