"""A model that writes down every execution, and the judge of what it wrote.

Its worker appends one line per request, before it executes it: pid and token. A request that was
executed more than once must have met a death each time but the last.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection
from pathlib import Path

CONFIG = """\
name: "journal"
backend: "python"
max_batch_size: 4
input [ { name: "INPUT0" data_type: TYPE_FP32 dims: [ 16 ] } ]
output [ { name: "OUTPUT0" data_type: TYPE_FP32 dims: [ 16 ] } ]
instance_group [ { kind: KIND_CPU count: 2 } ]
dynamic_batching { }
"""
MODEL = """\
import os
import time

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        self.journal = os.open(JOURNAL, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def execute(self, requests):
        tensors = [pb_utils.get_input_tensor_by_name(one, "INPUT0") for one in requests]
        lines = ""
        for tensor in tensors:
            values = tensor.as_numpy()[0]
            lines += f"{os.getpid()} {int(values[0])} {int(values[1])}\\n"
        os.write(self.journal, lines.encode())
        time.sleep(0.003)
        for one in requests:
            if "exit" in one.parameters():
                os._exit(77)
        return [
            pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", tensor.as_numpy())])
            for tensor in tensors
        ]
"""


def add_journal(repository: Path, journal: Path) -> None:
    """The model `journal`, two instances, executions of 3 ms."""
    folder = repository / "journal" / "1"
    folder.mkdir(parents=True)
    (folder / "model.py").write_text(MODEL.replace("JOURNAL", repr(str(journal))))
    (folder.parent / "config.pbtxt").write_text(CONFIG)


class Executions:
    """What a journal says. A line is shorter than a page and written at once: never half."""

    def __init__(self, journal: Path) -> None:
        self._pids: dict[tuple[str, str], list[int]] = defaultdict(list)
        for line in journal.read_text().splitlines():
            pid, process, count = line.split()
            self._pids[process, count].append(int(pid))

    @property
    def repeated_count(self) -> int:
        """How many executions were not a request's first."""
        return sum(len(pids) - 1 for pids in self._pids.values())

    def without_a_death(self, dead: Collection[int]) -> list[str]:
        """Requests that were executed again although whoever executed them before lives."""
        return [
            f"request {token} executed by {pids}"
            for token, pids in self._pids.items()
            if not set(pids[:-1]) <= set(dead)
        ]
