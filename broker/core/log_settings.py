"""What is written to the log: the settings that operators change while the server runs.

Owns them, and who waits for their next change. What they mean stands in naiad.config.log_levels;
each process obeys them itself.
"""

from __future__ import annotations

from typing import Any, Final

from naiad.broker.core.events import SaveState, SendReply, SetLogLevels
from naiad.broker.core.sessions import Session
from naiad.broker.core.world import World
from naiad.config.faults import did_you_mean
from naiad.config.log_levels import FORMATS, INITIAL, VERBOSE_MAX
from naiad.protocol import messages as m
from naiad.protocol.errors import Code, RequestError

Json = dict[str, Any]
FIELDS: Final = {
    "log_info": "info",
    "log_warning": "warning",
    "log_error": "error",
    "log_verbose_level": "verbose",
    "log_format": "format",
}
"""Triton's names, and the fields of LogLevels."""
AFTER: Final = "after"


class LogSettings:
    """`asked` carries out the control operation; `levels` is what counts now."""

    def __init__(self, world: World, initial: m.LogLevels = INITIAL, file: str = "") -> None:
        self._world = world
        self._initial = initial
        self._file = file
        self._revision = world.number()
        self._watchers: dict[int, int] = {}
        """Calls that wait for the next change, one at most of a session."""
        self.levels = initial

    def asked(self, session: Session, call: int, arguments: m.Parameters, _: bytes) -> Json | None:
        """The settings, after the changes that `arguments` hold.

        With `after`, the revision that the caller knows, the answer comes when there is another.
        """
        wanted = dict(arguments)
        after = wanted.pop(AFTER, None)
        if wanted:
            self._change(wanted)
        if after != self._revision:
            return self._document()
        earlier = self._watchers.pop(session.key, None)
        if earlier is not None:
            self._world.actions.append(SendReply(session.key, earlier, None, self._document()))
        self._watchers[session.key] = call
        return None

    def forget(self, session: int) -> None:
        """A session that has ended waits for nothing."""
        self._watchers.pop(session, None)

    def announce(self) -> None:
        """Every process of this server is to know."""
        self._world.actions.append(SetLogLevels(self.levels))

    def _change(self, wanted: m.Parameters) -> None:
        for name, value in wanted.items():
            _check(name, value)
        changes: Json = {FIELDS[name]: value for name, value in wanted.items()}
        levels = self.levels._replace(**changes)
        if levels == self.levels:
            return
        self.levels = levels
        self._revision = self._world.number()
        self.announce()
        self._world.actions.append(SaveState())
        watchers, self._watchers = self._watchers, {}
        for session, call in watchers.items():
            if session in self._world.sessions:
                self._world.actions.append(SendReply(session, call, None, self._document()))

    def _document(self) -> Json:
        found = {name: getattr(self.levels, field) for name, field in FIELDS.items()}
        return {"settings": {"log_file": self._file, **found}, "revision": self._revision}

    # --- over restarts -----------------------------------------------------------------

    def saved(self) -> list[Any]:
        return [tuple(self._initial), tuple(self.levels)]

    def restore(self, saved: list[Any]) -> None:
        """What was set while the server ran, unless the command line says something new."""
        initial, levels = saved
        if m.LogLevels(*initial) == self._initial:
            self.levels = m.LogLevels(*levels)


def _check(name: str, value: Any) -> None:
    """Raises RequestError for what is no setting, or none that can be set like this."""
    if name == "log_file":
        raise RequestError(
            "log file location can not be updated through network protocol", code=Code.UNSUPPORTED
        )
    if name not in FIELDS:
        guess = did_you_mean(name, FIELDS) or f"known settings: {', '.join(FIELDS)}"
        raise RequestError(f"unknown log setting '{name:.80}'; {guess}")
    if name == "log_verbose_level":
        if type(value) is not int or not 0 <= value <= VERBOSE_MAX:
            raise RequestError(
                f"{name}: attempt to access JSON non-unsigned-integer as unsigned-integer; expected"
                f" 0 to {VERBOSE_MAX}, got {value!r:.40}"
            )
    elif name == "log_format":
        if value not in FORMATS:
            expected = " or ".join(FORMATS)
            raise RequestError(
                f"invalid argument for --log_format, got: {value!s:.40}; expected {expected}"
            )
    elif type(value) is not bool:
        raise RequestError(
            f"{name}: attempt to access JSON non-boolean as boolean; got {value!r:.40}"
        )
