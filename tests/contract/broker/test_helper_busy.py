"""A repository helper that hangs (a dead file system) must not make the broker wait."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest

from naiad.broker.core.deadlines import NEVER_NS
from naiad.broker.core.events import RepositoryScanned, ScanRepository
from naiad.broker.repository import UNENDED_MAX, RepositoryHelper
from naiad.config.frames import pack_frame
from support.helper_process import helper_of
from support.waiting import wait_until

DEADLINE_S = 30.0
QUESTIONS = 20
PIPE_BYTES = 65_536
OVERRIDE = '{"max_batch_size": 2}' + " " * 900_000
HANGS = "#!/bin/sh\nexec sleep 600\n"


def model_in(repository: Path) -> None:
    (repository / "m" / "1").mkdir(parents=True)
    (repository / "m" / "config.pbtxt").write_text('backend: "identity" max_batch_size: 4')


def asked(helper: RepositoryHelper, *questions: ScanRepository) -> None:
    """Ask in a thread: asking must not wait."""

    def ask() -> None:
        for question in questions:
            helper.ask(question)

    asking = threading.Thread(target=ask, daemon=True)
    asking.start()
    asking.join(DEADLINE_S)
    assert not asking.is_alive(), "asking waited for the helper"


def _is_over(process: psutil.Process) -> bool:
    try:
        return process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:  # and buried already
        return True


def until_overdue(helper: RepositoryHelper) -> list[RepositoryScanned]:
    """What a loop gets that calls `overdue` at the deadline."""
    end = time.monotonic() + DEADLINE_S
    while True:
        assert time.monotonic() < end, "it is never overdue"
        assert not select.select([helper.descriptor], [], [], 0.01)[0], "it answered"
        found = helper.overdue(time.monotonic_ns())
        if found:
            return found


def answers(helper: RepositoryHelper, count: int) -> list[tuple[int, str | None]]:
    """What a loop gets that flushes and reads when it can."""
    end = time.monotonic() + DEADLINE_S
    answered: list[tuple[int, str | None]] = []
    while len(answered) < count:
        assert time.monotonic() < end, answered
        writing = [one for one in (helper.descriptor_to_flush,) if one >= 0]
        readable, writable, _ = select.select([helper.descriptor], writing, [], 0.05)
        if writable:
            helper.flush()
        if readable:
            answered += [(one.token, one.fault) for one in helper.answers()]
    return answered


def test_a_helper_that_hangs_while_it_starts_gets_a_large_question_without_a_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "hangs"
    program.write_text(HANGS)
    program.chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(program))
    helper = helper_of(tmp_path)
    asked(helper, ScanRepository(1, ("m",), OVERRIDE))
    assert helper.descriptor_to_flush >= 0, "the pipe cannot hold it"
    helper.close()
    assert helper.descriptor_to_flush == -1


def test_a_question_larger_than_the_pipe_arrives_whole(tmp_path: Path) -> None:
    model_in(tmp_path)
    helper = helper_of(tmp_path)
    asked(helper, ScanRepository(1, ("m",), OVERRIDE))
    assert answers(helper, 1) == [(1, None)]
    assert helper.descriptor_to_flush == -1
    helper.close()


def test_a_large_question_is_asked_again_when_its_helper_dies(tmp_path: Path) -> None:
    model_in(tmp_path)
    helper = helper_of(tmp_path)
    helper.ask(ScanRepository(0, None, None))
    pid = helper.pid
    os.kill(pid, signal.SIGSTOP)
    asked(helper, ScanRepository(1, ("m",), OVERRIDE), ScanRepository(2, ("m",), None))
    os.kill(pid, signal.SIGKILL)
    assert answers(helper, 3) == [(0, None), (1, None), (2, None)]
    helper.close()


def test_questions_to_a_helper_that_hangs_wait_outside_of_the_pipe(tmp_path: Path) -> None:
    model_in(tmp_path)
    helper = helper_of(tmp_path)
    helper.ask(ScanRepository(0, None, None))
    pid = helper.pid
    os.kill(pid, signal.SIGSTOP)
    override = '{"max_batch_size": 2}' + " " * 100_000
    assert len(pack_frame({"config_json": override})) > PIPE_BYTES, "it would fit into a pipe"
    asked(helper, *(ScanRepository(token, ("m",), override) for token in range(1, QUESTIONS)))
    os.kill(pid, signal.SIGCONT)
    assert answers(helper, QUESTIONS) == [(token, None) for token in range(QUESTIONS)]
    helper.close()


def test_a_helper_that_hangs_is_killed_at_the_limit_and_the_next_question_has_another(
    tmp_path: Path,
) -> None:
    model_in(tmp_path)
    helper = helper_of(tmp_path, limit_seconds=3.0)
    assert helper.deadline_ns == NEVER_NS
    helper.ask(ScanRepository(0, None, None))
    hung = psutil.Process(helper.pid)
    hung.suspend()
    helper.ask(ScanRepository(1, ("m",), None))
    (lost,) = until_overdue(helper)
    assert (lost.token, lost.models, lost.is_lost) == (0, (), True)
    assert "within 3 s (--scan-timeout-seconds)" in str(lost.fault)
    wait_until(lambda: _is_over(hung), "the helper that hung is killed")
    assert answers(helper, 1) == [(1, None)]
    assert helper.deadline_ns == NEVER_NS
    helper.close()


def test_dying_again_and_again_does_not_give_a_question_more_time(tmp_path: Path) -> None:
    helper = helper_of(tmp_path)
    helper.ask(ScanRepository(0, None, None))
    deadline_ns, pid = helper.deadline_ns, helper.pid
    os.kill(pid, signal.SIGKILL)
    assert select.select([helper.descriptor], [], [], DEADLINE_S)[0]
    assert helper.answers() == []
    assert helper.pid != pid
    assert helper.deadline_ns == deadline_ns
    helper.close()


def test_helpers_that_cannot_be_ended_are_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = 0
    helper = helper_of(tmp_path, limit_seconds=0.001)
    with monkeypatch.context() as patched:
        patched.setattr(subprocess.Popen, "poll", lambda _: None)
        while not helper.refused:
            assert asked <= UNENDED_MAX
            helper.ask(ScanRepository(asked, None, None))
            asked += 1
            if not helper.refused:
                until_overdue(helper)
    (refused,) = helper.refused
    assert (refused.token, refused.is_lost) == (UNENDED_MAX, True)
    assert "were killed and have not ended" in str(refused.fault)
    helper.refused.clear()

    def starts() -> bool:
        helper.ask(ScanRepository(asked, None, None))
        return helper.descriptor >= 0

    wait_until(starts, "the killed helpers have ended")
    helper.close()


def test_a_helper_that_cannot_be_started_is_an_error_of_the_load(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    helper = RepositoryHelper(("/nowhere",), {}, limit_seconds=DEADLINE_S)

    def refuse(*_: object, **__: object) -> None:
        raise BlockingIOError("Resource temporarily unavailable")

    monkeypatch.setattr(subprocess, "Popen", refuse)
    helper.ask(ScanRepository(1, ("m",), None))
    [refused] = helper.refused
    assert refused.is_lost
    assert "cannot be started: Resource temporarily unavailable" in str(refused.fault)
    helper.close()
