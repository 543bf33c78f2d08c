"""Second processes of a step: `python -m gpu_checks.peers ROLE` answers lines of JSON."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from types import TracebackType
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parents[2]
ANSWER_SECONDS_MAX: Final = 20.0
END_SECONDS_MAX: Final = 10.0
ROLES: Final = {
    "reader": "between_processes:reader",
    "empty-worker": "context_memory:empty_worker",
    "neighbour": "faults:neighbour",
}


def python_path(*first: str) -> str:
    """For processes of ours: these folders, naiad and this package, then what this one has."""
    own = (*first, str(ROOT / "src"), str(ROOT / "scripts"), os.environ.get("PYTHONPATH", ""))
    return os.pathsep.join(filter(None, own))


class PeerFailed(Exception):
    """The other process ended, or said nothing in time."""


class Peer:
    """Another process in a role, for a `with`; it ends when its input does."""

    def __init__(self, role: str, environment: Mapping[str, str] | None = None) -> None:
        own = {
            **os.environ,
            **(environment or {}),
            "PYTHONPATH": python_path(),
        }
        command = [sys.executable, "-m", "gpu_checks.peers", role]
        self._role = role
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=own
        )

    def ask(self, question: Any) -> Any:
        """What the process answers. Raises PeerFailed."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps(question).encode() + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise PeerFailed(f"the {self._role}'s process has ended") from None
        if not select.select([self._process.stdout], [], [], ANSWER_SECONDS_MAX)[0]:
            raise PeerFailed(f"the {self._role}'s process said nothing in {ANSWER_SECONDS_MAX:g} s")
        line = self._process.stdout.readline()
        if not line:
            raise PeerFailed(f"the {self._role}'s process has ended")
        return json.loads(line)

    def __enter__(self) -> Peer:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.close()
            self._process.wait(END_SECONDS_MAX)
        except (BrokenPipeError, subprocess.TimeoutExpired):
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()


def main(role: str) -> None:
    """Answer each line of input; the role is a generator that is sent questions."""
    module, _, function = ROLES[role].partition(":")
    answers = getattr(import_module(f"gpu_checks.{module}"), function)()
    next(answers)
    for line in sys.stdin:
        print(json.dumps(answers.send(json.loads(line))), flush=True)
    answers.close()


if __name__ == "__main__":
    main(sys.argv[1])
