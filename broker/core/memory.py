"""Shared memory as the broker sees it: ids, owners, leases. It never maps a byte."""

from __future__ import annotations

from collections.abc import Iterable

from naiad.broker.core.closings import Closings, Opened
from naiad.broker.core.events import SendReply, TellSlot
from naiad.broker.core.instances import Slot
from naiad.broker.core.named_regions import no_gpus, number_of, other_gpu
from naiad.broker.core.results import Results
from naiad.broker.core.sessions import UNKNOWN_ARENA, Session
from naiad.broker.core.withdrawal import Withdrawal
from naiad.broker.core.world import NAMED_REGION_BASE, World
from naiad.protocol import messages as m
from naiad.protocol.errors import Code, NaiadError, RequestError, Unavailable
from naiad.shm.cuda.key import is_cuda, parsed


class Memory:
    """Registers and forgets regions, and passes the end of leases on to the workers that lent."""

    def __init__(
        self, world: World, results: Results, withdrawal: Withdrawal, closings: Closings
    ) -> None:
        self._world = world
        self._closings = closings
        self._results = results
        self._withdrawal = withdrawal

    # --- a session's own regions -------------------------------------------------------

    def offered(
        self,
        session: Session,
        call: int,
        region: m.Region,
        fault: NaiadError | None,
        gpu: str = "",
    ) -> None:
        world = self._world
        if gpu and is_cuda(region):
            region = region._replace(device=self._number_of(region, gpu))
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

    def _number_of(self, region: m.Region, uuid: str) -> int:
        """The server's number of a GPU. Raises RequestError."""
        number = number_of(self._world.gpus, uuid)
        if number is None:
            raise other_gpu(parsed(region.key).name, uuid, self._world.gpus)
        return number

    def _fault(self, session: Session, region: m.Region) -> NaiadError | None:
        if region.id >= NAMED_REGION_BASE:
            return RequestError(f"region id {region.id}: expected less than {NAMED_REGION_BASE}")
        if region.id in session.regions:
            return RequestError(
                f"region id {region.id} is already registered; ids are never reused",
                code=Code.ALREADY_EXISTS,
            )
        if is_cuda(region) and region.device >= len(self._world.gpus):
            return no_gpus(parsed(region.key).name, region.device, len(self._world.gpus))
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
            opened = self.withdraw([session], [region.id])
            if is_cuda(region):
                self._closings.reply(session.key, call, {}, opened)
                return
        self._world.actions.append(SendReply(session.key, call, None, {}))

    def withdraw(self, sessions: Iterable[Session], numbers: list[int]) -> set[Opened]:
        """These regions are registered no more, and only these sessions may be using them.

        Returns what workers were told to forget.
        Nothing is sent to a worker, now or after a death, that names a region nobody knows.
        """
        gone = set(numbers)
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
        return self._forget(numbers)

    def _forget(self, numbers: list[int]) -> set[Opened]:
        world = self._world
        told: set[Opened] = set()
        gone = set(numbers)
        for number in numbers:
            world.regions.pop(number, None)
        for slot in world.slots.values():
            known = tuple(slot.regions & gone)
            if known:
                slot.regions -= gone
                world.actions.append(TellSlot(slot.key, m.Forget(known), []))
                told.update((slot.key, number) for number in known)
        return told

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
