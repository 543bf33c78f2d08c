"""A repository helper that hangs (a dead file system) must not make the broker wait."""

from __future__ import annotations

import os
import select
import signal
import threading
import time
from pathlib import Path

from naiad.broker.core.events import ScanRepository
from naiad.broker.repository import RepositoryHelper
from naiad.config.frames import pack_frame
from support.helper_process import helper_pid

DEADLINE_S = 30.0
QUESTIONS = 20


def test_questions_to_a_helper_that_hangs_wait_outside_of_the_pipe(tmp_path: Path) -> None:
    (tmp_path / "m" / "1").mkdir(parents=True)
    (tmp_path / "m" / "config.pbtxt").write_text('backend: "identity" max_batch_size: 4')
    helper = RepositoryHelper((str(tmp_path),), {})
    helper.ask(ScanRepository(0, None, None))
    pid = helper_pid()
    os.kill(pid, signal.SIGSTOP)
    override = '{"max_batch_size": 2}' + " " * 100_000
    assert len(pack_frame({"config_json": override})) > 65_536, "it would fit into a pipe"

    def ask() -> None:
        for token in range(1, QUESTIONS):
            helper.ask(ScanRepository(token, ("m",), override))

    asking = threading.Thread(target=ask, daemon=True)
    asking.start()
    asking.join(DEADLINE_S)
    assert not asking.is_alive(), "asking waited for the helper"

    os.kill(pid, signal.SIGCONT)
    end = time.monotonic() + DEADLINE_S
    answered: list[tuple[int, str | None]] = []
    while len(answered) < QUESTIONS:
        assert time.monotonic() < end, answered
        if select.select([helper.descriptor], [], [], 0.05)[0]:
            answered += [(one.token, one.fault) for one in helper.answers()]
    assert answered == [(token, None) for token in range(QUESTIONS)]
    helper.close()
