"""One scrape: ask the broker piece by piece, look at the machine, write the page.

Concurrent scrapes share the one in progress: however many ask, the broker is asked once.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, Final

from naiad.metrics import families as f
from naiad.metrics import host, samples
from naiad.metrics.broker_process import BrokerProcess
from naiad.metrics.gpus import Gpus
from naiad.metrics.page import Page, labels_of
from naiad.metrics.saturation import Saturation
from naiad.protocol.errors import Code, Unavailable

Json = dict[str, Any]

SCRAPE_SECONDS_MAX: Final = 8.0
"""Prometheus gives up after 10 s by default, and learns nothing then."""
PIECES_MAX: Final = 10_000


class Scraper:
    """Makes pages.

    Args:
        ask: one piece of the operation `counters`: called with `after` (None at first) and the
            seconds it may take. Raises NaiadError.
        gpus: who tells of GPUs; None: nobody is asked.
    """

    def __init__(self, ask: Callable[[str | None, float], Json], gpus: Gpus | None = None) -> None:
        self._ask = ask
        self._gpus = gpus
        self._lock = threading.Lock()
        self._current: Future[bytes] | None = None
        self._incarnation = 0
        self._saturation = Saturation()
        self._processors = host.Processors()
        self._broker_process = BrokerProcess()

    def page(self) -> bytes:
        """The page as of now, or as of a scrape that is under way. Raises NaiadError."""
        with self._lock:
            current = self._current
            is_mine = current is None
            if current is None:
                current = self._current = Future()
        if is_mine:
            try:
                current.set_result(self._scrape())
            except BaseException as fault:
                current.set_exception(fault)
            finally:
                with self._lock:
                    self._current = None
        return current.result()

    def _scrape(self) -> bytes:
        begun = time.monotonic()
        server, rows = self._counters(begun + SCRAPE_SECONDS_MAX)
        asked_seconds = time.monotonic() - begun
        if server["incarnation"] != self._incarnation:
            self._incarnation = server["incarnation"]
            self._saturation = Saturation()
        self._saturation.observe(time.monotonic_ns(), samples.busy_of(rows))
        page = Page()
        samples.add_server(page, server)
        bounds = samples.bounds_as_text(server["time_bounds_ns"])
        pids = {one["pid"] for row in rows for one in row["instances"]} - {0}
        looked_at = ((pid, host.process(pid)) for pid in pids)
        processes = {pid: found for pid, found in looked_at if found is not None}
        gpus = self._gpus.samples(server["gpus"]) if self._gpus is not None else []
        samples.add_gpus(page, gpus)
        for row in rows:
            samples.add_model(page, row, bounds, self._saturation)
            samples.add_instances(page, row, processes)
            samples.add_gpu_memory(page, row, gpus)
        self._add_machine(page, server)
        page.add(f.SCRAPE_SECONDS, "", round(asked_seconds, 6))
        return page.text() + self._broker_process.text(server["pid"])

    def _counters(self, end: float) -> tuple[Json, list[Json]]:
        """The server's own figures, and those of all its models."""
        rows: dict[tuple[str, int], Json] = {}
        server: Json | None = None
        after: str | None = None
        for _ in range(PIECES_MAX):
            left = end - time.monotonic()
            if left <= 0:
                break
            piece = self._ask(after, left)
            if server is None:
                server = piece["server"]
            else:
                # A broker that was replaced meanwhile goes on at the same name.
                rows.update({(one["name"], one["version"]): one for one in piece["models"]})
            after = piece["next"]
            if after is None:
                assert server is not None
                return server, list(rows.values())
        raise Unavailable(
            f"the server did not tell its counters within {SCRAPE_SECONDS_MAX:g} s; try again",
            code=Code.TIMEOUT,
        )

    def _add_machine(self, page: Page, server: Json) -> None:
        share = self._processors.share()
        if share is not None:
            page.add(f.CPU_UTILIZATION, "", round(share, 6))
        memory = host.memory()
        if memory is not None:
            page.add(f.CPU_MEMORY_TOTAL, "", memory[0])
            page.add(f.CPU_MEMORY_USED, "", memory[1])
        broker = host.process(server["pid"])
        if broker is not None:
            page.add(f.BROKER_CPU, "", broker.cpu_seconds)
            page.add(f.BROKER_MEMORY, "", broker.resident_bytes)
        for role, found in sorted(host.segments(server["name"]).items()):
            labels = labels_of(f.SHM_BYTES.labels, role)
            page.add(f.SHM_BYTES, labels, found.size_bytes)
            page.add(f.SHM_SEGMENTS, labels, found.number)
        free = host.shm_free_bytes()
        if free is not None:
            page.add(f.SHM_FREE, "", free)
