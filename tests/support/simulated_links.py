"""Both sides of the simulated broker's sockets: who is connected, who is lost, who is dead.

Messages become events in the order of their connection; what is sent to nobody is
lost. A lost connection is told as such; a death is told after the last words that arrived.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from naiad.broker.core import events as e
from naiad.broker.core.deaths import DEATHS_ALONE_MAX
from naiad.protocol import messages as m
from support.simulated_client import SimulatedClient
from support.simulated_time import MICROSECOND, MILLISECOND, Connection
from support.simulated_worker import SimulatedWorker

if TYPE_CHECKING:
    from support.simulated_server import Server

SUSPICION_NS = 100 * MILLISECOND
DYING_US = (0, 50, 5_000, 300_000)
"""From SIGKILL to death."""
UNDYING_US = (12_000_000, 40_000_000)
"""The same where the kernel waits for a device: longer than until a worker is LOST."""


class Connections:
    """All connections of one life of the broker, also those that have not said hello yet."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._all: list[Connection] = []

    def make(self, peer: Any, to_broker: Callable[[Connection, Any], None]) -> Connection | None:
        server = self._server
        if not server.is_up:
            return None

        def to_peer(connection: Connection, message: Any) -> None:
            if peer.connection is connection:
                peer.received(*message)

        connection = Connection(
            server.agenda, server.random, peer=peer, to_broker=to_broker, to_peer=to_peer
        )
        self._all.append(connection)
        return connection

    def cut(self, connection: Connection) -> None:
        """What is on its way is lost; its peer notices a little later."""
        server = self._server
        connection.cut()
        peer = connection.peer

        def noticed() -> None:
            if peer.connection is connection:
                peer.disconnected()

        server.agenda.after(server.random.randint(50, 2_000) * MICROSECOND, noticed)

    def cut_all(self) -> None:
        for connection in self._all:
            if connection.is_open:
                self.cut(connection)
        self._all.clear()

    def close_all(self) -> None:
        """The broker ends in order: what it has sent arrives."""
        for connection in self._all:
            connection.is_open = False


class ClientLinks:
    """Clients by key, each with its newest connection."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._open: dict[int, Connection] = {}
        self.dead: set[int] = set()

    def connect(self, client: SimulatedClient) -> Connection | None:
        return self._server.connections.make(client, self._received)

    def clear(self) -> None:
        self._open.clear()

    def _received(self, connection: Connection, received: Any) -> None:
        message, frames = received
        key = connection.peer.key
        tell = self._server.tell
        match message:
            case m.Hello():
                self._open[key] = connection
                tell(e.SessionOpened(key, message.role, 1, message.leases))
            case m.Infer(requests):
                tell(e.RequestsArrived(key, requests, frames))
            case m.Cancel(ids):
                tell(e.CancelAsked(key, ids))
            case m.Release(leases):
                tell(e.LeasesReleased(key, leases))
            case m.RegisterRegion(call, region):
                tell(e.RegionOffered(key, call, region, None))
            case m.ForgetRegion(call, ident):
                tell(e.RegionDropped(key, call, ident))
            case m.Bye():
                self._open.pop(key, None)
                tell(e.SessionEnded(key))

    def send(self, key: int, message: m.Message, frames: list[bytes]) -> None:
        connection = self._open.get(key)
        if connection is not None:
            connection.down.send((message, frames))

    def cut(self, client: SimulatedClient) -> None:
        """The connection breaks; the broker notices a little later, unless it has a newer one."""
        server = self._server
        connection = client.connection
        if connection is None or not connection.is_open:
            return
        server.ledger.tell(f"{client} loses its connection")
        server.connections.cut(connection)

        def noticed() -> None:
            if self._open.get(client.key) is connection:
                del self._open[client.key]
                server.tell(e.SessionLost(client.key))

        server.in_this_life(server.random.randint(20, 1_000) * MICROSECOND, noticed)

    def dies(self, client: SimulatedClient) -> None:
        server = self._server
        if not client.is_alive:
            return
        server.ledger.tell(f"{client} dies")
        client.die()
        self.dead.add(client.key)
        connection = client.connection
        when_ns = server.agenda.now_ns if connection is None else connection.end()

        def noticed() -> None:
            if self._open.pop(client.key, None) is not None and server.random.random() < 0.5:
                server.tell(e.SessionLost(client.key))
            server.tell(e.SessionEnded(client.key))

        server.agenda.at(when_ns + server.random.randint(1, 500) * MICROSECOND, noticed)


class WorkerLinks:
    """Workers by key. `alive` are the processes; a dead one leaves when its death is told."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self.alive: dict[int, SimulatedWorker] = {}
        self._open: dict[int, Connection] = {}
        self._ordered: dict[int, str] = {}
        self._condemned: set[int] = set()
        """Sent SIGKILL, by whichever broker."""
        self.dying_us: tuple[int, ...] = DYING_US

    def connect(self, worker: SimulatedWorker) -> Connection | None:
        if worker.key in self._condemned:
            return None
        return self._server.connections.make(worker, self._received)

    def clear(self) -> None:
        self._open.clear()
        self._ordered.clear()

    def _received(self, connection: Connection, received: Any) -> None:
        message, frames = received
        server = self._server
        worker = connection.peer
        match message:
            case m.SlotHello():
                self._open[worker.key] = connection
                server.tell(e.SlotOpened(worker.key, message, worker.pid))
            case m.Loaded(instance, error, load_ns, gpu_bytes):
                config = None if error is not None else frames[0]
                loaded = e.InstanceLoaded(worker.key, instance, error, load_ns, config, gpu_bytes)
                server.tell(loaded)
            case m.Results():
                slot = server.scheduler.world.slots.get(worker.key)
                if slot and slot.current and slot.current.id == message.batch:
                    server.truth.executed(worker.load.directory, worker.load.version)
                server.tell(e.BatchFinished(worker.key, message, frames))
            case m.GivenBack(batches):
                server.tell(e.BatchesGivenBack(worker.key, batches))
            case m.Forgotten(ids):
                server.tell(e.RegionsForgotten(worker.key, ids))

    def send(self, key: int, message: m.Message, frames: list[Any]) -> None:
        connection = self._open.get(key)
        if connection is not None:
            connection.down.send((message, frames))

    def cut(self, worker: SimulatedWorker) -> None:
        """The connection breaks; unless it says hello again in time the process is fenced."""
        server = self._server
        connection = worker.connection
        if connection is None or not connection.is_open or not worker.is_alive:
            return
        server.ledger.tell(f"{worker} loses its connection")
        server.connections.cut(connection)
        if self._open.get(worker.key) is connection:
            del self._open[worker.key]

        def overdue() -> None:
            if worker.is_alive and worker.key not in self._open:
                server.tell(e.SlotSilent(worker.key, is_killed=True))
                self.kill(worker.key, "it stopped answering")

        server.in_this_life(SUSPICION_NS, overdue)

    def kill(self, key: int, reason: str) -> None:
        worker = self.alive.get(key)
        if worker is not None:
            self._ordered[key] = reason
            self._signal(worker, f"killed: {reason}")

    def _signal(self, worker: SimulatedWorker, reason: str) -> None:
        """SIGKILL: it connects no more, but a core or a disk may have it for a while yet."""
        self._condemned.add(worker.key)
        delay_us = self._server.random.choice(self.dying_us)
        self._server.agenda.after(delay_us * MICROSECOND, lambda: self.dies(worker, reason))

    def dies(self, worker: SimulatedWorker, reason: str, *, is_own: bool = False) -> None:
        """The process ends now. Its death counts once the shell has seen it, after its words."""
        server = self._server
        if not worker.is_alive:
            return
        server.ledger.tell(f"{worker} dies: {reason}, executing {worker.page_batch}")
        alone = None
        if is_own and worker.executing is not None and len(worker.executing[0].requests) == 1:
            alone = server.ledger.records[int(worker.executing[0].requests[0].label)]
        worker.die()
        # Until a request was alone at two deaths nobody can know whose doing the first one was.
        is_known = alone is not None and alone.deaths_alone >= DEATHS_ALONE_MAX
        connection = worker.connection
        when_ns = server.agenda.now_ns if connection is None else connection.end()

        def noticed() -> None:
            self._open.pop(worker.key, None)
            self.alive.pop(worker.key, None)
            ordered = self._ordered.pop(worker.key, None) is not None
            slot = server.scheduler.world.slots.get(worker.key)
            if slot is not None and slot.instance is not None:
                model = slot.instance.model
                server.truth.worker_died(model.directory, model.version, is_known=is_known)
            server.tell(e.SlotDied(worker.key, reason, worker.page_batch, ordered))
            server.supervisor.exited()

        delay_us = server.random.choice((10, 200, 50_000))
        server.agenda.at(when_ns + delay_us * MICROSECOND, noticed)
