"""The supervisor alone, over small fake processes: starting, replacing, ending, in every order."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from naiad.cli.exit_codes import ExitCode

ROOT = Path(__file__).resolve().parent.parent.parent
DEADLINE_SECONDS = 40.0
COMMAND = [sys.executable, "-m", "support.supervised"]


def until(condition: Callable[[], object], what: str) -> None:
    """Wait for a condition, checked every 10 ms, at most DEADLINE_SECONDS."""
    end = time.monotonic() + DEADLINE_SECONDS
    while not condition():
        assert time.monotonic() < end, f"not within {DEADLINE_SECONDS} s: {what}"
        time.sleep(0.01)


class Supervised:
    """A supervisor process on a run directory of its own, and what it has printed."""

    def __init__(self, run_dir: Path) -> None:
        self.run_dir = run_dir
        self.printed = run_dir / "printed"
        self.process: subprocess.Popen[bytes] | None = None

    def start(self, *arguments: str, drain_seconds: float = 10) -> None:
        path = os.pathsep.join([str(ROOT / "src"), str(ROOT / "tests")])
        with self.printed.open("wb") as output:
            self.process = subprocess.Popen(
                [*COMMAND, str(self.run_dir), str(drain_seconds), *arguments],
                stdout=output,
                stderr=output,
                env={**os.environ, "PYTHONPATH": path},
            )

    def say(self, file: str, text: str) -> None:
        fresh = self.run_dir / f"{file}.new"
        fresh.write_text(text)
        fresh.rename(self.run_dir / file)

    def text(self) -> str:
        return self.printed.read_text()

    def heard(self) -> str:
        """What the broker was told, a line per message."""
        heard = self.run_dir / "heard"
        return heard.read_text() if heard.exists() else ""

    def children(self, module: str) -> list[int]:
        assert self.process is not None
        try:
            children = psutil.Process(self.process.pid).children()
            return [child.pid for child in children if module in child.cmdline()]
        except psutil.NoSuchProcess:
            return []

    def workers(self) -> list[int]:
        """Worker processes that have come as far as their own code."""
        up = [line for line in self.text().splitlines() if line.endswith(" up")]
        pids = self.children("support.fake_worker")
        return [pid for pid in pids if any(f"[{pid}]" in line for line in up)]

    def stop(self) -> int:
        assert self.process is not None
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(DEADLINE_SECONDS)


@pytest.fixture
def supervised(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Supervised]:
    run_dir = tmp_path_factory.mktemp("s")
    (run_dir / "want").write_text("2")
    case = Supervised(run_dir)
    yield case
    left: list[psutil.Process] = []
    if case.process is not None and case.process.poll() is None:
        left = psutil.Process(case.process.pid).children(recursive=True)
        case.process.kill()
        case.process.wait()
    psutil.wait_procs(left, timeout=5)
    for process in psutil.process_iter(["cmdline"]):
        assert str(run_dir) not in (process.info["cmdline"] or []), f"left behind: {process}"


def test_it_keeps_as_many_slots_as_the_broker_wants(supervised: Supervised) -> None:
    supervised.start()
    until(lambda: len(supervised.workers()) == 2, "two workers")
    until(lambda: "settled with 0 models" in supervised.text(), "the greeting")
    assert "cpu-0 up" in supervised.text()
    assert "cpu-1 up" in supervised.text()

    victim = supervised.workers()[0]
    os.kill(victim, signal.SIGKILL)
    until(
        lambda: victim not in supervised.workers() and len(supervised.workers()) == 2, "a new one"
    )
    until(lambda: f"{victim}, -9)" in supervised.heard(), "EXITED with the signal")
    assert f"[{victim}] ended: SIGKILL" in supervised.text()

    supervised.say("want", "3")
    until(lambda: len(supervised.workers()) == 3, "three workers")
    assert supervised.stop() == ExitCode.DONE
    assert "Spawned ('cpu-2'" in supervised.heard()


def test_a_killed_broker_is_restarted_at_once_and_told_what_runs(supervised: Supervised) -> None:
    supervised.start()
    until(lambda: len(supervised.workers()) == 2, "two workers")
    workers = sorted(supervised.workers())
    (broker,) = supervised.children("support.fake_broker")
    began = time.monotonic()
    os.kill(broker, signal.SIGKILL)
    until(lambda: supervised.heard().count("SupervisorHello") >= 2, "a second hello")
    assert time.monotonic() - began < 5
    hello = [line for line in supervised.heard().splitlines() if "SupervisorHello" in line][-1]
    assert all(f", {pid})" in hello for pid in workers)
    assert sorted(supervised.workers()) == workers
    assert supervised.stop() == ExitCode.DONE


def test_a_broker_that_cannot_start_ends_the_server_with_its_reason(supervised: Supervised) -> None:
    supervised.say("broker", "refuse")
    supervised.start()
    assert supervised.process is not None
    assert supervised.process.wait(DEADLINE_SECONDS) == ExitCode.BROKER_FAILED
    assert "could not start: exit code 3 (the repository is upside down)" in supervised.text()


def test_a_broker_that_dies_again_and_again_ends_the_server(supervised: Supervised) -> None:
    supervised.say("broker", "crash")
    supervised.start()
    assert supervised.process is not None
    assert supervised.process.wait(DEADLINE_SECONDS) == ExitCode.BROKER_FAILED
    assert "6 times in a row, each within 2 s; the last: SIGKILL" in supervised.text()


def test_slots_that_die_at_once_are_started_ever_more_slowly(supervised: Supervised) -> None:
    supervised.say("worker", "die")
    supervised.start()
    until(lambda: "next start in 0.8 s" in supervised.text(), "a back-off of 0.8 s")
    assert "cpu-0 has no luck" in supervised.text()
    supervised.say("worker", "")
    until(lambda: len(supervised.workers()) == 2, "two workers at last")
    assert supervised.stop() == ExitCode.DONE


def test_workers_left_by_a_broker_that_has_drained_are_killed_without_blame(
    supervised: Supervised,
) -> None:
    supervised.say("worker", "hang")
    supervised.start(drain_seconds=60)
    until(lambda: len(supervised.workers()) == 2, "two workers")
    assert supervised.stop() == ExitCode.DONE
    assert "not ended although there is nothing to do, killed" in supervised.text()


def test_what_does_not_drain_in_time_is_killed_and_the_code_says_so(supervised: Supervised) -> None:
    supervised.say("broker", "hang")
    supervised.say("worker", "hang")
    supervised.start(drain_seconds=0.3)
    until(lambda: len(supervised.workers()) == 2, "two workers")
    assert supervised.stop() == ExitCode.DRAIN_TIMED_OUT
    assert "not ended within 0.3 s, killed" in supervised.text()


def test_a_second_signal_ends_everything_at_once(supervised: Supervised) -> None:
    supervised.say("broker", "hang")
    supervised.start(drain_seconds=60)
    until(lambda: len(supervised.workers()) == 2, "two workers")
    assert supervised.process is not None
    supervised.process.send_signal(signal.SIGINT)
    until(lambda: "SIGINT: draining" in supervised.text(), "the drain")
    supervised.process.send_signal(signal.SIGINT)
    assert supervised.process.wait(5) == ExitCode.INTERRUPTED


def test_a_killed_supervisor_leaves_no_process(supervised: Supervised) -> None:
    supervised.start()
    until(lambda: len(supervised.workers()) == 2, "two workers")
    children = supervised.workers() + supervised.children("support.fake_broker")
    assert supervised.process is not None
    supervised.process.kill()
    supervised.process.wait()
    until(lambda: not any(psutil.pid_exists(pid) for pid in children), "the children's end")


def test_what_a_worker_started_ends_with_it(supervised: Supervised) -> None:
    supervised.say("want", "1")
    supervised.say("worker", "child")
    supervised.start()
    until(lambda: (supervised.run_dir / "grandchild").exists(), "the worker's own child")
    until(lambda: (supervised.run_dir / "grandchild").read_text(), "its pid")
    grandchild = psutil.Process(int((supervised.run_dir / "grandchild").read_text()))
    until(supervised.workers, "the worker's first line")
    supervised.say("worker", "")
    os.kill(supervised.workers()[0], signal.SIGKILL)
    until(lambda: not grandchild.is_running(), "the grandchild's end")
    assert supervised.stop() == ExitCode.DONE


def test_a_flood_of_lines_is_counted_instead_of_written(supervised: Supervised) -> None:
    supervised.say("want", "1")
    supervised.say("worker", "flood")
    supervised.start()
    until(lambda: "lines suppressed: over 100 a second" in supervised.text(), "the report")
    assert supervised.text().count("and another line") < 5_000
    assert supervised.stop() == ExitCode.DONE


def test_a_log_nobody_reads_stops_nobody(supervised: Supervised) -> None:
    """The supervisor's stderr is a full pipe: it goes on starting and ending processes."""
    read_end, write_end = os.pipe()
    os.set_blocking(write_end, False)
    try:
        while True:
            os.write(write_end, b"x" * 4096)
    except BlockingIOError:
        os.set_blocking(write_end, True)
    path = os.pathsep.join([str(ROOT / "src"), str(ROOT / "tests")])
    supervised.process = subprocess.Popen(
        [*COMMAND, str(supervised.run_dir), "10"],
        stderr=write_end,
        env={**os.environ, "PYTHONPATH": path},
    )
    os.close(write_end)
    until(lambda: len(supervised.children("support.fake_worker")) == 2, "two workers")
    until(lambda: supervised.heard().count("Spawned") == 2, "the broker knows")
    os.kill(supervised.children("support.fake_worker")[0], signal.SIGKILL)
    until(lambda: "Exited" in supervised.heard(), "the broker knows of the death")
    assert supervised.stop() == ExitCode.DONE
    os.close(read_end)


def test_the_log_file_is_reopened_on_hangup(supervised: Supervised) -> None:
    log = supervised.run_dir / "naiad.log"
    supervised.start(str(log))
    until(lambda: log.exists() and "cpu-1 up" in log.read_text(), "the log")
    log.rename(supervised.run_dir / "naiad.log.1")
    assert supervised.process is not None
    supervised.process.send_signal(signal.SIGHUP)
    until(log.exists, "a new log")
    assert supervised.stop() == ExitCode.DONE
    assert "SIGTERM: draining" in log.read_text()
