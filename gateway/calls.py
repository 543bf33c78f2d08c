"""What both skins translate to and from: one inference call and its answer. Pure.

Owns no bytes: buffers are views of what came over the wire, or of what the server lent.
"""

from __future__ import annotations

from typing import Final, NamedTuple, Protocol

from naiad.client.requests import Buffer, InferInput
from naiad.gateway.users import NOBODY, User
from naiad.protocol.messages import Parameters, Sequence

ANY_VERSION: Final = -1
"""The newest version that is ready."""
TENSORS_MAX: Final = 1024
"""Inputs of a call, and outputs: more would not fit into one message."""


class RegionPart(NamedTuple):
    """`byte_size` bytes at `offset` of a region registered by name with the server."""

    name: str
    offset: int
    byte_size: int


class Arena(Protocol):
    """Memory of the gateway's own that workers read: a naiad.client.regions.ClientRegion."""

    def input(
        self, name: str, datatype: str, shape: tuple[int, ...], offset: int = 0, size: int = -1
    ) -> InferInput: ...

    @property
    def view(self) -> memoryview: ...


class ArenaPart(NamedTuple):
    """`byte_size` bytes at `offset` of an arena: received there, and never copied."""

    arena: Arena
    offset: int
    byte_size: int


class BodyPlace(NamedTuple):
    """Memory for the body of a request while it is received: `view`, at `offset` of an arena."""

    arena: Arena
    offset: int
    view: memoryview


class CallInput(NamedTuple):
    """One input: raw bytes in C order as KServe's binary form has them, or where they lie."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    data: Buffer | RegionPart | ArenaPart


class CallOutput(NamedTuple):
    """One requested output. `classification` is the number of classes wanted, 0 for the tensor."""

    name: str
    classification: int = 0
    region: RegionPart | None = None
    is_binary: bool = False
    """HTTP: the tensor follows the JSON; gRPC answers are always raw."""


class InferCall(NamedTuple):
    """One request. No outputs means all of them, as binary if `is_binary_by_default`."""

    model: str
    version: int
    id: str
    inputs: tuple[CallInput, ...]
    outputs: tuple[CallOutput, ...] = ()
    parameters: Parameters = {}  # noqa: RUF012 - never written to
    priority: int = 0
    timeout_us: int = 0
    sequence: Sequence | None = None
    is_binary_by_default: bool = False
    user: User = NOBODY


class AnswerOutput(NamedTuple):
    """One output: its bytes, or None when they were written to the region that was asked for."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    data: memoryview | None


class InferAnswer(NamedTuple):
    """The answer to a call; `outputs` in the order of the model."""

    model: str
    version: int
    id: str
    outputs: tuple[AnswerOutput, ...]
    parameters: Parameters = {}  # noqa: RUF012 - never written to


def region_names(call: InferCall) -> frozenset[str]:
    """Names of the regions that a call uses."""
    if not call.outputs:
        for one in call.inputs:
            if type(one.data) is RegionPart:
                break
        else:
            return _NO_NAMES
    names = [one.data.name for one in call.inputs if isinstance(one.data, RegionPart)]
    names += [one.region.name for one in call.outputs if one.region is not None]
    return frozenset(names)


_NO_NAMES: Final[frozenset[str]] = frozenset()
