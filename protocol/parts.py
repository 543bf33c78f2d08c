"""What several messages are made of: tensors, regions, requests and what became of them.

As all of `naiad.protocol.messages`, through which everybody imports them: values without behaviour.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final, NamedTuple

from naiad.protocol.errors import WireError


class Place(IntEnum):
    """Where a tensor's bytes are."""

    INLINE = 0
    """`region` is the index of a payload frame of the same message."""
    REGION = 1
    """`region` is an id the session registered (client) or the broker's own id (worker)."""
    AUTO = 2
    """Only in a requested output: the server chooses, inline when small, else LEASE."""
    LEASE = 3
    """Only in an answer: in a worker's output arena, until RELEASE names the request."""


class Tensor(NamedTuple):
    """One input of a request or one output of an answer; `size` and `offset` in bytes."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    place: int
    region: int
    offset: int
    size: int


class OutputRequest(NamedTuple):
    """A requested output. With Place.REGION, `size` bytes at `offset` may be written there."""

    name: str
    place: int = Place.AUTO
    region: int = 0
    offset: int = 0
    size: int = 0


class Sequence(NamedTuple):
    """A request's place in a sequence; id 0 or "" means none."""

    id: int | str
    start: bool
    end: bool


class Region(NamedTuple):
    """A POSIX segment. `key` has its leading slash; (device, inode, size) are as stat'ed."""

    id: int
    key: str
    device: int
    inode: int
    size: int


Parameters = dict[str, str | int | float | bool]
PARAMETERS_MAX: Final = 256

ANY_VERSION: Final = -1


class InferRequest(NamedTuple):
    """One inference request as a client sends it.

    `id` is unique within the session; `attempt` is 1, then 2, 3, ... when the client resends after
    a reconnect. `label` is the user's own request id. `outputs` empty means all. `priority` 0 means
    the model's default. `timeout_us` 0 means none. Keys are "" when absent.
    """

    id: int
    attempt: int
    model: str
    version: int
    label: str
    inputs: tuple[Tensor, ...]
    outputs: tuple[OutputRequest, ...]
    priority: int = 0
    timeout_us: int = 0
    sequence: Sequence | None = None
    accounting_key: str = ""
    fairness_key: str = ""
    traceparent: str = ""
    parameters: Parameters = {}  # noqa: RUF012 - a default that nobody may write to; never mutated


class InferAnswer(NamedTuple):
    """One part of an answer; `final` marks the last. `version` is the one that ran."""

    id: int
    error: WireError | None
    version: int
    outputs: tuple[Tensor, ...]
    part_index: int = 0
    final: bool = True
    parameters: Parameters = {}  # noqa: RUF012


class BatchRequest(NamedTuple):
    """One request of a batch as the worker gets it: REGION ids are the broker's own.

    (`session`, `id`) name it across broker restarts. `remaining_us` is what is left of its budget
    (0: unlimited).
    """

    session: int
    id: int
    label: str
    inputs: tuple[Tensor, ...]
    outputs: tuple[OutputRequest, ...]
    remaining_us: int = 0
    priority: int = 0
    sequence: Sequence | None = None
    traceparent: str = ""
    parameters: Parameters = {}  # noqa: RUF012


class BatchResult(NamedTuple):
    """What became of one request of a batch, in the batch's order."""

    error: WireError | None
    outputs: tuple[Tensor, ...]
    part_index: int = 0
    final: bool = True
    parameters: Parameters = {}  # noqa: RUF012


class HeldBatch(NamedTuple):
    """A batch that a worker still has when it says hello: `finished` ones are sent again."""

    id: int
    requests: tuple[tuple[int, int], ...]
    finished: bool


class Durations(NamedTuple):
    """Nanoseconds of one batch in the worker: reading inputs, the model itself, writing outputs."""

    input_ns: int
    infer_ns: int
    output_ns: int
