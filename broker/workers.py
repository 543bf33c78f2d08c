"""The workers' side of the broker's shell: slots, the supervisor, the fence around the dead.

A lost connection is only suspicion. The worker may say hello again within a short grace; else its
stacks are dumped, it is killed, and its death counts when its pidfd says so.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import time
from typing import Any, Final

from naiad.broker.clients import key_of
from naiad.broker.core import events as e
from naiad.broker.core.deadlines import NEVER_NS
from naiad.broker.liveness import Liveness, Watched, open_same, start_time
from naiad.broker.log import Log
from naiad.broker.transport import Peer, Received, Transport, peer_of
from naiad.config.log_levels import INITIAL
from naiad.protocol import messages as m
from naiad.protocol.bundle import bundled, unbundled
from naiad.protocol.codec import decode, encode
from naiad.protocol.endpoints import Endpoints
from naiad.protocol.errors import Code, NaiadError, ProtocolError, Unavailable
from naiad.shm.objects import describe
from naiad.shm.page import PageReader, PageState, Phase

SUSPICION_NS: Final = 100_000_000
"""From a lost connection to SIGKILL: time to say hello again on a new one."""
LEAVING_NS: Final = 120_000_000_000
"""For a worker that ended its connection in order to unload; its own grace is shorter."""
FAULTS_LOGGED_MAX: Final = 100
"""Garbage can come without end; after this many lines it is only refused."""
STATUSES_MAX: Final = 256
"""Exits the supervisor told of and nobody has asked for yet; the oldest are forgotten."""
STATUS_WAIT_NS: Final = 250_000_000
"""How long a death waits for the supervisor's word on how it came about: a few milliseconds, unless
the machine is so busy that the supervisor gets no turn."""
REGIONS_CHECKED_MAX: Final = 1024


class _Process:
    """What the shell knows of one worker."""

    def __init__(self, key: int, slot: str, pid: int) -> None:
        self.key = key
        self.slot = slot
        self.pid = pid
        self.started = start_time(pid)
        self.peer: bytes | None = None
        self.page: PageReader | None = None
        self.kill_at_ns = 0
        self.kill_reason = ""
        self.dead_since_ns = 0
        self.faults_told = 0
        """Of the faults on its page."""
        self.regions: dict[int, m.Region] = {}


class Workers:
    def __init__(
        self, transport: Transport, liveness: Liveness, endpoints: Endpoints, log: Log
    ) -> None:
        self.transport = transport
        self._liveness = liveness
        self._endpoints = endpoints
        self._log = log
        self._processes: dict[int, _Process] = {}
        self._by_peer: dict[bytes, _Process] = {}
        self._peer_at: dict[int, bytes] = {}
        """By connection descriptor: how a DISCONNECTED finds its peer."""
        self._suspects: dict[int, _Process] = {}
        self._supervisor: bytes | None = None
        self._supervisor_secret = b""
        self._faults = 0
        self._statuses: dict[int, int] = {}
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
            events.append(e.BatchFinished(process.key, message, payload))
            return
        match message:
            case m.SlotHello():
                events += self.disconnected()
                self._hello(received, message, events)
            case m.SupervisorHello(secret):
                events += self.disconnected()
                self._take_supervisor(received, secret)
                events.append(e.SupervisorOpened())
            case m.Exited(_, pid, status) if received.peer == self._supervisor:
                self._statuses[pid] = status
                if len(self._statuses) > STATUSES_MAX:
                    del self._statuses[next(iter(self._statuses))]
            case m.Spawned() if received.peer == self._supervisor:
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

    def _take_supervisor(self, received: Received, secret: bytes) -> None:
        """There is one at a time; it may say hello again on a new connection."""
        descriptor, peer = self._check_uid(received)
        os.close(peer.pidfd)
        if self._supervisor is not None and secret != self._supervisor_secret:
            raise ProtocolError("another supervisor is connected; only one can start workers")
        self._supervisor = received.peer
        self._supervisor_secret = secret
        self._peer_at[descriptor] = received.peer

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
            process = self._processes[key] = _Process(key, hello.slot, peer.pid)
            with contextlib.suppress(OSError):
                process.page = PageReader.open(self._endpoints.page_path(hello.slot))
        elif process.page is None:
            with contextlib.suppress(OSError):
                process.page = PageReader.open(self._endpoints.page_path(hello.slot))
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
            if peer == self._supervisor:
                self._supervisor = None
            process = self._by_peer.pop(peer, None)
            if process is None:
                continue
            process.peer = None
            if process.dead_since_ns or process.kill_at_ns:
                continue
            self._suspects[process.key] = process
            if _is_leaving(process):
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
        new = 0
        for process in self._processes.values():
            page = process.page.read() if process.page is not None else None
            if page is not None and page.io_faults > process.faults_told:
                new += page.io_faults - process.faults_told
                process.faults_told = page.io_faults
        return [e.RoomWasShort(new)] if new else []

    def settled_deaths(self, now_ns: int) -> list[e.Event]:
        """Deaths whose reason is known by now, and kills that are due."""
        events: list[e.Event] = []
        for process in list(self._suspects.values()):
            if process.dead_since_ns:
                knows = self._supervisor is None or process.pid in self._statuses
                if knows or now_ns >= process.dead_since_ns + STATUS_WAIT_NS:
                    events += [*self.shortages(), self._died(process)]
            elif process.kill_at_ns and now_ns >= process.kill_at_ns:
                process.kill_at_ns = 0
                process.kill_reason = process.kill_reason or "it stopped answering"
                self._log.write("warning", f"worker {process.slot} pid {process.pid}: SIGKILL")
                self._liveness.signal(process.key, signal.SIGKILL)
                events.append(e.SlotSilent(process.key, is_killed=True))
        return events

    def _died(self, process: _Process) -> e.SlotDied:
        page = process.page.read() if process.page is not None else None
        reason = self._reason(process, page)
        truncated = self._truncated(process)
        self._drop(process)
        ordered = bool(process.kill_reason)
        executing, begun = (0, 0) if page is None else (page.executing, page.begun)
        return e.SlotDied(process.key, reason, executing, ordered, truncated, begun)

    def _reason(self, process: _Process, page: PageState | None) -> str:
        status = self._statuses.pop(process.pid, None)
        if process.kill_reason:
            return f"killed: {process.kill_reason}"
        if status is None:
            first = self._first_stack_line(process)
            if first:
                return first
            return "killed (SIGKILL or out of memory)"
        if status >= 0:
            return f"exit code {status}"
        try:
            return signal.Signals(-status).name
        except ValueError:
            return f"signal {-status}"

    def _first_stack_line(self, process: _Process) -> str:
        """faulthandler's own words, when nobody could tell us the wait status."""
        path = self._endpoints.stack_path(process.slot)
        with contextlib.suppress(OSError), open(path, errors="replace") as stacks:
            for line in stacks:
                if line.startswith("Fatal Python error:"):
                    return line.removeprefix("Fatal Python error:").strip()
        return ""

    def _truncated(self, process: _Process) -> tuple[int, ...]:
        found = []
        for region in list(process.regions.values())[-REGIONS_CHECKED_MAX:]:
            with contextlib.suppress(NaiadError):
                now = describe(region.key, foreign=False).region
                if now.inode == region.inode and now.size < region.size:
                    found.append(region.id)
        return tuple(found)

    def _drop(self, process: _Process) -> None:
        self._processes.pop(process.key, None)
        self._suspects.pop(process.key, None)
        if process.peer is not None:
            self._by_peer.pop(process.peer, None)
            self.transport.forget(process.peer)
        self._liveness.unwatch(process.key, is_slot=True)
        if process.page is not None:
            process.page.close()

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
        if self._supervisor is not None and not self.transport.send(
            self._supervisor, [encode(message)]
        ):
            self._supervisor = None

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
            process = self._processes[key] = _Process(key, entry["name"], pid)
            with contextlib.suppress(OSError):
                process.page = PageReader.open(self._endpoints.page_path(entry["name"]))
            self._liveness.watch(key, is_slot=True, pid=pid, pidfd=pidfd)
        return events


def _is_leaving(process: _Process) -> bool:
    """Whether the worker said on its page that it has nothing left to do but to unload."""
    page = process.page.read() if process.page is not None else None
    return page is not None and page.phase in (Phase.UNLOADING, Phase.DONE)


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
