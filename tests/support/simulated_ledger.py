"""What really happened in a simulation, kept apart from what the scheduler believes.

Every request has a token; whoever touches a request's bytes says which token it found there. A
violation carries the token, so that the story of that request can be told.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from support.simulated_time import Agenda

TOKEN_BYTES = 8


class Violation(AssertionError):
    """Something that must never happen did; `token` is the request it happened to (0: none)."""

    def __init__(self, text: str, token: int = 0) -> None:
        super().__init__(text)
        self.token = token


@dataclass(slots=True)
class Record:
    """One request as seen from outside. `excuses`: how often it may be executed once more."""

    token: int
    model: str
    label: str
    executions: int = 0
    excuses: int = 0
    deaths_alone: int = 0
    """Workers that died while they executed it in a batch of its own."""
    resends: int = 0
    answers: int = 0
    cancel_asked: bool = False
    is_poison: bool = False
    raises: bool = False
    is_wrong: bool = False
    has_gpu_memory: bool = False
    uses_forgotten_region: bool = False
    timeout_us: int = 0
    user: str = ""
    error: tuple[str, str, bool] | None = None


@dataclass(slots=True)
class _Range:
    owner: int
    content: int


@dataclass
class Ledger:
    """Records, memory and the story. With `tells` false the story is not kept: it costs time."""

    agenda: Agenda
    tells: bool = False
    records: dict[int, Record] = field(default_factory=dict)
    story: list[tuple[int, int, str]] = field(default_factory=list)
    running: dict[int, str] = field(default_factory=dict)
    """What is being executed at this moment, and where."""
    _memory: dict[tuple[str, int], _Range] = field(default_factory=dict)
    _gone: set[str] = field(default_factory=set)

    def new(self, model: str, label: str) -> Record:
        token = len(self.records) + 1
        record = self.records[token] = Record(token, model, label)
        return record

    def tell(self, text: str, token: int = 0, *details: Any) -> None:
        if self.tells:
            shown = " ".join(str(one) for one in details)
            self.story.append((self.agenda.now_ns, token, f"{text} {shown}" if shown else text))

    def begin(self, token: int, where: str) -> None:
        """A worker begins a request: nobody else has it, and a second time needs a reason."""
        record = self.records[token]
        record.executions += 1
        self.tell(f"executed by {where}", token)
        if token in self.running:
            raise Violation(f"executed by {where} while {self.running[token]} has it", token)
        self.running[token] = where
        if record.executions > 1 + record.excuses:
            raise Violation(
                f"request {token} executed {record.executions} times, {record.excuses} deaths or"
                " resends explain",
                token,
            )

    def excuse(self, token: int, why: str) -> None:
        self.records[token].excuses += 1
        self.tell(f"may run again: {why}", token)

    # --- memory --------------------------------------------------------------------------

    def lend(self, key: str, offset: int, token: int) -> None:
        """The owner of a segment gives a range to a request and writes its token there."""
        self._memory[key, offset] = _Range(token, token)

    def take_back(self, key: str, offset: int) -> None:
        self._memory[key, offset].owner = 0

    def end_segment(self, key: str) -> None:
        self._gone.add(key)

    def read(self, key: str, offset: int, token: int, who: str) -> None:
        found = self._memory.get((key, offset))
        if key not in self._gone and (found is None or found.content != token):
            raise Violation(f"{who} reads {key}+{offset} for request {token}, finds {found}", token)

    def write(self, key: str, offset: int, token: int, who: str) -> None:
        """A worker writes a result: the range must belong to its request now."""
        found = self._memory.get((key, offset))
        if key in self._gone:
            return
        if found is None or found.owner != token:
            raise Violation(
                f"{who} writes {key}+{offset} for request {token}, which belongs to {found}", token
            )
        found.content = token

    # --- telling -------------------------------------------------------------------------

    def tale(self, token: int, last: int = 60) -> str:
        """The story of one request among the events that concern everybody; or the last events."""
        chosen = [one for one in self.story if not token or one[1] in (0, token)]
        lines = [f"{when_ns / 1e6:12.3f} ms  {text}" for when_ns, _, text in chosen[-last:]]
        record = self.records.get(token)
        return "\n".join([*lines, f"record: {record}"] if record else lines)


def content(token: int, size: int) -> bytes:
    """`size` bytes that say whose they are."""
    return token.to_bytes(TOKEN_BYTES, "little") * (size // TOKEN_BYTES)


def token_of(data: bytes, size: int) -> int:
    """Whose bytes these are; 0 when they are not of one request."""
    token = int.from_bytes(data[:TOKEN_BYTES], "little")
    return token if len(data) == size and data == content(token, size) else 0
