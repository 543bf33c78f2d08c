"""What a person waits for after `naiad serve`: the table of models once all are settled.

Polls the server's status without blocking the supervisor's loop; decides nothing.
"""

from __future__ import annotations

import contextlib
import selectors
from collections.abc import Callable, Sequence
from typing import Any, Final, TextIO

from naiad.broker.core.models import UNLOADED
from naiad.cli.control import ControlLink
from naiad.cli.tables import boxed, is_terminal, table
from naiad.protocol.errors import NaiadError

POLL_NS: Final = 50_000_000
ON_THE_WAY: Final = frozenset({"loading", "recovering"})
"""Phases of a server in which its models have not settled."""

Status = dict[str, Any]


class Startup:
    """`start` at each start of the broker; `step` until it returns the settled status once."""

    def __init__(
        self, run_dir: str, selector: selectors.BaseSelector, callback: Callable[[], None]
    ) -> None:
        self._run_dir = run_dir
        self._selector = selector
        self._callback = callback
        self._link: ControlLink | None = None
        self._is_asking = False
        self.next_ns: int | None = None
        """When to call `step` although nothing arrived; None when there is nothing to do."""

    def start(self, now_ns: int) -> None:
        self.close()
        self._link = ControlLink(self._run_dir)
        self._link.start()
        self._selector.register(self._link.descriptor, selectors.EVENT_READ, self._callback)
        self._ask()
        self.next_ns = now_ns + POLL_NS

    def step(self, now_ns: int) -> Status | None:
        """The status when every model is ready or has failed; then this is over."""
        if self._link is None:
            return None
        try:
            reply = self._link.receive()
        except NaiadError:  # still starting, draining, or another version: the log says why
            self._is_asking = False
            reply = None
        if reply is not None:
            self._is_asking = False
            status: Status = reply[1]
            if is_settled(status):
                self.close()
                return status
        if self.next_ns is not None and now_ns >= self.next_ns:
            self.next_ns = now_ns + POLL_NS
            if not self._is_asking:
                self._ask()
        return None

    def close(self) -> None:
        if self._link is not None:
            with contextlib.suppress(KeyError):
                self._selector.unregister(self._link.descriptor)
            self._link.close()
            self._link = None
        self._is_asking = False
        self.next_ns = None

    def _ask(self) -> None:
        assert self._link is not None
        self._link.send("status")
        self._is_asking = True


def models_table(models: Sequence[Status], stream: TextIO) -> str:
    """What became of the models: for a person at a terminal, else as Triton logs it."""
    if is_terminal(stream):
        keys = ("name", "version", "state", "instances", "reason")  # a failed one may lack some
        rows = [[model.get(key) for key in keys] for model in models]
        return table(("MODEL", "VERSION", "STATE", "INSTANCES", "REASON"), rows, stream)
    rows = []
    for model in sorted(models, key=lambda one: (one["name"], one.get("version") or 0)):
        state, reason = model["state"], model.get("reason")
        shown = f"{state}: {reason}" if state == "UNAVAILABLE" and reason else state
        rows.append([model["name"], model.get("version") or "-", shown])
    return boxed(("Model", "Version", "Status"), rows)


def is_settled(status: Status) -> bool:
    """Whether every model of the start is ready or has failed."""
    return status["server"]["phase"] not in ON_THE_WAY


def failed_models(status: Status) -> list[str]:
    """Names of the models that did not become ready: each once, however many versions it has."""
    rows = (one for one in status["models"] if one["state"] == "UNAVAILABLE")
    return list(dict.fromkeys(one["name"] for one in rows if one["reason"] != UNLOADED))


def outcome(status: Status) -> str:
    """How the start went, in the numbers that /v2/health/ready has."""
    failed = failed_models(status)
    if not failed:
        return "ready"
    return f"{len(failed)} of {status['server']['models']['known']} models failed"
