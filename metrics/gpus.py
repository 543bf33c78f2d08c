"""What NVML tells of the server's GPUs at a scrape, by a thread that the scrape does not wait for.

The driver may take its time, or for ever: a scrape gives it SAMPLE_SECONDS_MAX and then goes
without figures of GPUs, as do all later ones until it has answered. Nothing is asked between
scrapes, and nothing at all of a server without GPUs.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

from naiad.config.nvml import Nvml, NvmlFault, knows_pids
from naiad.metrics.samples import GpuSample

SAMPLE_SECONDS_MAX: Final = 1.0


class Gpus:
    """Asks from a thread of its own, which starts at the first question."""

    def __init__(self, seconds_max: float = SAMPLE_SECONDS_MAX) -> None:
        self._seconds_max = seconds_max
        self._questions: queue.SimpleQueue[Sequence[str]] = queue.SimpleQueue()
        self._answers: queue.SimpleQueue[list[GpuSample]] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._is_asked = False
        """A question has no answer yet."""

    def samples(self, uuids: Sequence[str]) -> list[GpuSample]:
        """Figures of these GPUs as of now; none of those that the driver does not tell of.

        Not for several threads.
        """
        if not uuids:
            return []
        if self._is_asked and self._answers.empty():
            return []
        if self._is_asked:
            self._answers.get()  # to an older question: out of date
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="nvml", daemon=True)
            self._thread.start()
        self._questions.put(uuids)
        self._is_asked = True
        with suppress(queue.Empty):
            found = self._answers.get(timeout=self._seconds_max)
            self._is_asked = False
            return found
        return []

    def _run(self) -> None:
        """A session with the driver stays open: beginning one takes longer than all questions."""
        while True:
            uuids = self._questions.get()
            try:
                with Nvml() as nvml:
                    self._answers.put(_sampled(nvml, uuids))
                    while True:
                        uuids = self._questions.get()
                        self._answers.put(_sampled(nvml, uuids))
            except NvmlFault:
                self._answers.put([])


def _sampled(nvml: Nvml, uuids: Sequence[str]) -> list[GpuSample]:
    by_pid = knows_pids()
    found = []
    for uuid in uuids:
        memory = nvml.memory(uuid)
        found.append(
            GpuSample(
                uuid,
                nvml.utilization(uuid),
                None if memory is None else memory.total,
                None if memory is None else memory.used,
                nvml.power_watts(uuid),
                nvml.power_limit_watts(uuid),
                nvml.energy_joules(uuid),
                nvml.process_bytes(uuid) if by_pid else {},
            )
        )
    return found
