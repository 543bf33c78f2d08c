"""All shared memory of one client session: what it sends from, and what workers lent to it.

Owns the session's arena, the mappings of its own regions and of workers' arenas, and the fate of
leases: a request's lease ends when no view of any of its outputs is left. Knows no socket; whoever
has one says to the broker what `new_regions`, `take_ended` and `trim_when_due` return.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any, Final, Protocol, cast

from naiad.protocol.errors import Code, NaiadError, RequestError, Unavailable
from naiad.protocol.messages import Place, Region, Tensor
from naiad.shm.mappings import Mappings
from naiad.shm.objects import describe
from naiad.shm.pool import ARENA_BYTES_MAX, Loan, Pool, PoolCounters
from naiad.shm.segment import Mapping
from naiad.shm.tensor import Array, Keeper, array_over, view_over

OWN_REGIONS_MAX: Final = 1024
_INLINE: Final = int(Place.INLINE)
_LEASE: Final = int(Place.LEASE)

Lease = tuple[int, int]
"""(region id, request id), as RELEASE and HELLO name it."""


class DeviceMemory(Protocol):
    """GPU memory of the user's, whose outputs are arrays there and no views."""

    def array(self, datatype: str, shape: tuple[int, ...], offset: int) -> Any: ...


class SharedOutputs:
    """The outputs of one answer that lie in shared memory, mapped at its arrival.

    Every view and array made here keeps the lease; so does this object.
    """

    __slots__ = ("_devices", "_keep", "_views")

    def __init__(
        self,
        views: dict[str, memoryview],
        keep: object,
        devices: dict[str, DeviceMemory],
    ) -> None:
        self._views = views
        self._keep = keep
        self._devices = devices

    def view(self, tensor: Tensor) -> memoryview:
        """The output's bytes, without a copy. Raises RequestError for a region that is not ours."""
        return view_over(self._found(tensor), self._keep)

    def array(self, tensor: Tensor) -> Array:
        """The output as an array, without a copy; one in GPU memory as a DeviceArray.

        Not for BYTES: parse a copy of `view`.
        """
        device = self._devices.get(tensor.name)
        if device is not None:
            found: Any = device.array(tensor.datatype, tensor.shape, tensor.offset)
            return cast("Array", found)
        view = self._found(tensor)
        return array_over(view, tensor.datatype, tensor.shape, keep=self._keep)

    def is_on_device(self, tensor: Tensor) -> bool:
        return tensor.name in self._devices

    def _found(self, tensor: Tensor) -> memoryview:
        found = self._views.get(tensor.name)
        if found is None and tensor.name in self._devices:
            raise on_device(tensor)
        if found is None:
            raise RequestError(
                f"output {tensor.name!r} lies in region {tensor.region}, which this client has not "
                "mapped; read it where you created that region"
            )
        return found


def on_device(tensor: Tensor) -> RequestError:
    """For who asks for the bytes of an output in GPU memory."""
    return RequestError(
        f"output {tensor.name!r} lies in GPU memory and has no bytes here; take it by its name,"
        " result[name], as an array there"
    )


class SessionMemory:
    """`role` is "client" or "gateway". `share`, `own` and what is said in them need one thread at a
    time; outputs may die in any thread."""

    def __init__(self, role: str = "client", *, limit_bytes: int = ARENA_BYTES_MAX) -> None:
        self._role = role
        self._limit_bytes = limit_bytes
        self._next_id = itertools.count(1).__next__
        self._pool: Pool | None = None
        self._own: dict[int, Mapping] = {}
        self._devices: dict[int, DeviceMemory] = {}
        self._lent = Mappings(writable=False)
        self._ended: deque[tuple[Lease, ...]] = deque()

    # --- what is sent ------------------------------------------------------------------------

    def start(self, server: str) -> None:
        """The server's name is known (WELCOME), and segments are called after it."""
        if self._pool is None:
            self._pool = Pool(server, self._role, self._next_id, limit_bytes=self._limit_bytes)

    def allocate(self, size: int) -> Loan | None:
        """`size` bytes of the arena; None: not started or no room, send the tensor inline."""
        return None if self._pool is None else self._pool.allocate(size)

    def own(self, key: str) -> tuple[Region, memoryview]:
        """The user's own segment, to be registered; and all of its bytes, writable.

        Raises RequestError when it cannot be mapped or is one of naiad's.
        """
        self._check_room()
        region = describe(key).region._replace(id=self._next_id())
        mapping = Mapping.open(region, writable=True, foreign=True)
        self._own[region.id] = mapping
        return region, mapping.slice(0, region.size, writable=True)

    def _check_room(self) -> None:
        count = len(self._own) + len(self._devices)
        if count >= OWN_REGIONS_MAX:
            raise Unavailable(
                f"{count} regions of your own are registered, at most {OWN_REGIONS_MAX};"
                " forget some",
                code=Code.BUDGET_EXCEEDED,
            )

    def own_device(self, region: Region, memory: DeviceMemory) -> Region:
        """The user's own GPU memory, to be registered under the id that this returns it with."""
        self._check_room()
        region = region._replace(id=self._next_id())
        self._devices[region.id] = memory
        return region

    def forget(self, region_id: int) -> None:
        """The user's own region is registered no longer; views that live keep it."""
        self._devices.pop(region_id, None)
        mapping = self._own.pop(region_id, None)
        if mapping is not None:
            mapping.close()

    def new_regions(self) -> tuple[Region, ...]:
        """Segments of the arena made since the last call: register them before the request."""
        return () if self._pool is None else self._pool.new_regions()

    def trim_when_due(self, now_ns: int) -> tuple[int, ...]:
        """Ids of segments that were given back, for the broker to forget; mostly empty."""
        return () if self._pool is None else self._pool.trim_when_due(now_ns)

    # --- what comes back ---------------------------------------------------------------------

    def outputs(
        self,
        request: int,
        tensors: Sequence[Tensor],
        arenas: Iterable[Region],
        keep: object = None,
    ) -> SharedOutputs | None:
        """The shared ones among an answer's outputs; None when there is none.

        Args:
            arenas: definitions of the worker arenas that they lie in.
            keep: kept alive with them, such as the loans that outputs were written into; dropped
                when `take_ended` knows already that the lease has ended.

        Raises:
            NaiadError: an output cannot be mapped. Its leases have ended then.
        """
        shared = [tensor for tensor in tensors if tensor[3] != _INLINE]
        if not shared:
            return None
        leases = tuple({(tensor[4], request): None for tensor in shared if tensor[3] == _LEASE})
        if leases:
            keep = Keeper(partial(self._ended.append, leases), keep)
        self._lent.define(arenas)
        views = {}
        devices = {}
        for tensor in shared:
            if tensor[3] != _LEASE and tensor[4] in self._devices:
                devices[tensor[0]] = self._devices[tensor[4]]
                continue
            view = self._mapped(tensor)
            if view is not None:
                views[tensor[0]] = view
        return SharedOutputs(views, keep, devices)

    def _mapped(self, tensor: Tensor) -> memoryview | None:
        """The output's bytes; None for a region registered by name, which its creator reads."""
        _, _, _, place, region, offset, size = tensor
        if place != _LEASE:
            own = self._own.get(region)
            if own is not None:
                return own.slice(offset, size, writable=True)
            return None if self._pool is None else self._pool.view(region, offset, size)
        try:
            return self._lent.view(region, offset, size)
        except NaiadError as fault:
            raise Unavailable(
                f"output {tensor.name!r} cannot be read any more: {fault.message}; ask again",
                code=Code.WORKER_DIED,
            ) from fault

    @property
    def has_ended(self) -> bool:
        """Whether `take_ended` would return something."""
        return bool(self._ended)

    def take_ended(self) -> list[Lease]:
        """Leases whose last view is gone, to be released."""
        out: list[Lease] = []
        while self._ended:
            out += self._ended.popleft()
        return out

    def forget_unlinked(self) -> None:
        """Unmap workers' arenas that their owners have given up; call it now and then."""
        self._lent.forget_unlinked()

    # --- the end -----------------------------------------------------------------------------

    def counters(self) -> PoolCounters | None:
        """What the arena has done; None before there is one."""
        return None if self._pool is None else self._pool.counters()

    def close(self) -> None:
        """Unlink the arena and unmap everything; what is still looked at stays mapped."""
        if self._pool is not None:
            self._pool.close()
        for region_id in (*self._own, *self._devices):
            self.forget(region_id)
        self._lent.close()
