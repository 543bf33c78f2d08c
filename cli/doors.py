"""The processes that hold ports: gateways and metrics. Started, restarted, told to end.

They inherit their listening sockets, so that a killed one loses no connection that it had not
accepted. The broker need not know of them: they come to it as clients.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from typing import Final

from naiad.cli.children import Child, describe_status
from naiad.cli.log import LogWriter
from naiad.cli.plan import Plan
from naiad.cli.slots import EARLY_DEATH_NS, NS, SlotTable, Start
from naiad.cli.watch import Watch, last_words

GATEWAY: Final = "gateway"
METRICS: Final = "metrics"


class Doors:
    """What runs of them, and what is to be started again when.

    Args:
        is_serving: whether a dead one is started again.
        is_draining: whether an end that is no clean one is worth a line.
    """

    def __init__(
        self,
        plan: Plan,
        log: LogWriter,
        watch: Watch,
        *,
        is_serving: Callable[[], bool],
        is_draining: Callable[[], bool],
    ) -> None:
        self._plan = plan
        self._log = log
        self._watch = watch
        self._is_serving = is_serving
        self._is_draining = is_draining
        self._children: dict[str, Child] = {}
        self._kinds: dict[str, str] = {}
        self._slots = SlotTable()
        if not plan.gateways_wait:
            self.open()
        self._slots.want(METRICS, int(bool(plan.metrics_descriptors)), ())

    def open(self) -> None:
        """Want gateways from now on."""
        self._slots.want(GATEWAY, self._plan.gateways_count, ())

    @property
    def deadline_ns(self) -> int | None:
        """When `start_due` has something to do."""
        return self._slots.deadline_ns()

    def all(self) -> list[Child]:
        return list(self._children.values())

    def of(self, kind: str) -> list[Child]:
        """Those of GATEWAY or METRICS that run."""
        return [one for name, one in self._children.items() if self._kinds[name] == kind]

    def start_due(self, now_ns: int) -> None:
        for start in self._slots.due(now_ns):
            self._start(start)

    def _start(self, start: Start) -> None:
        plan, name = self._plan, start.slot
        arguments = ["--run-dir", plan.run_dir, "--name", name]
        if start.device == METRICS:
            module, descriptors = plan.metrics_module, plan.metrics_descriptors
            arguments += plan.metrics_arguments
        else:
            module, descriptors = plan.gateway_module, plan.gateway_descriptors
            arguments += plan.gateway_arguments
        inherited: list[int] = []
        for option, numbers in descriptors.items():
            inherited += numbers
            arguments += [f"{option}={number}" for number in numbers]
        try:
            child = Child.start(name, module, arguments, inherited)
        except OSError as error:  # out of processes or memory: it may pass
            delay_ns = self._slots.exited(name, time.monotonic_ns(), is_early=True)
            self._log.event(f"cannot start {name}: {error}; next try in {delay_ns / NS:g} s")
            return
        self._children[name] = child
        self._kinds[name] = start.device
        self._watch.add(child, lambda: self._exited(child))

    def _exited(self, child: Child) -> None:
        del self._children[child.name]
        status = self._watch.ended(child)
        now_ns = time.monotonic_ns()
        is_early = now_ns - child.started_ns < EARLY_DEATH_NS
        delay_ns = self._slots.exited(child.name, now_ns, is_early=is_early)
        reason = f"{child.name}[{child.pid}] ended: {describe_status(status)}{last_words(child)}"
        if self._is_serving():
            again = f"next start in {delay_ns / NS:g} s" if delay_ns else "restarting it"
            self._log.event(f"{reason}; {again}")
        elif status and self._is_draining() and status != -signal.SIGTERM:
            self._log.event(reason)
