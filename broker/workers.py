"""The workers' side of the broker's shell: frames to events, actions to frames, and the fence.

Owns which connection belongs to which worker, and who is under suspicion; what is known of one
process is worker_process', of the supervisor supervisor_peer's. Decides nothing about instances.

A lost connection is only suspicion. The worker may say hello again within a short grace; else its
stacks are dumped, it is killed, and its death counts when its pidfd says so.
"""

from __future__ import annotations

import json
import os
import signal
import time
from typing import Any, Final

from naiad.broker.clients import key_of
from naiad.broker.core import events as e
from naiad.broker.core.deadlines import NEVER_NS
from naiad.broker.liveness import Liveness, Watched, open_same
from naiad.broker.log import Log
from naiad.broker.supervisor_peer import SupervisorPeer
from naiad.broker.transport import Peer, Received, Transport, peer_of
from naiad.broker.worker_process import WorkerProcess
from naiad.config.log_levels import INITIAL
from naiad.protocol import messages as m
from naiad.protocol.bundle import bundled, unbundled
from naiad.protocol.codec import decode, encode
from naiad.protocol.endpoints import Endpoints
from naiad.protocol.errors import Code, NaiadError, ProtocolError, Unavailable

SUSPICION_NS: Final = 100_000_000
"""From a lost connection to SIGKILL: time to say hello again on a new one."""
LEAVING_NS: Final = 120_000_000_000
"""For a worker that ended its connection in order to unload; its own grace is shorter."""
FAULTS_LOGGED_MAX: Final = 100
"""Garbage can come without end; after this many lines it is only refused."""
STATUS_WAIT_NS: Final = 250_000_000
"""How long a death waits for the supervisor's word on how it came about: a few milliseconds, unless
the machine is so busy that the supervisor gets no turn."""

_make: Final = tuple.__new__
"""NamedTuple from a tuple of its fields, for what comes and goes with every request."""


class Workers:
    """Slots are named by a number made of their secret; see naiad.broker.core.events."""

    def __init__(
        self, transport: Transport, liveness: Liveness, endpoints: Endpoints, log: Log
    ) -> None:
        self.transport = transport
        self._liveness = liveness
        self._endpoints = endpoints
        self._log = log
        self._processes: dict[int, WorkerProcess] = {}
        self._by_peer: dict[bytes, WorkerProcess] = {}
        self._peer_at: dict[int, bytes] = {}
        """By connection descriptor: how a DISCONNECTED finds its peer."""
        self._suspects: dict[int, WorkerProcess] = {}
        self._supervisor = SupervisorPeer()
        self._faults = 0
        self._log_levels = INITIAL
        self._batches: dict[bytes, list[tuple[bytes, list[bytes]]]] = {}
        """Of this turn, by peer: what goes to one worker travels together."""

    # --- in ----------------------------------------------------------------------------

    def drain(self) -> list[e.Event]:
        events: list[e.Event] = []
        for received in self.transport.drain():
            try:
                self._take_all(received, events)
            except NaiadError as fault:
                if isinstance(fault, ProtocolError):
                    events.append(e.PeersFaulted(1, 0))
                self._refuse(received.peer, fault)
        return events

    def _refuse(self, peer: bytes, fault: NaiadError) -> None:
        self._faults += 1
        if self._faults <= FAULTS_LOGGED_MAX:
            last = " (later ones are not logged)" if self._faults == FAULTS_LOGGED_MAX else ""
            self._log.write("warning", f"a peer of the workers' socket: {fault.message}{last}")
        self.transport.send_or_drop(peer, [encode(m.Refused(str(fault.code), fault.message))])

    def _take_all(self, received: Received, events: list[e.Event]) -> None:
        message = decode(received.header, [len(frame) for frame in received.payload])
        if type(message) is not m.Bundle:
            self._take(received, message, events)
            return
        for header, frames in unbundled(message, received.payload):
            inner = decode(header, [len(frame) for frame in frames])
            one = Received(received.peer, header, frames, received.frame)
            self._take(one, inner, events)

    def _take(self, received: Received, message: m.Message, events: list[e.Event]) -> None:
        payload = received.payload
        process = self._by_peer.get(received.peer)
        if type(message) is m.Results and process is not None:
            events.append(_make(e.BatchFinished, (process.key, message, payload)))
            return
        match message:
            case m.SlotHello():
                events += self.disconnected()
                self._hello(received, message, events)
            case m.SupervisorHello(secret):
                events += self.disconnected()
                descriptor, peer = self._check_uid(received)
                os.close(peer.pidfd)
                self._supervisor.opened(received.peer, secret)
                self._peer_at[descriptor] = received.peer
                events.append(e.SupervisorOpened())
            case m.Exited(_, pid, status) if received.peer == self._supervisor.peer:
                self._supervisor.exited(pid, status)
            case m.Spawned() if received.peer == self._supervisor.peer:
                pass
            case m.Loaded(instance, error, load_ns, gpu_bytes) if process is not None:
                # With an error, payload 0 is the traceback, which the worker has logged itself.
                config = _json(payload) if error is None else None
                events.append(
                    e.InstanceLoaded(process.key, instance, error, load_ns, config, gpu_bytes)
                )
            case m.GivenBack(batches) if process is not None:
                events.append(e.BatchesGivenBack(process.key, batches))
            case m.Forgotten(ids) if process is not None:
                events.append(e.RegionsForgotten(process.key, ids))
            case _:
                raise ProtocolError(
                    f"{type(message).__name__} from a peer that did not say hello as one that may"
                    " send it"
                )

    def _check_uid(self, received: Received) -> tuple[int, Peer]:
        try:
            descriptor = received.descriptor()
            peer = peer_of(descriptor)
        except OSError as fault:
            gone = "the connection is gone"
            raise Unavailable(gone, code=Code.CONNECTION_LOST) from fault
        if peer.uid != os.getuid():
            os.close(peer.pidfd)
            raise ProtocolError(f"user {peer.uid} may not be a worker of user {os.getuid()}")
        return descriptor, peer

    def _hello(self, received: Received, hello: m.SlotHello, events: list[e.Event]) -> None:
        descriptor, peer = self._check_uid(received)
        key = key_of(hello.secret)
        process = self._processes.get(key)
        if process is not None and (process.pid != peer.pid or process.dead_since_ns):
            os.close(peer.pidfd)
            raise ProtocolError("the secret of another worker")
        if process is None:
            process = WorkerProcess(key, hello.slot, peer.pid, self._endpoints)
            self._processes[key] = process
        process.open_page()
        if process.peer is not None:
            self._by_peer.pop(process.peer, None)
            self.transport.forget(process.peer)
        process.peer = received.peer
        if not process.kill_reason:
            process.kill_at_ns = 0
            self._suspects.pop(key, None)
        self._by_peer[received.peer] = process
        self._peer_at[descriptor] = received.peer
        self._liveness.watch(key, is_slot=True, pid=peer.pid, pidfd=peer.pidfd)
        events.append(e.SlotOpened(key, hello, peer.pid))

    def disconnected(self) -> list[e.Event]:
        """Lost connections become suspicions; the clock starts."""
        now_ns = time.monotonic_ns()
        events: list[e.Event] = []
        for descriptor in self.transport.disconnected():
            peer = self._peer_at.pop(descriptor, None)
            if peer is None:
                continue
            if peer == self._supervisor.peer:
                self._supervisor.peer = None
            process = self._by_peer.pop(peer, None)
            if process is None:
                continue
            process.peer = None
            if process.dead_since_ns or process.kill_at_ns:
                continue
            self._suspects[process.key] = process
            if process.is_leaving:
                process.kill_at_ns = now_ns + LEAVING_NS
                events.append(e.SlotSilent(process.key, is_killed=False))
            else:
                process.kill_at_ns = now_ns + SUSPICION_NS
                self._liveness.signal(process.key, signal.SIGUSR1)
        return events

    # --- suspicion and death -----------------------------------------------------------

    @property
    def has_suspects(self) -> bool:
        return bool(self._suspects)

    def deadline_ns(self) -> int:
        """When a suspect must be killed or a death told."""
        earliest = NEVER_NS
        for process in self._suspects.values():
            if process.dead_since_ns:
                earliest = min(earliest, process.dead_since_ns + STATUS_WAIT_NS)
            elif process.kill_at_ns:
                earliest = min(earliest, process.kill_at_ns)
        return earliest

    def note_death(self, dead: Watched) -> None:
        process = self._processes.get(dead.key)
        if process is not None and not process.dead_since_ns:
            process.dead_since_ns = time.monotonic_ns()
            self._suspects[process.key] = process

    def shortages(self) -> list[e.Event]:
        """How often workers found no room in shared memory since the last call."""
        new = sum([process.new_shortages() for process in self._processes.values()])
        return [e.RoomWasShort(new)] if new else []

    def settled_deaths(self, now_ns: int) -> list[e.Event]:
        """Deaths whose reason is known by now, and kills that are due."""
        events: list[e.Event] = []
        for process in list(self._suspects.values()):
            if process.dead_since_ns:
                is_overdue = now_ns >= process.dead_since_ns + STATUS_WAIT_NS
                if is_overdue or not self._supervisor.may_tell_of(process.pid):
                    events += [*self.shortages(), self._died(process)]
            elif process.kill_at_ns and now_ns >= process.kill_at_ns:
                process.kill_at_ns = 0
                process.kill_reason = process.kill_reason or "it stopped answering"
                self._log.write("warning", f"worker {process.slot} pid {process.pid}: SIGKILL")
                self._liveness.signal(process.key, signal.SIGKILL)
                events.append(e.SlotSilent(process.key, is_killed=True))
        return events

    def _died(self, process: WorkerProcess) -> e.SlotDied:
        died = process.death(self._supervisor.take_status(process.pid))
        self._drop(process)
        return died

    def _drop(self, process: WorkerProcess) -> None:
        self._processes.pop(process.key, None)
        self._suspects.pop(process.key, None)
        if process.peer is not None:
            self._by_peer.pop(process.peer, None)
            self.transport.forget(process.peer)
        self._liveness.unwatch(process.key, is_slot=True)
        process.close()

    # --- out ---------------------------------------------------------------------------

    def send_batch(self, action: e.SendBatch) -> None:
        process = self._processes.get(action.slot)
        if process is None:
            return
        for region in action.batch.regions:
            process.regions[region.id] = region
        if process.peer is not None:
            message = encode(action.batch), action.frames
            self._batches.setdefault(process.peer, []).append(message)

    def send_batches(self) -> None:
        """What was given to `send_batch`; at the end of a turn, and before anything else goes."""
        if self._batches:
            for peer, messages in self._batches.items():
                header, frames = bundled(messages)
                self.transport.send(peer, [header, *frames])
            self._batches.clear()

    def tell(self, action: e.TellSlot) -> None:
        self.send_batches()
        process = self._processes.get(action.slot)
        if process is None:
            return
        if type(action.message) is m.Forget:
            for ident in action.message.ids:
                process.regions.pop(ident, None)
        if process.peer is not None:
            self.transport.send(process.peer, [encode(action.message), *action.frames])
            if type(action.message) is m.SlotWelcome:
                self.transport.send(process.peer, [encode(self._log_levels)])

    def set_log_levels(self, levels: m.LogLevels) -> None:
        """Tell everybody who is there; the others with their welcome."""
        self._log_levels = levels
        for process in self._processes.values():
            if process.peer is not None:
                self.transport.send(process.peer, [encode(levels)])
        self._to_supervisor(levels)

    def kill(self, action: e.KillSlot) -> None:
        process = self._processes.get(action.slot)
        if process is not None:
            process.kill_reason = action.reason
            process.kill_at_ns = 0
            self._log.write("warning", f"worker {process.slot} is killed: {action.reason}")
            self._liveness.signal(action.slot, signal.SIGKILL)

    def tell_supervisor(self, action: e.TellSupervisor) -> None:
        self._to_supervisor(action.message)

    def _to_supervisor(self, message: m.Message) -> None:
        peer = self._supervisor.peer
        if peer is not None and not self.transport.send(peer, [encode(message)]):
            self._supervisor.peer = None

    # --- over restarts -----------------------------------------------------------------

    def complete_ledger(self, slots: list[dict[str, Any]]) -> None:
        """Add to the scheduler's ledger what proves a process to be the same one later."""
        for entry in slots:
            process = self._processes.get(entry["slot"])
            entry["started"] = 0 if process is None else process.started

    def expect(self, saved: dict[str, Any]) -> list[e.Event]:
        """Watch an earlier broker's workers until they say hello; the dead are told at once."""
        events: list[e.Event] = []
        for entry in saved.get("slots", ()):
            key, pid = entry["slot"], entry["pid"]
            if key in self._processes:
                continue
            pidfd = open_same(pid, entry["started"])
            if pidfd is None:
                events.append(e.SlotDied(key, "it died while the broker was away", 0, False))
                continue
            process = WorkerProcess(key, entry["name"], pid, self._endpoints)
            self._processes[key] = process
            process.open_page()
            self._liveness.watch(key, is_slot=True, pid=pid, pidfd=pidfd)
        return events


def _json(payload: list[bytes]) -> dict[str, Any]:
    try:
        found = json.loads(payload[0])
        # JSON can spell texts that no message of ours can carry on: lone surrogates.
        json.dumps(found, ensure_ascii=False).encode()
    except (ValueError, IndexError, RecursionError) as fault:
        raise ProtocolError(f"LOADED without a config as JSON: {fault}") from fault
    if type(found) is not dict:
        raise ProtocolError("LOADED: expected the config as a JSON object")
    return found
