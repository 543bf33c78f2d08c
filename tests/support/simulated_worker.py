"""A worker process of a simulation: does to the broker's messages what a real one does.

Says hello, loads, runs batches one after the other, keeps results until they are acknowledged,
outlives its broker. It checks what it is given: batches within the limit, one key per batch,
memory that belongs to the request, bytes that are the request's own.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable
from random import Random
from typing import TYPE_CHECKING, Any

from naiad.broker.core.prediction import SERIES_NS_MAX, SERIES_REQUESTS_MAX
from naiad.protocol import messages as m
from naiad.protocol.errors import Code
from naiad.shm.cuda.key import is_cuda
from naiad.worker.held import FINISHED_BATCHES_MAX
from support.simulated_arena import Arena
from support.simulated_execution import Execution, Key, Received, Regions
from support.simulated_ledger import Violation
from support.simulated_models import CRASH, ERROR, GPUS, Edition
from support.simulated_time import MICROSECOND, MILLISECOND, Connection

if TYPE_CHECKING:
    from support.simulated_server import Server


class SimulatedWorker:
    """One process from its start to its death. `key` is what the shell makes of its secret."""

    def __init__(self, server: Server, device: str, key: int, pid: int, random: Random) -> None:
        self.server = server
        self.ledger = server.ledger
        self.agenda = server.agenda
        self.device = device
        self.name = f"{device}-{pid}"
        self.key = key
        self.pid = pid
        self.random = random
        self.is_alive = True
        self.is_stopped = False
        """SIGSTOP: nothing it does shows until it continues or is killed."""
        self.connection: Connection | None = None
        self.welcomed = False
        self.incarnation = 0
        self.load: m.Load | None = None
        self.edition: Edition | None = None
        self.is_loaded = False
        self.draining = False
        self.waiting: deque[Received] = deque()
        self.executing: Received | None = None
        self.finished: OrderedDict[int, tuple[m.Results, list[bytes], m.Batch]] = OrderedDict()
        self.abandoned: set[tuple[int, int]] = set()
        self.page_batch = 0
        self.regions: Regions = {}
        """Of this broker; a batch keeps those of the broker that sent it."""
        self.arena = Arena(server.ledger, pid)
        self._execution = Execution(server.ledger, self.arena, random, repr(self))
        self._postponed: list[Callable[[], None]] = []
        self.agenda.after(random.randint(5, 60) * MILLISECOND, self.connect)

    def __repr__(self) -> str:
        return f"worker {self.name} pid {self.pid}"

    # --- the connection ------------------------------------------------------------------

    def connect(self) -> None:
        """Say hello, as often as it takes."""
        if not self.is_alive or (self.connection is not None and self.connection.is_open):
            return
        if self.is_stopped:
            self._postponed.append(self.connect)
            return
        self.welcomed = False
        self.connection = self.server.workers.connect(self)
        if self.connection is None:
            self.agenda.after(self.random.randint(2, 20) * MILLISECOND, self.connect)
            return
        load = self.load
        unfinished = [*([self.executing] if self.executing else []), *self.waiting]
        held = [
            m.HeldBatch(batch.id, tuple((r.session, r.id) for r in batch.requests), True)
            for _, _, batch in self.finished.values()
        ]
        held += [
            m.HeldBatch(batch.id, tuple((r.session, r.id) for r in batch.requests), False)
            for batch, _, _ in unfinished
        ]
        hello = m.SlotHello(
            secret=b"", slot=self.name, device=self.device, pid=self.pid, software="simulated",
            backends=("identity",), incarnation=self.incarnation,
            instance=load.instance if load else 0, model=load.model if load else "",
            version=load.version if load else 0, held=tuple(held),
            arenas=self.arena.told, leases=tuple(self.arena.leases),
        )  # fmt: skip
        self.connection.up.send((hello, []))

    def disconnected(self) -> None:
        """The monitor says so: connect anew at once."""
        self.connection = None
        self.welcomed = False
        if not self.is_stopped:
            self.agenda.after(self.random.randint(50, 2_000) * MICROSECOND, self.connect)

    def _send(self, message: m.Message, frames: list[Any]) -> None:
        if self.connection is not None:
            self.connection.up.send((message, frames))

    def received(self, message: Any, frames: list[bytes]) -> None:
        if not self.is_alive:
            return
        if self.is_stopped:
            connection = self.connection

            def later() -> None:
                if self.connection is connection:
                    self.received(message, frames)

            self._postponed.append(later)
            return
        match message:
            case m.Batch():
                self._batch(message, frames)
            case m.SlotWelcome(incarnation, _, keep):
                self._welcome(incarnation, keep)
            case m.Load():
                self._load(message)
            case m.Forget(ids):
                for ident in ids:
                    self.regions.pop(ident, None)
                self._send(m.Forgotten(ids), [])
            case m.Abandon(requests):
                unfinished = [*([self.executing] if self.executing else []), *self.waiting]
                here = {(r.session, r.id) for batch, _, _ in unfinished for r in batch.requests}
                self.abandoned.update(here.intersection(requests))
            case m.Return(leases):
                for lease in leases:
                    self.arena.end(lease)
            case m.Stop():
                self._drain()

    def _welcome(self, incarnation: int, keep: bool) -> None:
        if incarnation != self.incarnation:
            self.regions = {}
            self.incarnation = incarnation
        self.welcomed = True
        if self.load is not None and self.edition is not None and self.is_loaded:
            self._send(m.Loaded(self.load.instance, None, 1), [self.edition.config])
        for results, frames, _ in self.finished.values():
            self._send(results, frames)
        if not keep:
            self._drain()

    def _drain(self) -> None:
        self.draining = True
        self._go_on()

    # --- loading -------------------------------------------------------------------------

    def _load(self, load: m.Load) -> None:
        if self.load is not None:
            if self.load != load:
                raise Violation(f"{self} is {self.load.instance_name}, told to load {load}")
            self.server.workers.cut(self)  # it takes a second LOAD for a fault of the broker
            return
        if self.device != (GPUS[load.device_id] if load.kind == "KIND_GPU" else "cpu"):
            raise Violation(f"{self} is told to load {load.instance_name} of {load.kind}")
        self.load = load
        edition = self.edition = self.server.repository.edition_of(load.directory)
        outcome = edition.outcomes.pop(0) if edition.outcomes else "ok"
        self.ledger.tell(f"{self} loads {load.instance_name} ({outcome})")

        def done() -> None:
            if not self.is_alive:
                return
            if outcome == CRASH:
                self.server.workers.dies(self, "SIGSEGV")
            elif outcome == ERROR:
                self.server.truth.load_failed(load.directory)
                error = (str(Code.LOAD_FAILED), "initialize raised", False)
                self._send(m.Loaded(load.instance, error, edition.load_ns), [])
                self.server.workers.dies(self, "exit code 3")
            else:
                self.is_loaded = True
                self.server.truth.load_succeeded(load.directory)
                self._send(m.Loaded(load.instance, None, edition.load_ns), [edition.config])
                self._go_on()

        self.agenda.after(edition.load_ns, done)

    # --- executing -----------------------------------------------------------------------

    def _batch(self, batch: m.Batch, frames: list[bytes]) -> None:
        while self.finished and next(iter(self.finished)) <= batch.acknowledged:
            self.finished.popitem(last=False)
        for region in batch.regions:
            self.regions[region.id] = region
        if not self.is_loaded or len(self.waiting) > SERIES_REQUESTS_MAX:
            raise Violation(f"{self} cannot take batch {batch.id}: {len(self.waiting)} wait")
        self._check(batch)
        self.waiting.append((batch, frames, self.regions))
        self._go_on()

    def _check(self, batch: m.Batch) -> None:
        assert self.edition is not None
        config = self.edition.config
        rows_max = config["max_batch_size"]
        shapes = [request.inputs[0].shape for request in batch.requests]
        if "dynamic_batching" not in config:
            self._check_series(batch)
        elif rows_max and sum(shape[0] for shape in shapes) > rows_max:
            raise Violation(f"batch {batch.id}: {shapes}, at most {rows_max} rows")
        if len({shape[1:] for shape in shapes}) > 1:
            raise Violation(f"batch {batch.id} mixes {shapes}")
        if self.device in GPUS:
            for request in batch.requests:
                self._check_reach(request)

    def _check_reach(self, request: m.BatchRequest) -> None:
        """A process of a GPU sees the memory of no other."""
        places = [(one.place, one.region) for one in request.inputs]
        places += [(one.place, one.region) for one in request.outputs]
        for region in [self.regions[ident] for place, ident in places if place == m.Place.REGION]:
            if is_cuda(region) and GPUS[region.device] != self.device:
                raise Violation(f"{self} gets {region}", int(request.label))

    def _check_series(self, batch: m.Batch) -> None:
        """Alone, and with no more behind it than what is short; none that must not run twice."""
        assert self.edition is not None
        if len(batch.requests) > 1:
            raise Violation(f"{len(batch.requests)} requests in one batch of the default scheduler")
        ahead = len(self.waiting)
        if ahead <= 1:
            return
        if ahead * self.edition.service_ns > 2 * SERIES_NS_MAX:
            raise Violation(f"batch {batch.id} behind {ahead} of {self.edition.service_ns} ns")
        retry = self.edition.config["parameters"].get("naiad.retry", {"string_value": "true"})
        if retry["string_value"] == "false":
            raise Violation(f"batch {batch.id} behind {ahead} that must not run twice")

    def _go_on(self) -> None:
        """Begin the next batch, or end when there is nothing left and nobody wants more."""
        if not self.is_alive or self.executing is not None:
            return
        if not self.waiting:
            if self.draining and (self.load is None or self.is_loaded):
                self.server.workers.dies(self, "exit code 0")
            return
        assert self.edition is not None
        batch, frames, known = self.waiting.popleft()
        regions = dict(known)  # what it has mapped stays mapped while it executes
        received = self.executing = (batch, frames, regions)
        self.page_batch = batch.id
        rows = 0
        dies = False
        for request in batch.requests:
            if (request.session, request.id) in self.abandoned:
                continue
            token = self._execution.read(request, frames, regions)
            self.ledger.begin(token, f"{self} in batch {batch.id}")
            dies = dies or self.ledger.records[token].is_poison
            tensor = request.inputs[0]
            rows += tensor.shape[0] if len(tensor.shape) > 1 else 1
        took_ns = self.edition.service_ns + rows * self.edition.row_ns
        took_ns = int(took_ns * self.random.uniform(0.9, 1.4))
        if dies:
            self.agenda.after(
                took_ns // 2, lambda: self.server.workers.dies(self, "SIGSEGV", is_own=True)
            )
            return
        skipped = frozenset(self.abandoned)
        self.agenda.after(took_ns, lambda: self._finish(received, took_ns, skipped))
        if "dynamic_batching" not in self.edition.config:
            self.agenda.after(MILLISECOND, lambda: self._give_back(received))

    def _give_back(self, executing: Received) -> None:
        """The execution is long: what waits behind it goes elsewhere, what comes later as well."""
        if not self.is_alive or self.executing is not executing:
            return
        self.agenda.after(10 * MILLISECOND, lambda: self._give_back(executing))
        if self.is_stopped:
            return
        if self.waiting and self.welcomed:
            batches = [batch for batch, _, _ in self.waiting]
            self.waiting.clear()
            for batch in batches:
                self.abandoned.difference_update((r.session, r.id) for r in batch.requests)
            self._send(m.GivenBack(tuple(batch.id for batch in batches)), [])

    def _finish(self, received: Received, took_ns: int, skipped: frozenset[Key]) -> None:
        if not self.is_alive:
            return
        if self.is_stopped:
            self._postponed.append(lambda: self._finish(received, took_ns, skipped))
            return
        batch = received[0]
        answers: list[bytes] = [b""]
        results = [
            self._execution.result(one, received, answers, skipped) for one in batch.requests
        ]
        for request in batch.requests:
            self.ledger.running.pop(int(request.label), None)
        self.page_batch = 0
        self.executing = None
        arenas = self.arena.tell()
        durations = m.Durations(took_ns // 10, took_ns - took_ns // 5, took_ns // 10)
        message = m.Results(batch.id, tuple(results), durations, 0, arenas)
        self.finished[batch.id] = (message, answers, batch)
        if len(self.finished) > FINISHED_BATCHES_MAX:
            self.finished.popitem(last=False)
        self.abandoned.difference_update((r.session, r.id) for r in batch.requests)
        if self.welcomed:
            self._send(message, answers)
        self._go_on()

    # --- dying ---------------------------------------------------------------------------

    def die(self) -> None:
        """Everything stops here. What it had executed may be executed once more."""
        self.is_alive = False
        had = [batch for _, _, batch in self.finished.values()]
        if self.executing is not None:
            had.append(self.executing[0])
            if len(self.executing[0].requests) == 1:
                token = int(self.executing[0].requests[0].label)
                self.ledger.records[token].deaths_alone += 1
        for batch in had:
            for request in batch.requests:
                token = int(request.label)
                self.ledger.running.pop(token, None)
                self.ledger.excuse(token, f"{self} died")

    def stop(self, for_ns: int) -> None:
        """SIGSTOP, and SIGCONT later if it is still alive then."""
        self.is_stopped = True

        def go_on() -> None:
            self.is_stopped = False
            postponed, self._postponed = self._postponed, []
            for what in postponed:
                what()
            if self.is_alive and self.connection is None:
                self.connect()

        self.agenda.after(for_ns, go_on)
