"""The broker process as every Prometheus client library shows its own: prometheus_client's figures.

They end the page under their usual names, so that panels made for `process_*` need only another
prefix. Looks at /proc when asked; knows nothing of models, and never asks the broker.
"""

from __future__ import annotations

from typing import Final

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest

NAMESPACE: Final = "naiad_broker"


class BrokerProcess:
    """Writes the figures of one process; which one may change from scrape to scrape."""

    def __init__(self) -> None:
        self._pid = 0
        self._registry = CollectorRegistry()
        ProcessCollector(namespace=NAMESPACE, pid=lambda: self._pid, registry=self._registry)

    def text(self, pid: int) -> bytes:
        """Families in the text format; none when the process is gone. Not for several threads."""
        self._pid = pid
        return generate_latest(self._registry)
