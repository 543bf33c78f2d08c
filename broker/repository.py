"""The repository helper as a child process: questions go to its stdin, answers come by stdout.

Never waits for it. The helper has one question at a time; what its pipe does not take at once is
kept, no more than that one question, and the loop calls `flush` when the pipe takes more. The
others wait here, bounded by broker.core.scans. A helper that takes longer than the limit for its
question is killed; the loop calls `overdue` when `deadline_ns` has come.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from contextlib import suppress
from typing import Any, Final

from naiad.broker.core.deadlines import NEVER_NS
from naiad.broker.core.events import RepositoryScanned, ScanRepository
from naiad.config.faults import without_roots
from naiad.config.frames import FrameReader, pack_frame
from naiad.protocol.errors import ProtocolError

READ_BYTES: Final = 1 << 16
RESTARTS_MAX: Final = 3
UNENDED_MAX: Final = 8
"""Killed helpers that have not ended, because the kernel holds them in a dead file system. With so
many of them no other is started."""
END_SECONDS_MAX: Final = 1.0
SECOND_NS: Final = 1_000_000_000
_NOTHING: Final = memoryview(b"")


class RepositoryHelper:
    """Started at the first question, restarted if it dies; it ends with us.

    `limit_seconds`: how long one question may take, with the helper's start and its restarts.
    """

    def __init__(
        self,
        repositories: tuple[str, ...],
        surroundings: dict[str, Any],
        *,
        limit_seconds: float,
        uploads_dir: str = "",
    ) -> None:
        self._uploads_dir = uploads_dir
        self._repositories = repositories
        self._surroundings = surroundings
        self._limit_seconds = limit_seconds
        self._process: subprocess.Popen[bytes] | None = None
        self._reader = FrameReader()
        self._asked: dict[int, ScanRepository] = {}
        """Unanswered questions, in order. The helper has the first of them, if any."""
        self._sent: int | None = None
        self._unwritten = _NOTHING
        """What the helper's stdin has not taken yet of the question that was sent."""
        self._timed: int | None = None
        """The question that the time runs for, also while its helper is started again."""
        self._deadline_ns = NEVER_NS
        self._restarts = 0
        self._unended: list[subprocess.Popen[bytes]] = []
        self.refused: list[RepositoryScanned] = []
        """Answers to questions that no helper could be started for; the loop takes them."""

    @property
    def pid(self) -> int:
        """Of the helper that is asked now; -1 while nothing runs."""
        return -1 if self._process is None else self._process.pid

    @property
    def descriptor(self) -> int:
        """Readable when an answer (or the end) is there; -1 while nothing runs."""
        process = self._process
        return -1 if process is None or process.stdout is None else process.stdout.fileno()

    @property
    def descriptor_to_flush(self) -> int:
        """Writable when `flush` can go on; -1 while nothing is left to be written."""
        process = self._process
        if process is None or process.stdin is None or not self._unwritten:
            return -1
        return process.stdin.fileno()

    @property
    def deadline_ns(self) -> int:
        """When `overdue` is to be called; monotonic."""
        return NEVER_NS if self._sent is None else self._deadline_ns

    def ask(self, question: ScanRepository) -> None:
        """Send a question; `answers`, `overdue` or `refused` gives its answer later."""
        self._asked[question.token] = question
        self._go_on()

    def _go_on(self) -> None:
        """The next question to the helper, which is started if need be."""
        if self._asked and self._process is None:
            self._reap()
            if len(self._unended) >= UNENDED_MAX:
                fault = (
                    f"{UNENDED_MAX} repository helpers were killed and have not ended: is the file"
                    " system of the model repository dead?"
                )
                self.refused += self._give_up(fault)
                return
            try:
                self._start()
            except OSError as error:  # out of processes, descriptors or memory: it may pass
                fault = f"the repository helper cannot be started: {error}; try again"
                self.refused += self._give_up(fault)
                return
        self._send_next()

    def _send_next(self) -> None:
        """One question at a time, so that there is never more than one in the buffer."""
        if self._sent is None and self._asked:
            self._sent, question = next(iter(self._asked.items()))
            if self._sent != self._timed:
                self._timed = self._sent
                self._deadline_ns = time.monotonic_ns() + int(self._limit_seconds * SECOND_NS)
            self._unwritten = memoryview(self._packed(question))
            self.flush()

    def flush(self) -> None:
        """Write what the helper takes now."""
        descriptor = self.descriptor_to_flush
        try:
            while self._unwritten:
                count = os.write(descriptor, self._unwritten)
                self._unwritten = self._unwritten[count:]
        except BlockingIOError:
            return
        except BrokenPipeError:
            self._unwritten = _NOTHING  # its end shows on stdout next: the question is asked again

    def _start(self) -> None:
        self._reader = FrameReader()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "naiad.config.helper"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
        )
        assert self._process.stdin is not None
        os.set_blocking(self._process.stdin.fileno(), False)

    def _packed(self, question: ScanRepository) -> bytes:
        request: dict[str, Any] = {
            "id": question.token,
            "repositories": self._places(question),
            **self._surroundings,
        }
        if question.only_names:
            request |= {"op": "names"}
        elif question.override is not None and question.names:
            name, text = question.names[0], question.override
            request |= {"op": "override", "name": name, "config_json": text}
        else:
            names = None if question.names is None else list(question.names)
            request |= {"op": "scan", "names": names}
        return pack_frame(request)

    def _places(self, question: ScanRepository) -> list[str]:
        if question.upload:
            return [f"{self._uploads_dir}/{question.upload}"]
        return list(self._repositories)

    def answers(self) -> list[RepositoryScanned]:
        """What has arrived. A helper that died is started again, with the open questions."""
        assert self._process is not None
        assert self._process.stdout is not None
        data = os.read(self._process.stdout.fileno(), READ_BYTES)
        if not data:
            return self._died()
        try:
            found = [self._answer(reply) for reply in self._reader.feed(data)]
        except ProtocolError:
            return self._died()
        self._send_next()
        return found

    def _answer(self, reply: dict[str, Any]) -> RepositoryScanned:
        token = int(reply["id"])
        question = self._asked.pop(token, None)
        only_names = question is not None and question.only_names
        self._sent = None
        self._restarts = 0
        if "error" in reply:
            return RepositoryScanned(token, (), str(reply["error"][1]), only_names=only_names)
        result = reply["result"]
        if only_names:
            models = tuple({"name": name} for name in result["names"])
            return RepositoryScanned(token, models, None, only_names=True)
        roots = self._repositories
        entries = list(result["models"])
        faults = [without_roots(str(fault["message"]), roots) for fault in result["faults"]]
        entries += [
            {
                "name": name,
                "directory": "",
                "versions": [],
                "config": None,
                "missing": without_roots(reason, roots),
            }
            for name, reason in result["missing"].items()
        ]
        notes = tuple(str(note) for note in result["notes"])
        return RepositoryScanned(token, tuple(entries), "; ".join(faults) or None, notes=notes)

    def overdue(self, now_ns: int) -> list[RepositoryScanned]:
        """The answer to the question whose time is over; its helper is killed."""
        if now_ns < self.deadline_ns:
            return []
        assert self._sent is not None
        token = self._sent
        question = self._asked.pop(token)
        self._kill()
        self._restarts = 0
        self._go_on()
        fault = (
            f"the repository helper did not answer within {self._limit_seconds:g} s"
            " (--scan-timeout-seconds) and was killed: is the file system of the model repository"
            " slow or dead?"
        )
        return [_lost(question, fault)]

    def _died(self) -> list[RepositoryScanned]:
        self._kill()
        self._restarts += 1
        if self._restarts > RESTARTS_MAX:
            return self._give_up("the repository helper keeps dying; see the log")
        self._go_on()
        return []

    def _give_up(self, fault: str) -> list[RepositoryScanned]:
        gone, self._asked = self._asked, {}
        return [_lost(question, fault) for question in gone.values()]

    def rest(self) -> None:
        """End a helper that has nothing to do: it is 25 MB that a server rarely needs."""
        if not self._asked:
            self._kill()
        self._reap()

    def close(self) -> None:
        """End the helper. Waits for it, but not for what cannot end: it goes when it can."""
        self._kill()
        for process in self._unended:
            with suppress(subprocess.TimeoutExpired):
                process.wait(END_SECONDS_MAX)

    def _kill(self) -> None:
        """Without waiting for its end, which the kernel may put off for ever."""
        process, self._process = self._process, None
        self._sent, self._unwritten = None, _NOTHING
        if process is None:
            return
        for stream in (process.stdin, process.stdout):
            if stream is not None:
                stream.close()
        process.kill()
        self._unended.append(process)

    def _reap(self) -> None:
        self._unended = [one for one in self._unended if one.poll() is None]


def _lost(question: ScanRepository, fault: str) -> RepositoryScanned:
    return RepositoryScanned(
        question.token, (), fault, is_lost=True, only_names=question.only_names
    )
