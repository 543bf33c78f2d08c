"""Shared memory as the broker sees it: ids, owners, leases. It never maps a byte."""

from __future__ import annotations

from collections.abc import Iterable

from naiad.broker.core.events import (
    SaveState,
    SendReply,
    StatNamedRegion,
    TellSlot,
)
from naiad.broker.core.instances import Slot
from naiad.broker.core.queries import Json, number_argument, text_argument
from naiad.broker.core.results import Results
from naiad.broker.core.sessions import UNKNOWN_ARENA, Session
from naiad.broker.core.withdrawal import Withdrawal
from naiad.broker.core.world import NAMED_REGION_BASE, NamedRegion, World
from naiad.protocol import messages as m
from naiad.protocol.errors import Code, NaiadError, RequestError, Unavailable


class Memory:
    """Registers and forgets regions, and passes the end of leases on to the workers that lent."""

    def __init__(self, world: World, results: Results, withdrawal: Withdrawal) -> None:
        self._world = world
        self._results = results
        self._withdrawal = withdrawal

    # --- a session's own regions -------------------------------------------------------

    def offered(
        self, session: Session, call: int, region: m.Region, fault: NaiadError | None
    ) -> None:
        world = self._world
        known = session.regions.get(region.id)
        if fault is None and known is not None and known[1:] == region[1:]:
            world.actions.append(SendReply(session.key, call, None, {}))
            return  # told again because the reply was lost with the connection
        if fault is None:
            fault = self._fault(session, region)
        if fault is None:
            number = world.number()
            mine = region._replace(id=number)
            session.regions[region.id] = mine
            world.regions[number] = mine
        world.actions.append(SendReply(session.key, call, fault, None if fault else {}))

    def _fault(self, session: Session, region: m.Region) -> NaiadError | None:
        if region.id >= NAMED_REGION_BASE:
            return RequestError(f"region id {region.id}: expected less than {NAMED_REGION_BASE}")
        if region.id in session.regions:
            return RequestError(
                f"region id {region.id} is already registered; ids are never reused",
                code=Code.ALREADY_EXISTS,
            )
        if len(session.regions) >= self._world.limits.session_regions_max:
            return Unavailable(
                f"{len(session.regions)} regions registered, at most"
                f" {self._world.limits.session_regions_max} per client; forget some",
                code=Code.BUDGET_EXCEEDED,
            )
        return None

    def dropped(self, session: Session, call: int, ident: int) -> None:
        region = session.regions.pop(ident, None)
        if region is not None:
            self._cancel_users([session], (region.id,))
            self._forget([region.id])
        self._world.actions.append(SendReply(session.key, call, None, {}))

    def _cancel_users(self, sessions: Iterable[Session], gone: tuple[int, ...]) -> None:
        """Nothing is sent to a worker, now or after a death, that names a region nobody knows."""
        for session in sessions:
            for job in list(session.jobs.values()):
                if not job.regions().isdisjoint(gone):
                    self._withdrawal.cancel(
                        job,
                        RequestError(
                            "request was cancelled: a shared memory region it uses was"
                            " unregistered; wait for the answer first",
                            code=Code.CANCELLED,
                        ),
                    )

    def _forget(self, numbers: list[int]) -> None:
        world = self._world
        gone = set(numbers)
        for number in numbers:
            world.regions.pop(number, None)
        for slot in world.slots.values():
            known = tuple(slot.regions & gone)
            if known:
                slot.regions -= gone
                world.actions.append(TellSlot(slot.key, m.Forget(known), []))

    # --- leases ------------------------------------------------------------------------

    def released(self, session: Session, leases: tuple[tuple[int, int], ...]) -> None:
        """The client no longer reads these outputs: (arena, request id)."""
        ended: dict[int, list[tuple[int, int]]] = {}
        for lease in leases:
            slot_key = session.leases.pop(lease, None) or self.slot_of_arena(lease[0])
            if slot_key is not None:
                ended.setdefault(slot_key, []).append((session.key, lease[1]))
        for slot_key, pairs in ended.items():
            if slot_key in self._world.slots:
                self._world.actions.append(TellSlot(slot_key, m.Return(tuple(pairs)), []))

    def sweep_leases(self, slot: Slot, leases: tuple[tuple[int, int], ...]) -> None:
        """End what a worker said it lends when nobody holds it: RETURN was lost, or its holder.

        Who has not said hello to this broker yet may hold it, as long as its process lives.
        """
        if slot.key not in self._world.slots:
            return
        held = {
            (session.key, request_id)
            for session in self._world.sessions.values()
            for request_id in (*(lease[1] for lease in session.leases), *session.jobs)
        }
        held.update(self._results.orphans)
        for batch in (*slot.batches(), *slot.held.values()):
            held.update(batch.keys)  # its results are on their way
        gone = []
        for lease in leases:
            session = self._world.sessions.get(lease[0])
            if lease in held:
                continue
            if session is not None and not session.is_heard:
                session.leases[UNKNOWN_ARENA, lease[1]] = slot.key
            else:
                gone.append(lease)
        if gone:
            self._world.actions.append(TellSlot(slot.key, m.Return(tuple(gone)), []))

    def holds_only(self, session: Session, leases: tuple[tuple[int, int], ...]) -> None:
        """A client of an earlier broker says what it still reads: all else ends."""
        session.is_heard = True
        read = {request_id for _, request_id in leases}
        self.released(session, tuple(one for one in session.leases if one[1] not in read))
        session.leases.clear()

    def slot_of_arena(self, arena: int) -> int | None:
        """After a restart of the broker: workers said which arenas are theirs."""
        for slot in self._world.slots.values():
            if arena in slot.arenas:
                return slot.key
        return None

    def session_ended(self, session: Session) -> None:
        self.released(session, tuple(session.leases))
        numbers = [region.id for region in session.regions.values()]
        session.regions.clear()
        if numbers:
            self._forget(numbers)

    # --- regions registered by name (KServe's system shared memory) --------------------

    def register(self, session: Session, call: int, arguments: m.Parameters) -> None:
        name = text_argument(arguments, "name")
        key = text_argument(arguments, "key")
        size = number_argument(arguments, "byte_size")
        offset = number_argument(arguments, "offset", 0)
        world = self._world
        self._check_free(name)
        if size == 0:
            raise RequestError(
                f"failed to register shared memory region '{name}': invalid args: byte_size 0"
            )
        world.actions.append(StatNamedRegion(session.key, call, name, key, offset, size))

    def _check_free(self, name: str) -> None:
        if name in self._world.named_regions:
            raise RequestError(
                f"shared memory region '{name}' already in manager", code=Code.ALREADY_EXISTS
            )
        if len(self._world.named_regions) >= self._world.limits.named_regions_max:
            raise Unavailable(
                f"{self._world.limits.named_regions_max} regions are registered by name; unregister"
                " some",
                code=Code.BUDGET_EXCEEDED,
            )

    def stated(
        self,
        session_key: int,
        call: int,
        name: str,
        region: m.Region | None,
        fault: NaiadError | None,
        offset: int,
        size: int,
    ) -> None:
        """The shell looked at the segment of a registration."""
        world = self._world
        try:
            if fault is not None or region is None:
                raise fault or RequestError(f"Unable to open shared memory region: '{name}'")
            self._check_free(name)
            if offset + size > region.size:
                raise RequestError(
                    f"failed to register shared memory region '{name}': invalid args: offset"
                    f" {offset} + byte_size {size} > {region.size}, the size of the object"
                )
            number = NAMED_REGION_BASE + world.number() % (NAMED_REGION_BASE // 2)
            mine = region._replace(id=number)
            world.name_region(NamedRegion(name, mine, offset, size))
            world.actions.append(SaveState())
            world.actions.append(SendReply(session_key, call, None, {"id": number}))
        except Exception as raised:
            fault = world.blame(raised, "the call region_register")
            world.actions.append(SendReply(session_key, call, fault, None))

    def region_status(self, arguments: m.Parameters) -> list[Json]:
        name = arguments.get("name", "")
        named = self._world.named_regions
        if name and name not in named:
            raise RequestError(
                f"Unable to find system shared memory region: '{name}'", code=Code.NOT_FOUND
            )
        return [
            {
                "name": one.name,
                "key": one.region.key,
                "offset": one.offset,
                "byte_size": one.size,
                "id": one.region.id,
            }
            for one in named.values()
            if not name or one.name == name
        ]

    def unregister(self, arguments: m.Parameters) -> Json:
        """Forget one name, or all without a name; an unknown name succeeds, as in Triton."""
        name = arguments.get("name", "")
        self.forget_named((str(name),) if name else tuple(self._world.named_regions))
        return {}

    def forget_named(self, names: tuple[str, ...]) -> None:
        gone = [one for name in names if (one := self._world.named_regions.pop(name, None))]
        for one in gone:
            self._world.named_by_id.pop(one.region.id, None)
        if gone:
            self._cancel_users(self._world.sessions.values(), tuple(one.region.id for one in gone))
            self._forget([one.region.id for one in gone])
            self._world.actions.append(SaveState())
