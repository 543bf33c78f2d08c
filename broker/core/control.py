"""Control operations: their names, their arguments, and who carries each out.

Owns the table of operations and turns faults into error replies. Waiting for a load to settle is
the catalog's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from naiad.broker.core import events as e
from naiad.broker.core.arguments import number_argument, text_argument, version_argument
from naiad.broker.core.catalog import Catalog
from naiad.broker.core.counters import MODELS_MAX, Counters
from naiad.broker.core.listing import Listing
from naiad.broker.core.log_settings import LogSettings
from naiad.broker.core.named_regions import NamedRegions
from naiad.broker.core.queries import Queries
from naiad.broker.core.sessions import Session
from naiad.broker.core.status import Status
from naiad.broker.core.world import World
from naiad.protocol import messages as m
from naiad.protocol.errors import Code, NaiadError, RequestError

Operation = Callable[[Session, int, m.Parameters, bytes], Any]
"""Called with the session, the call's number, arguments and payload; None is answered later."""


class Control:
    """Carries out what operators, gateways and clients ask beside inference."""

    def __init__(
        self,
        world: World,
        catalog: Catalog,
        queries: Queries,
        status: Status,
        listing: Listing,
        counters: Counters,
        regions: NamedRegions,
        log_settings: LogSettings,
    ) -> None:
        self._world = world
        self._catalog = catalog
        self._operations: dict[str, Operation] = {
            "live": lambda s, c, a, p: {"live": True},
            "ready": lambda s, c, a, p: queries.readiness(),
            "model_ready": lambda s, c, a, p: {
                "ready": queries.model_ready(text_argument(a, "model"), version_argument(a))
            },
            "server_metadata": lambda s, c, a, p: queries.server_metadata(),
            "model_metadata": lambda s, c, a, p: queries.model_metadata(
                text_argument(a, "model"), version_argument(a)
            ),
            "model_config": lambda s, c, a, p: queries.model_config(
                text_argument(a, "model"), version_argument(a)
            ),
            "class_labels": lambda s, c, a, p: queries.class_labels(
                text_argument(a, "model"), version_argument(a), str(a.get("known", ""))
            ),
            "statistics": lambda s, c, a, p: queries.statistics(
                str(a.get("model", "")), version_argument(a)
            ),
            "index": lambda s, c, a, p: listing.index(
                s, c, ready_only=a.get("ready") is True, known_only=a.get("known") is True
            ),
            "status": lambda s, c, a, p: status.status(),
            "counters": lambda s, c, a, p: counters.piece(
                str(a["after"]) if "after" in a else None, number_argument(a, "limit", MODELS_MAX)
            ),
            "log_settings": log_settings.asked,
            "load": self._load,
            "unload": self._unload,
            "region_register": lambda s, c, a, p: regions.register(s, c, a),
            "region_register_cuda": lambda s, c, a, p: regions.register_cuda(a),
            "region_status": lambda s, c, a, p: regions.status(a),
            "region_unregister": lambda s, c, a, p: regions.unregister(s, c, a),
        }

    def asked(self, event: e.ControlAsked) -> None:
        """Answer with the operation's result or fault, unless it is answered later."""
        session = self._world.sessions.get(event.session)
        if session is None:
            return
        fault: NaiadError | None = None
        result: Any = None
        operation = self._operations.get(event.operation)
        try:
            if operation is None:
                raise RequestError(
                    f"unknown operation {event.operation!r}; known are"
                    f" {', '.join(sorted(self._operations))}",
                    code=Code.UNSUPPORTED,
                )
            result = operation(session, event.call, event.arguments, event.payload)
            if result is None:
                return  # answered later
        except Exception as raised:
            fault = self._world.blame(raised, f"the call {event.operation}")
        self._world.actions.append(e.SendReply(session.key, event.call, fault, result))

    def failed(self, event: e.FaultArose) -> None:
        """The shell could not do its part of a call, or of something else."""
        fault = self._world.blame(event.fault, event.what)
        if event.call:
            self._world.actions.append(e.SendReply(event.session, event.call, fault, None))

    def _load(self, session: Session, call: int, arguments: m.Parameters, payload: bytes) -> None:
        name = text_argument(arguments, "model")
        try:
            override = payload.decode() if payload else None
        except UnicodeDecodeError as fault:
            raise RequestError(f"Invalid config override: not UTF-8: {fault}") from fault
        upload = text_argument(arguments, "upload") if "upload" in arguments else ""
        self._catalog.load(name, (session.key, call), override, upload)

    def _unload(self, session: Session, call: int, arguments: m.Parameters, _: bytes) -> None:
        self._catalog.unload(text_argument(arguments, "model"), (session.key, call))
