"""After a storm, what the server has counted agrees with what its clients have written down.

HTTP, gRPC and native clients ask, some vanish in the middle; workers, gateways and the broker are
killed. Then, for each request that was sent there is one right answer, an answer that says no, or a
connection that broke; and of one broker's life

* the requests counted as successful are all that were answered, and at most those whose connection
  broke or whose client vanished besides (so exactly as many when nothing is killed and all stay);
* statistics and metrics say the same, in each of their forms;
* nothing waits, nothing runs.

The short forms are part of every run of the suite; `make soak` runs the full ones.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from naiad.testing.server import Server, serve
from support.chaos import clients
from support.chaos_client import Tally
from support.chaos_server import ENVIRONMENT
from support.chaos_wire import Ledger
from support.exposition import parsed, total
from support.repositories import add_identity
from support.waiting import wait_until

SHORT_S, FULL_S = 4.0, 90.0
PATIENCE_S = 60.0
LOOK_S = 0.05
PORTS = ["--http-port", "0", "--grpc-port", "0", "--metrics-port", "0", "--gateways", "2"]


@contextmanager
def wire_clients(server: Server, *, vanish: bool, count: int = 2) -> Iterator[list[Ledger]]:
    """The list is filled with their ledgers at the end of the with block."""
    ledgers: list[Ledger] = []
    processes = [
        subprocess.Popen(
            [
                *(sys.executable, "-m", "support.chaos_wire"),
                *(server.http_url, server.grpc_target, str(100 + index), str(int(vanish))),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=ENVIRONMENT,
            text=True,
        )
        for index in range(count)
    ]
    try:
        for process in processes:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
        yield ledgers
        for process in processes:
            out, _ = process.communicate(timeout=PATIENCE_S)
            assert process.returncode == 0
            ledgers.append(Ledger(**json.loads(out.splitlines()[-1])))
    finally:
        for process in processes:
            process.kill()
            process.communicate()


class Storm:
    """Kills one process of these kinds every so often."""

    def __init__(self, server: Server, kinds: tuple[str, ...], every_s: float) -> None:
        self._server = server
        self._kinds = kinds
        self._every_s = every_s
        self._chance = random.Random(1)
        self.kills = dict.fromkeys(kinds, 0)

    def run(self, seconds: float) -> None:
        """Each kind in its turn."""
        end = time.monotonic() + seconds
        due = time.monotonic() + self._every_s
        turn = 0
        while (now := time.monotonic()) < end:
            if self._kinds and now >= due:
                due += self._every_s
                self._kill(self._kinds[turn % len(self._kinds)])
                turn += 1
            time.sleep(LOOK_S)

    def _kill(self, kind: str) -> None:
        found = [pid for name, pid in self._server.pids.items() if name.startswith(kind)]
        if found:
            os.kill(self._chance.choice(found), signal.SIGKILL)
            self.kills[kind] += 1


CASES = [
    pytest.param((), id="calm"),
    pytest.param(("cpu-", "gateway-"), id="workers-gateways"),
    pytest.param(("cpu-", "gateway-", "broker"), id="broker-too"),
]


@pytest.mark.parametrize("kinds", CASES)
@pytest.mark.parametrize("seconds", [SHORT_S, pytest.param(FULL_S, marks=pytest.mark.soak)])
def test_ledgers_agree(seconds: float, kinds: tuple[str, ...], tmp_path: Path) -> None:
    add_identity(
        tmp_path, "echo", instances=2, max_batch_size=8, parameters={"sleep_ms": 1},
        extra="dynamic_batching { }",
    )  # fmt: skip
    with serve(tmp_path, arguments=PORTS) as server:
        storm = Storm(server, kinds, every_s=1.2)
        with (
            clients(server, "echo", count=2) as tallies,
            wire_clients(server, vanish=bool(kinds)) as ledgers,
        ):
            storm.run(seconds)
        wait_until(lambda: is_at_rest(server), "rest", PATIENCE_S)
        print(f"\n  kills {storm.kills}")
        check_clients(tallies, ledgers, is_calm=not kinds)
        check_counts(server, tallies, ledgers, has_one_broker="broker" not in kinds)
        assert all(storm.kills.values())


def is_at_rest(server: Server) -> bool:
    """Every instance is back, nothing waits, and no cancelled request still runs."""
    status = server.client().status()
    (model,) = status["models"]
    states = [row["state"] for row in status["instances"] if row["model"] == "echo"]
    return (model["queued"], model["executing"], states) == (0, 0, ["READY", "READY"])


def check_clients(tallies: list[Tally], ledgers: list[Ledger], *, is_calm: bool) -> None:
    """Native clients lose nothing; of the others only connections of killed gateways break."""
    for tally in tallies:
        assert (tally.errors, tally.failed, tally.wrong) == ([], 0, 0)
        assert tally.right == tally.sent
    for ledger in ledgers:
        print(f"  {ledger}")
        assert (ledger.errors, ledger.failed, ledger.wrong) == ([], 0, 0)
        assert ledger.sent == ledger.right + ledger.broken + ledger.vanished
        assert ledger.broken == 0 or not is_calm


def check_counts(
    server: Server, tallies: list[Tally], ledgers: list[Ledger], *, has_one_broker: bool
) -> None:
    answered = sum(one.right for one in tallies) + sum(one.right for one in ledgers)
    unknown = sum(ledger.broken + ledger.vanished for ledger in ledgers)
    (told,) = server.client().statistics("echo")["model_stats"]
    success = told["inference_stats"]["success"]["count"]
    print(f"  answered {answered}, counted {success}, unknown to clients {unknown}")
    assert success <= answered + unknown
    if has_one_broker:
        assert success >= answered
    found = parsed(urllib.request.urlopen(server.metrics_url).read())

    def value(name: str) -> float:
        return total(found, name, model="echo", version="1")

    assert told["inference_count"] == success  # a row each
    assert value("nv_inference_request_success") == value("nv_inference_count") == success
    assert value("naiad_request_seconds_count") == value("naiad_queue_seconds_count") == success
    executions = told["execution_count"]
    assert value("nv_inference_exec_count") == value("naiad_executions_total") == executions
    assert value("naiad_compute_seconds_count") == value("naiad_batch_rows_count") == executions
    assert value("naiad_batches_total") == executions
    assert sum(row["compute_infer"]["count"] for row in told["batch_stats"]) == executions
    failures = told["inference_stats"]["fail"]["count"]
    assert value("nv_inference_request_failure") == failures
    assert value("naiad_request_failures_total") == failures <= unknown
    assert value("nv_inference_pending_request_count") == value("naiad_executing_requests") == 0
