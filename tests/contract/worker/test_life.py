"""A worker's life before a fake broker: hello, load, batches, stop; and every kind of death."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from naiad.protocol import messages as m
from naiad.protocol.codec import encode
from naiad.protocol.endpoints import Endpoints
from naiad.protocol.errors import Code
from naiad.shm.page import PageReader, Phase
from naiad.worker.exit_codes import ExitCode
from support.fake_worker_broker import (
    IDENTITY_CONFIG,
    PATIENCE_S,
    FakeWorkerBroker,
    fp32_request,
)
from support.waiting import wait_until

PAYLOAD = [os.urandom(64)]


def wait_until_executing(run_dir: str) -> None:
    reader = PageReader.open(Endpoints(run_dir).page_path("s0"))
    wait_until(lambda: (reader.read() or (0,))[0], "a batch is being executed")
    reader.close()


def config(**parameters: str) -> dict[str, Any]:
    values = {name: {"string_value": value} for name, value in parameters.items()}
    return {**IDENTITY_CONFIG, "parameters": values}


def test_hello_load_batch_stop(broker: FakeWorkerBroker, start: Any, run_dir: str) -> None:
    worker = start("--device", "gpu:GPU-1", slot="gpu-0")
    hello = broker.welcome()
    assert (hello.slot, hello.device, hello.pid) == ("gpu-0", "gpu:GPU-1", worker.pid)
    assert "identity" in hello.backends
    assert (hello.instance, hello.model, hello.held, hello.arenas) == (0, "", (), ())

    loaded = broker.load()
    assert loaded.message.error is None
    assert json.loads(loaded.payload[0]) == IDENTITY_CONFIG

    batch = broker.send_batch([fp32_request(4)], PAYLOAD)
    results, frames = broker.expect(m.Results)
    assert (results.batch, results.splits, frames) == (batch, 0, PAYLOAD)
    assert results.results[0].outputs == (m.Tensor("OUTPUT0", "FP32", (1, 16), 0, 0, 0, 64),)

    reader = PageReader.open(Endpoints(run_dir).page_path("gpu-0"))
    wait_until(lambda: (reader.read() or (0, 0, 0))[2], "the execution is counted")
    page = reader.read()
    assert page is not None
    assert (page.executing, page.executions, page.phase) == (0, 1, Phase.READY)
    assert page.pid == worker.pid

    broker.send(m.Stop(5000))
    assert worker.exit_code() == ExitCode.STOPPED
    ended = PageReader.open(Endpoints(run_dir).page_path("gpu-0")).read()
    assert ended is not None
    assert ended.phase == Phase.DONE


def test_what_is_there_is_finished_before_a_stop(broker: FakeWorkerBroker, start: Any) -> None:
    worker = start()
    broker.welcome()
    broker.load(config(sleep_ms="100"))
    for ident in (1, 2):
        broker.send_batch([fp32_request(ident)], PAYLOAD)
    broker.send(m.Stop(5000))
    assert [broker.expect(m.Results)[0].batch for _ in (1, 2)] == [1, 2]
    assert worker.exit_code() == ExitCode.STOPPED


def test_term_drains_and_a_second_term_ends_at_once(
    broker: FakeWorkerBroker, start: Any, run_dir: str
) -> None:
    worker = start()
    broker.welcome()
    broker.load()
    broker.send_batch([fp32_request(1, parameters={"sleep_ms": 60_000})], PAYLOAD)
    wait_until_executing(run_dir)
    worker.signal(signal.SIGTERM)
    with pytest.raises(subprocess.TimeoutExpired):
        worker.process.wait(0.2)
    worker.signal(signal.SIGTERM)
    assert worker.exit_code() == ExitCode.STOPPED_NOW


def test_term_of_an_idle_worker(broker: FakeWorkerBroker, start: Any) -> None:
    worker = start()
    broker.welcome()
    worker.signal(signal.SIGTERM)
    assert worker.exit_code() == ExitCode.STOPPED


def test_the_end_of_the_grace_ends_a_busy_worker(
    broker: FakeWorkerBroker, start: Any, run_dir: str
) -> None:
    worker = start("--grace", "0.2")
    broker.welcome()
    broker.load()
    broker.send_batch([fp32_request(1, parameters={"sleep_ms": 60_000})], PAYLOAD)
    wait_until_executing(run_dir)
    worker.signal(signal.SIGTERM)
    assert worker.exit_code() == ExitCode.STOPPED_NOW
    assert "the grace is over" in worker.log()


def test_ctrl_c_is_the_supervisors_business(broker: FakeWorkerBroker, start: Any) -> None:
    worker = start("--die-with-parent")
    broker.welcome()
    worker.signal(signal.SIGINT)
    broker.load()
    broker.send_batch([fp32_request(1)], PAYLOAD)
    broker.expect(m.Results)
    assert worker.process.poll() is None


def test_ctrl_c_of_a_worker_started_by_hand_drains(broker: FakeWorkerBroker, start: Any) -> None:
    worker = start()
    broker.welcome()
    worker.signal(signal.SIGINT)
    assert worker.exit_code() == ExitCode.STOPPED


@pytest.mark.parametrize(
    ("parameters", "status"),
    [
        ({"exit": 3}, 3),
        ({"segfault": True}, -signal.SIGSEGV),
        ({"abort": True}, -signal.SIGABRT),
    ],
)
def test_a_death_leaves_the_batch_on_the_page_and_the_stack_in_its_file(
    broker: FakeWorkerBroker, start: Any, run_dir: str, parameters: Any, status: int
) -> None:
    worker = start()
    broker.welcome()
    broker.load()
    broker.send_batch([fp32_request(1)], PAYLOAD)
    broker.expect(m.Results)
    deadly = broker.send_batch([fp32_request(2, parameters=parameters)], PAYLOAD)
    assert worker.exit_code() == status
    page = PageReader.open(Endpoints(run_dir).page_path("s0")).read()
    assert page is not None
    assert (page.executing, page.executions) == (deadly, 1)
    stack = Path(Endpoints(run_dir).stack_path("s0")).read_text()
    assert ("identity.py" in stack) == (status < 0)


def test_a_death_between_the_execution_and_its_answer_leaves_the_batch_on_the_page(
    broker: FakeWorkerBroker, start: Any, run_dir: str, tmp_path: Path
) -> None:
    """Here of a model that closes descriptors that are not its own."""
    (tmp_path / "1").mkdir()
    (tmp_path / "1" / "model.py").write_text(
        "import os\nimport triton_python_backend_utils as pb_utils\n"
        "class TritonPythonModel:\n"
        "    def execute(self, requests):\n"
        "        os.closerange(3, 1000)\n"
        "        return [pb_utils.InferenceResponse([pb_utils.Tensor('OUTPUT0',\n"
        "            one.inputs()[0].as_numpy())]) for one in requests]\n"
    )
    worker = start()
    broker.welcome()
    broker.load({**IDENTITY_CONFIG, "backend": "python"}, directory=str(tmp_path))
    deadly = broker.send_batch([fp32_request(1)], PAYLOAD)
    assert worker.exit_code() == -signal.SIGABRT
    page = PageReader.open(Endpoints(run_dir).page_path("s0")).read()
    assert page is not None
    assert (page.executing, page.executions) == (deadly, 0)


def test_usr1_writes_the_stacks_of_a_busy_worker(
    broker: FakeWorkerBroker, start: Any, run_dir: str
) -> None:
    worker = start()
    broker.welcome()
    broker.load()
    broker.send_batch([fp32_request(1, parameters={"spin_ms": 60_000})], PAYLOAD)
    wait_until_executing(run_dir)
    stack = Path(Endpoints(run_dir).stack_path("s0"))

    def is_written() -> bool:
        worker.signal(signal.SIGUSR1)  # the first may come before the model spins
        return "_spin" in stack.read_text()

    wait_until(is_written, "the stack is written")


def test_a_model_that_raises_fails_its_request_alone(broker: FakeWorkerBroker, start: Any) -> None:
    worker = start()
    broker.welcome()
    broker.load()
    bad = fp32_request(2, parameters={"raise": "bad luck"})
    broker.send_batch([fp32_request(1), bad, fp32_request(3)], PAYLOAD)
    results, _ = broker.expect(m.Results)
    assert [result.error is None for result in results.results] == [True, False, True]
    assert results.results[1].error == (Code.MODEL_ERROR, "ValueError: bad luck", False)
    assert results.splits > 0
    assert "naiad-worker[echo_0] error: request r2: ValueError: bad luck" in worker.log()
    assert 'raise ValueError(str(wanted["raise"]))' in worker.log()


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ("name", "output 'OUTPUT0', got only ['NOT_AN_OUTPUT']"),
        ("datatype", "output 'OUTPUT0': expected FP32 [1, 16], got INT64 [1, 16]"),
        ("shape", "output 'OUTPUT0': expected FP32 [1, 16], got FP32 [1, 16, 7]"),
        ("size", "output 'OUTPUT0': expected 64 bytes for FP32 [1, 16], got 65"),
        ("missing", "expected output 'OUTPUT0', got only []"),
        ("count", "expected 1 responses, one for each request, got 0"),
    ],
)
def test_outputs_that_do_not_fit_the_config(
    broker: FakeWorkerBroker, start: Any, fault: str, said: str
) -> None:
    start()
    broker.welcome()
    broker.load()
    broker.send_batch([fp32_request(1, parameters={"output_fault": fault})], PAYLOAD)
    error = broker.expect(m.Results)[0].results[0].error
    assert error is not None
    assert error[0] == Code.MODEL_OUTPUT_INVALID
    assert said in error[1]


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        (config(fail_load="no weights"), "model 'echo' version 1 did not load: no weights"),
        ({**IDENTITY_CONFIG, "backend": "openvino"}, "no backend 'openvino'"),
        ({**IDENTITY_CONFIG, "input": 7}, "input: expected list, got int"),
    ],
)
def test_a_failed_load_is_reported_with_its_traceback_and_ends_the_worker(
    broker: FakeWorkerBroker, start: Any, changed: dict[str, Any], said: str
) -> None:
    worker = start()
    broker.welcome()
    failed = broker.load(changed)
    assert failed.message.error[0] == Code.LOAD_FAILED
    assert said in failed.message.error[1]
    assert b"Traceback" in failed.payload[0]
    assert worker.exit_code() == ExitCode.LOAD_FAILED


EXITS_AS_TEXT = """
class Fault(Exception):
    def __str__(self):
        raise SystemExit(5)
"""


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("raise ValueError('label \\ud800')", "ValueError: label \\ud800 (1/model.py:1)"),
        (f"{EXITS_AS_TEXT}raise Fault()", "(its text cannot be had, because its __str__ raises"),
        (
            f"{EXITS_AS_TEXT}class TritonPythonModel:\n"
            "    def auto_complete_config(config): raise Fault()\n    def execute(self): pass",
            "(its text cannot be had, because its __str__ raises",
        ),
        (
            "class TritonPythonModel:\n    def execute(self): pass\n"
            "    def auto_complete_config(config):\n"
            "        config.as_dict()['note'] = '\\udc80'\n        return config",
            "auto_complete_config: expected values that JSON in UTF-8 can hold",
        ),
    ],
)
def test_a_load_that_fails_without_a_usable_text_is_reported_all_the_same(
    broker: FakeWorkerBroker, start: Any, tmp_path: Path, source: str, said: str
) -> None:
    (tmp_path / "1").mkdir()
    (tmp_path / "1" / "model.py").write_text(source)
    worker = start()
    broker.welcome()
    failed = broker.load({**IDENTITY_CONFIG, "backend": "python"}, directory=str(tmp_path))
    assert failed.message.error[0] == Code.LOAD_FAILED
    assert said in failed.message.error[1]
    assert b"Traceback" in failed.payload[0]
    assert worker.exit_code() == ExitCode.LOAD_FAILED


@pytest.mark.parametrize("fault", ["Fault()", "SystemExit(6)", "ValueError('\\ud800')"])
def test_whatever_finalize_raises_the_worker_ends_as_it_should(
    broker: FakeWorkerBroker, start: Any, tmp_path: Path, fault: str
) -> None:
    (tmp_path / "1").mkdir()
    (tmp_path / "1" / "model.py").write_text(
        f"{EXITS_AS_TEXT}class TritonPythonModel:\n    def execute(self, requests): pass\n"
        f"    def finalize(self): raise {fault}"
    )
    worker = start()
    broker.welcome()
    broker.load({**IDENTITY_CONFIG, "backend": "python"}, directory=str(tmp_path))
    broker.send(m.Stop(5000))
    assert worker.exit_code() == ExitCode.STOPPED
    assert "unloading failed" in worker.log()


def test_an_aborting_atexit_handler_does_not_spoil_a_clean_end(
    broker: FakeWorkerBroker, start: Any, tmp_path: Path
) -> None:
    (tmp_path / "sitecustomize.py").write_text("import atexit, os\natexit.register(os.abort)\n")
    source = Path(__file__).resolve().parents[3] / "src"
    worker = start(PYTHONPATH=f"{tmp_path}:{source}")
    broker.welcome()
    broker.load()
    broker.send(m.Stop(5000))
    assert worker.exit_code() == ExitCode.STOPPED


def test_threads_of_the_engine_are_set_before_the_model_is_imported(
    broker: FakeWorkerBroker, start: Any, tmp_path: Path
) -> None:
    (tmp_path / "1").mkdir()
    (tmp_path / "1" / "model.py").write_text(
        "import os\nraise RuntimeError('threads ' + os.environ['OMP_NUM_THREADS'])\n"
    )
    worker = start(OMP_NUM_THREADS="7")
    broker.welcome()
    config = {**IDENTITY_CONFIG, "backend": "python"}
    error = broker.load(config, directory=str(tmp_path), threads=3).message.error
    assert "RuntimeError: threads 3" in error[1]
    assert "1/model.py:2" in error[1]
    assert worker.exit_code() == ExitCode.LOAD_FAILED


def test_a_slot_that_is_not_wanted_goes_away(broker: FakeWorkerBroker, start: Any) -> None:
    worker = start()
    broker.welcome(keep=False)
    assert worker.exit_code() == ExitCode.STOPPED


def test_a_refused_worker_says_why(broker: FakeWorkerBroker, start: Any) -> None:
    worker = start()
    broker.expect(m.SlotHello)
    broker.send(m.Refused(Code.VERSION_MISMATCH, "you speak 1, I speak 2"))
    assert worker.exit_code() == ExitCode.REFUSED
    assert "you speak 1, I speak 2" in worker.log()


def test_a_broker_of_another_version_ends_it(broker: FakeWorkerBroker, start: Any) -> None:
    worker = start()
    broker.expect(m.SlotHello)
    header = encode(m.SlotWelcome(1, "fake", True))
    broker.socket.send_multipart([broker.worker, header[:1] + b"\x09" + header[2:]])
    assert worker.exit_code() == ExitCode.REFUSED
    assert "wire version 9" in worker.log()


def test_a_slot_that_dies_young_again_and_again_waits(broker: FakeWorkerBroker, start: Any) -> None:
    for _ in range(4):
        worker = start()
        broker.expect(m.SlotHello)
        worker.signal(signal.SIGKILL)
        worker.exit_code()
    assert "waits" in worker.log()
    waiting = start()
    wait_until(lambda: "waits" in waiting.log(), "it waits")
    waiting.signal(signal.SIGTERM)
    assert waiting.exit_code() == ExitCode.STOPPED


def test_the_kernel_takes_a_worker_first(broker: FakeWorkerBroker, start: Any) -> None:
    worker = start()
    broker.welcome()
    assert int(Path(f"/proc/{worker.pid}/oom_score_adj").read_text()) >= 500


def test_a_run_directory_that_cannot_be_used(start: Any, run_dir: str) -> None:
    Path(run_dir).write_text("a file")
    worker = start()
    assert worker.exit_code() == ExitCode.RUN_DIR
    assert "cannot use run directory" in worker.log()


@pytest.mark.parametrize("arguments", [["--slot", "../x"], ["--device", "tpu"], ["--no-such"]])
def test_wrong_arguments(start: Any, arguments: list[str]) -> None:
    assert start(*arguments).exit_code() == ExitCode.USAGE


def test_it_dies_with_its_parent(broker: FakeWorkerBroker, run_dir: str) -> None:
    source = Path(__file__).resolve().parents[3] / "src"
    command = [sys.executable, "-m", "naiad.worker", "--run-dir", run_dir, "--slot", "s0"]
    parent = subprocess.Popen(
        [
            sys.executable,
            "-c",
            f"import subprocess; subprocess.Popen({[*command, '--die-with-parent']}).wait()",
        ],
        env={**os.environ, "PYTHONPATH": str(source)},
    )
    worker = broker.welcome().pid
    pidfd = os.pidfd_open(worker)
    parent.kill()
    parent.wait(PATIENCE_S)
    assert select.select([pidfd], [], [], PATIENCE_S)[0], "the worker lives on"
    os.close(pidfd)
