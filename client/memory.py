"""A client's use of shared memory: which arrays go there, and whose bytes live how long.

Owns the decision between inline and shared, and the memory of requests under way (Placement); what
users allocate for themselves is regions'. Everything is given back by dropping references: the
session keeps those of a request until no process uses its memory. The bytes themselves are those
of naiad.shm.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any, Final, Literal

import numpy as np

from naiad.client.futures import DONE
from naiad.client.packing import Request
from naiad.client.regions import ClientRegion, check_size
from naiad.client.requests import INLINE, REGION, InferInput, PackedInput, Prepared, checked
from naiad.client.results import Copied, InferResult
from naiad.client.session import Session
from naiad.client.texts import fits_text, unfit_text
from naiad.protocol.errors import Code, NaiadError, RequestError, Unavailable
from naiad.protocol.messages import InferAnswer, OutputRequest, Region
from naiad.shm.pool import Loan
from naiad.shm.session_memory import DeviceMemory, SessionMemory
from naiad.shm.tensor import copy_into

Transport = Literal["auto", "inline", "shm"]

SHARED_BYTES_MIN: Final = 64 * 1024
"""Arrays from this size on are cheaper through shared memory (docs/performance.md)."""

LOG: Final = logging.getLogger("naiad.client")


class Placement:
    """The shared memory of one request: loans for its inputs, and what its places keep alive."""

    __slots__ = ("keeps", "loans")

    def __init__(self) -> None:
        self.loans: list[Loan] = []
        self.keeps: list[object] = []

    def __del__(self) -> None:
        for loan in self.loans:
            loan.release()


class RegistrationToken:
    """Whose registration of a segment is being answered; to the clients, a future that is done."""

    __slots__ = ()
    state = DONE
    tickets = None

    @staticmethod
    def done() -> bool:
        return True


class ClientMemory:
    """One client's shared memory. Only `placed` may be called without the client's lock.

    Args:
        ended: called, in any thread and inside the garbage collector, when a result that lies in a
            worker's memory is read no more.
    """

    def __init__(
        self, session: Session, transport: Transport, role: str, ended: Callable[[], None]
    ) -> None:
        if transport not in ("auto", "inline", "shm"):
            raise RequestError(f"transport: expected auto, inline or shm, got {transport!r}")
        self.bytes_min = {"auto": SHARED_BYTES_MIN, "shm": 1, "inline": 1 << 62}[transport]
        """Arrays from this size on go into shared memory."""
        self._session = session
        self._memory = SessionMemory(role)
        self._ended = ended
        self._is_started = False
        self._is_refused = False
        self.inline_outputs: dict[str, tuple[OutputRequest, ...]] = {}
        """Models whose results could not be mapped: ask for all outputs like this instead."""

    # --- what is sent --------------------------------------------------------------------------

    @property
    def is_ready(self) -> bool:
        """Whether the server's name is known, so that segments can be made."""
        if not self._is_started and self._session.server:
            self._memory.start(self._session.server)
            self._is_started = True
        return self._is_started

    def wants(self, inputs: Any) -> bool:
        """Whether any of a user's inputs is large enough for shared memory."""
        if isinstance(inputs, Mapping):
            given = list(inputs.values())
        elif isinstance(inputs, list | tuple):
            given = [item.data for item in inputs if isinstance(item, InferInput)]
        else:
            return False  # refused soon
        for array in given:
            size = getattr(array, "nbytes", 0)
            if isinstance(size, int) and size >= self.bytes_min:
                return True
        return False

    def placed(
        self, inputs: tuple[PackedInput, ...]
    ) -> tuple[tuple[PackedInput, ...], Placement | None]:
        """The inputs with the large ones copied into the arena, as far as it has room.

        Raises Unavailable when it has none and a message cannot carry them either.
        """
        if self._is_refused or not self.is_ready:
            return inputs, None
        placement = Placement()
        is_short = False
        out = []
        for item in inputs:
            name, datatype, shape, place, _, _, size, data = item
            if place == INLINE and size >= self.bytes_min and data is not None:
                loan = self._memory.allocate(size)
                if loan is None:
                    is_short = True
                else:
                    placement.loans.append(loan)
                    copy_into(loan.view, np.frombuffer(data, np.uint8))
                    item = (name, datatype, shape, REGION, loan.region, loan.offset, size, None)
            out.append(item)
        if is_short:
            self._check_inline(out)
        return tuple(out), placement if placement.loans else None

    def _check_inline(self, inputs: list[PackedInput]) -> None:
        """Raises Unavailable when too much of a request would have to go inline."""
        requests = self._session.requests
        limit = min(requests.inline_bytes_max, requests.bytes_max)
        size = sum([item[6] for item in inputs if item[3] == INLINE])
        if size > limit:
            raise Unavailable(
                f"{size} bytes of inputs: expected at most {limit} bytes of inline inputs, and"
                " there was no room in shared memory; enlarge /dev/shm or send less at once",
                code=Code.UNAVAILABLE,
            )

    def announce(self, now_ns: int) -> None:
        """Tell the session of segments that came or went; before a request that uses them."""
        calls = self._session.calls
        for region in self._memory.new_regions():
            calls.register_region(RegistrationToken(), 0, region)
        for region_id in self._memory.trim_when_due(now_ns):
            calls.forget_region(None, 0, region_id)

    def allocate(self, size: int) -> ClientRegion:
        """Memory for the user. Raises RequestError for a wrong size, Unavailable without room."""
        check_size(size)
        loan = None
        if not self._is_refused and self.is_ready:
            loan = self._memory.allocate(size)
        if loan is None:
            raise Unavailable(
                f"no shared memory for a region of {size} bytes; see the log for the reason",
                code=Code.UNAVAILABLE,
            )
        return ClientRegion(loan.region, loan.offset, loan.view, loan.release)

    def attach(self, key: str) -> tuple[Region, ClientRegion]:
        """The user's own segment, mapped; the first is to be registered. Raises RequestError."""
        if not fits_text(key):
            raise unfit_text("the name of a segment", key)
        region, view = self._memory.own(key)
        return region, ClientRegion(region.id, 0, view, _nothing)

    def attach_device(self, region: Region, memory: DeviceMemory) -> Region:
        """GPU memory of the user's; what is returned is to be registered. Raises Unavailable."""
        return self._memory.own_device(region, memory)

    def detach(self, region_id: int) -> None:
        self._memory.forget(region_id)

    def refused(self, fault: NaiadError) -> None:
        """The server does not take this client's segments: from now on everything goes inline."""
        if not self._is_refused:
            self._is_refused = True
            LOG.warning(
                "the server refused shared memory (%s); tensors travel inside messages, which is"
                " slower",
                fault.message,
            )

    def inline_again(self, request: Request, fault: NaiadError) -> Prepared | None:
        """The same request without shared inputs, if it failed for those only."""
        memory = request.parts.memory
        if not (self._is_refused and isinstance(memory, Placement) and memory.loans):
            return None
        if fault.code is not Code.NOT_FOUND:
            return None
        loans = {(loan.region, loan.offset): loan for loan in memory.loans}
        inputs = []
        for item in request.parts.inputs:
            loan = loans.get((item[4], item[5])) if item[3] == REGION else None
            if loan is not None:
                item = (*item[:3], INLINE, 0, 0, item[6], bytes(loan.view))
            inputs.append(item)
        return checked(request.parts.head, tuple(inputs), request.parts.tail)

    # --- what comes back -----------------------------------------------------------------------

    def result(
        self, request: Request, answer: InferAnswer, frames: Any
    ) -> InferResult | NaiadError:
        """The result of an answer with outputs in shared memory, mapped now."""
        session = self._session
        arenas, session.arenas = session.arenas, []
        if arenas:
            self._memory.forget_unlinked()
        keeps: list[object] = [_Farewell(self._ended)]
        if isinstance(request.parts.memory, Placement):
            keeps += request.parts.memory.keeps
        try:
            shared = self._memory.outputs(request.id, answer.outputs, arenas, keeps)
            if session.leases.is_full and shared is not None:
                return InferResult(answer, frames, Copied(shared, answer.outputs))
        except NaiadError as fault:
            self.inline_outputs[request.parts.head[0]] = tuple(
                OutputRequest(tensor.name, INLINE) for tensor in answer.outputs
            )
            return fault
        return InferResult(answer, frames, shared)

    def release_ended(self) -> None:
        """Tell the session of leases that nobody reads any more."""
        if self._memory.has_ended:
            self._session.leases.release(self._memory.take_ended())

    def close(self) -> None:
        self._memory.close()


def _nothing() -> None:
    """A user's own segment is not ours to free."""


class _Farewell:
    """Dies after the views of a result, when its lease has been noted as ended."""

    __slots__ = ("_ended",)

    def __init__(self, ended: Callable[[], None]) -> None:
        self._ended = ended

    def __del__(self) -> None:
        self._ended()
