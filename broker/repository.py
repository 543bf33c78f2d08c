"""The repository helper as a child process: questions go to its stdin, answers come by stdout.

Never waits for it. The helper has one question at a time; what its pipe does not take at once is
kept, no more than that one question, and the loop calls `flush` when the pipe takes more. The
others wait here, bounded by broker.core.catalog.
"""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any, Final

from naiad.broker.core.events import RepositoryScanned, ScanRepository
from naiad.config.frames import FrameReader, pack_frame
from naiad.protocol.errors import ProtocolError

READ_BYTES: Final = 1 << 16
RESTARTS_MAX: Final = 3
_NOTHING: Final = memoryview(b"")


class RepositoryHelper:
    """Started at the first question, restarted if it dies; it ends with us."""

    def __init__(self, repositories: tuple[str, ...], surroundings: dict[str, Any]) -> None:
        self._repositories = repositories
        self._surroundings = surroundings
        self._process: subprocess.Popen[bytes] | None = None
        self._reader = FrameReader()
        self._asked: dict[int, ScanRepository] = {}
        """Unanswered questions, in order. The helper has the first of them, if any."""
        self._sent: int | None = None
        self._unwritten = _NOTHING
        """What the helper's stdin has not taken yet of the question that was sent."""
        self._restarts = 0

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

    def ask(self, question: ScanRepository) -> None:
        """Send a question; `answers` gives its answer later."""
        self._asked[question.token] = question
        if self._process is None:
            self._start()
        self._send_next()

    def _send_next(self) -> None:
        """One question at a time, so that there is never more than one in the buffer."""
        if self._sent is None and self._asked:
            self._sent, question = next(iter(self._asked.items()))
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
            "repositories": list(self._repositories),
            **self._surroundings,
        }
        if question.override is not None and question.names:
            name, text = question.names[0], question.override
            request |= {"op": "override", "name": name, "config_json": text}
        else:
            names = None if question.names is None else list(question.names)
            request |= {"op": "scan", "names": names}
        return pack_frame(request)

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
            self._process.kill()
            return self._died()
        self._send_next()
        return found

    def _answer(self, reply: dict[str, Any]) -> RepositoryScanned:
        token = int(reply["id"])
        self._asked.pop(token, None)
        self._sent = None
        self._restarts = 0
        if "error" in reply:
            return RepositoryScanned(token, (), str(reply["error"][1]))
        result = reply["result"]
        entries = list(result["models"])
        faults = [str(fault["message"]) for fault in result["faults"]]
        entries += [
            {"name": name, "directory": "", "versions": [], "config": None, "missing": reason}
            for name, reason in result["missing"].items()
        ]
        return RepositoryScanned(token, tuple(entries), "; ".join(faults) or None)

    def _died(self) -> list[RepositoryScanned]:
        self.close()
        self._restarts += 1
        if self._restarts > RESTARTS_MAX:
            gone, self._asked = self._asked, {}
            fault = "the repository helper keeps dying; see the log"
            return [RepositoryScanned(token, (), fault) for token in gone]
        if self._asked:
            self._start()
            self._send_next()
        return []

    def rest(self) -> None:
        """End a helper that has nothing to do: it is 25 MB that a server rarely needs."""
        if self._process is not None and not self._asked:
            self.close()

    def close(self) -> None:
        process, self._process = self._process, None
        self._sent, self._unwritten = None, _NOTHING
        if process is None:
            return
        for stream in (process.stdin, process.stdout):
            if stream is not None:
                stream.close()
        process.kill()
        process.wait()
