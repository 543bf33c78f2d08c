"""Questions to the repository helper that have no answer yet, within limits.

Owns their number, and what a load has brought along until the helper has looked at it. What an
answer means for models is decided elsewhere (see catalog).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from naiad.broker.core.events import ScanRepository
from naiad.broker.core.models import Call
from naiad.broker.core.world import SECOND_NS, World
from naiad.protocol.errors import RequestError, Unavailable

SCANS_PENDING_MAX: Final = 1024
OVERRIDE_BYTES_MAX: Final = 1024 * 1024
OVERRIDES_PENDING_MAX: Final = 16
"""Configurations given with a load are kept until the repository helper has looked at them."""


class Scan(NamedTuple):
    """A question and whom its answer concerns; that about the start concerns no call."""

    names: tuple[str, ...] | None
    calls: list[Call]
    override: str | None
    upload: str


class Scans:
    """Asks, and remembers what was asked."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._pending: dict[int, Scan] = {}

    @property
    def are_answered(self) -> bool:
        return not self._pending

    @property
    def is_start_known(self) -> bool:
        """Whether it is known what is to be served from the start; that question has no caller."""
        return all(scan.calls for scan in self._pending.values())

    def uploads(self) -> Iterator[str]:
        """Folders of files that came with loads nobody has looked at yet."""
        return (scan.upload for scan in self._pending.values())

    def check_room(self, override: str | None) -> None:
        """Whether one more question may wait for the helper, with its configuration."""
        waiting, most = len(self._pending), SCANS_PENDING_MAX
        what = "loads"
        if override is not None and waiting < most:
            waiting = sum(1 for scan in self._pending.values() if scan.override is not None)
            most = OVERRIDES_PENDING_MAX
            what = "loads with a configuration of their own"
        if waiting >= most:
            raise Unavailable(
                f"{waiting} {what} wait until the model repository is read, at most {most}; wait"
                " for some to end"
            )
        size_bytes = 0 if override is None else len(override.encode())
        if size_bytes > OVERRIDE_BYTES_MAX:
            raise RequestError(
                f"Invalid config override: {size_bytes} bytes, expected at most"
                f" {OVERRIDE_BYTES_MAX}"
            )

    def ask(self, scan: Scan) -> None:
        token = self._world.number()
        self._pending[token] = scan
        self._world.actions.append(
            ScanRepository(token, scan.names, scan.override, upload=scan.upload)
        )

    def answered(self, token: int) -> Scan | None:
        """What was asked so; None when nobody waits for that answer."""
        return self._pending.pop(token, None)

    def lost(self, token: int, fault: str) -> Scan | None:
        """There will be no answer: what was asked, or None because it is asked again."""
        scan = self._pending.get(token)
        if scan is not None and not scan.calls:
            self._ask_again_later(token, scan, fault)
            return None
        return self.answered(token)

    def _ask_again_later(self, token: int, scan: Scan, fault: str) -> None:
        """What is served from the start is still not known: a server of nothing helps nobody."""
        world = self._world
        pause_ns = world.limits.retry_last_ns
        world.log("error", f"model repository: {fault} Trying again in {pause_ns // SECOND_NS} s.")

        def ask() -> None:
            if not world.draining:
                world.actions.append(ScanRepository(token, scan.names, scan.override))

        world.at(world.now_ns + pause_ns, ask)
