"""A worker outlives its broker: it keeps its model and says what it has to the next one."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from naiad.protocol import messages as m
from naiad.protocol.endpoints import Endpoints
from naiad.shm.page import PageReader
from naiad.worker.exit_codes import ExitCode
from support.fake_worker_broker import IDENTITY_CONFIG, FakeWorkerBroker, fp32_request
from support.waiting import wait_until

PAYLOAD = [os.urandom(64)]


def loaded_worker(run_dir: str, start: Any) -> tuple[FakeWorkerBroker, Any, m.SlotHello]:
    broker = FakeWorkerBroker(run_dir)
    worker = start("--absence-max", "20")
    hello = broker.welcome()
    broker.load()
    return broker, worker, hello


def test_finished_results_are_sent_again_to_the_next_broker(run_dir: str, start: Any) -> None:
    first, _, hello = loaded_worker(run_dir, start)
    for ident in range(1, 7):
        first.send_batch([fp32_request(ident)], PAYLOAD, acknowledged=2 if ident == 6 else 0)
    sent = [first.expect(m.Results) for _ in range(6)]
    first.close()

    with FakeWorkerBroker(run_dir) as second:
        again = second.welcome()
        assert (again.secret, again.pid) == (hello.secret, hello.pid)
        assert again.incarnation == first.incarnation
        assert (again.instance, again.model, again.version) == (7, "echo", 1)
        assert again.held == tuple(
            m.HeldBatch(batch, ((1, batch),), True) for batch in (3, 4, 5, 6)
        )
        second.expect(m.Loaded)
        assert [second.expect(m.Results) for _ in range(4)] == sent[2:]
        second.batch = 100
        second.send_batch([fp32_request(9)], PAYLOAD)
        assert second.expect(m.Results)[0].batch == 101


def test_hello_is_said_while_a_batch_is_executed(run_dir: str, start: Any) -> None:
    """And its results come after the welcome, when it has ended."""
    first, worker, _ = loaded_worker(run_dir, start)
    reader = PageReader.open(Endpoints(run_dir).page_path("s0"))
    first.send_batch([fp32_request(1, parameters={"sleep_ms": 1500})], PAYLOAD)
    first.send_batch([fp32_request(2)], PAYLOAD)
    wait_until(lambda: (reader.read() or (0,))[0] == 1, "the first batch is being executed")
    first.close()

    with FakeWorkerBroker(run_dir) as second:
        hello = second.welcome()
        state = reader.read()
        assert state is not None
        assert state.executing == 1, "hello came only after the execution"
        assert m.HeldBatch(1, ((1, 1),), False) in hello.held
        assert not any(held.finished for held in hello.held)
        second.expect(m.Loaded)
        results, frames = second.expect(m.Results)
        assert (results.batch, frames) == (1, PAYLOAD)
    assert worker.process.poll() is None


def test_hello_is_said_while_a_model_loads(run_dir: str, start: Any) -> None:
    config = {**IDENTITY_CONFIG, "parameters": {"load_ms": {"string_value": "1500"}}}
    first = FakeWorkerBroker(run_dir)
    worker = start()
    first.welcome()
    first.send_load(config)
    wait_until(lambda: b"\1" in _phase(run_dir), "the model is being loaded")
    first.close()
    with FakeWorkerBroker(run_dir) as second:
        hello = second.welcome()
        assert b"\1" in _phase(run_dir), "hello came only after the load"
        assert (hello.instance, hello.model) == (7, "echo")
        loaded, _ = second.expect(m.Loaded)
        assert (loaded.instance, loaded.error) == (7, None)
    assert worker.process.poll() is None


def _phase(run_dir: str) -> bytes:
    state = PageReader.open(Endpoints(run_dir).page_path("s0")).read()
    return b"" if state is None else bytes([state.phase])


def test_results_that_end_while_the_broker_is_away_are_kept(run_dir: str, start: Any) -> None:
    first, _, _ = loaded_worker(run_dir, start)
    reader = PageReader.open(Endpoints(run_dir).page_path("s0"))
    first.send_batch([fp32_request(1, parameters={"sleep_ms": 300})], PAYLOAD)
    wait_until(lambda: (reader.read() or (0,))[0] == 1, "the batch is being executed")
    first.close()
    wait_until(lambda: (reader.read() or (1, 1))[0] == 0, "the batch has ended")
    with FakeWorkerBroker(run_dir) as second:
        second.welcome()
        second.expect(m.Loaded)
        assert second.expect(m.Results)[0].batch == 1


def test_a_connection_that_breaks_off_is_made_anew_with_the_same_broker(
    broker: FakeWorkerBroker, start: Any
) -> None:
    start()
    hello = broker.welcome()
    broker.socket.send_multipart([broker.worker, b"\xc1 garbage"])
    again = broker.welcome()
    assert again.secret == hello.secret
    assert broker.load().message.error is None


def test_a_worker_whose_broker_stays_away_gives_up(run_dir: str, start: Any) -> None:
    with FakeWorkerBroker(run_dir) as broker:
        worker = start("--absence-max", "0.3")
        broker.welcome()
    assert worker.exit_code() == ExitCode.NO_BROKER


def test_a_worker_that_never_finds_a_broker_gives_up(run_dir: str, start: Any) -> None:
    assert start("--absence-max", "0.3").exit_code() == ExitCode.NO_BROKER


def test_term_while_the_broker_is_away(run_dir: str, start: Any) -> None:
    with FakeWorkerBroker(run_dir) as broker:
        worker = start()
        broker.welcome()
    worker.signal(signal.SIGTERM)
    assert worker.exit_code() == ExitCode.STOPPED


def test_without_broker_and_parent_there_is_nothing_to_wait_for(run_dir: str) -> None:
    source = Path(__file__).resolve().parents[3] / "src"
    command = [sys.executable, "-m", "naiad.worker", "--run-dir", run_dir, "--slot", "s0"]
    report = "import subprocess, sys; worker = subprocess.Popen(sys.argv[1:]); worker.wait()"
    with FakeWorkerBroker(run_dir) as broker:
        parent = subprocess.Popen(
            [sys.executable, "-c", report, *command], env={**os.environ, "PYTHONPATH": str(source)}
        )
        worker = broker.welcome().pid
    parent.kill()
    parent.wait(20)
    wait_until(lambda: not _is_running(worker), "the orphan has ended")


def _is_running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"
