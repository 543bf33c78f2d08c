"""The life of a worker: say hello, load, run batches in order, answer, and outlive its broker.

Owns the slot's identity, the loaded model and what is held for the broker. Everything happens on
the main thread: poll, receive all there is, run one batch, send its results. The loaded model is
kept while the broker is away; hello is said anew on each connection, results not acknowledged are
sent again after the welcome.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from time import monotonic
from typing import Final, NamedTuple

from naiad import __version__
from naiad.protocol import messages as m
from naiad.protocol.codec import decode, encode, peek_version
from naiad.protocol.errors import Code, ProtocolError
from naiad.shm.page import Phase, SlotPage
from naiad.worker.batch import ReceivedBatch
from naiad.worker.execution import Execution, Key
from naiad.worker.exit_codes import ExitCode
from naiad.worker.held import WAITING_BATCHES_MAX, FinishedBatch, HeldBatches
from naiad.worker.loading import load_error, load_model, traceback_bytes
from naiad.worker.log import Log
from naiad.worker.regions import RegionTable
from naiad.worker.stop_signal import StopSignal
from naiad.worker.transport import Frames, Transport

BROKER_ABSENCE_MAX_S: Final = 60.0
"""How long a worker keeps its model loaded for a broker that may come back."""
WELCOME_WAIT_MAX_S: Final = 10.0
"""A connection on which hello was said and nothing came back is tried anew after this time."""
ABSENCE_POLL_MS: Final = 500
CANCEL_POLL_S: Final = 0.001
"""Least time between two looks at the socket for the sake of is_cancelled."""


class Slot(NamedTuple):
    """Who this worker is."""

    name: str
    device: str
    backends: tuple[str, ...]


class Stopping(Exception):
    """The loop ends with this code."""

    def __init__(self, code: ExitCode, reason: str) -> None:
        super().__init__(reason)
        self.code = code
        self.reason = reason


class WorkerLoop:
    """`run` until there is an exit code. Process-wide matters (signals, files) are not its own."""

    def __init__(
        self,
        slot: Slot,
        transport: Transport,
        page: SlotPage,
        log: Log,
        stop: StopSignal,
        is_orphaned: Callable[[], bool],
    ) -> None:
        self._slot = slot
        self._transport = transport
        self._page = page
        self._log = log
        self._stop = stop
        self._is_orphaned = is_orphaned
        self._secret = os.urandom(m.SECRET_BYTES)
        self._held = HeldBatches()
        self._regions = RegionTable()
        self._execution: Execution | None = None
        self._load: m.Load | None = None
        self._incarnation = 0
        self._welcomed = False
        self._draining = False
        self._absent_since = monotonic()
        self._looked_at = 0.0
        self._stopping: Stopping | None = None

    # --- The loop ----------------------------------------------------------------------------

    def run(self) -> ExitCode:
        self._transport.start()
        self._hello()
        try:
            while True:
                self._step()
        except Stopping as stopping:
            self._log.line(f"stops: {stopping.reason}")
            return stopping.code

    def _step(self) -> None:
        if self._stop.asked and not self._draining:
            self._drain("TERM", self._stop.grace_s)
        batch = self._held.take()
        if batch is not None:
            self._run_batch(batch)
            if self._stopping is not None:
                raise self._stopping
        elif self._draining:
            raise Stopping(ExitCode.STOPPED, "nothing is left to do")
        self._receive(0 if self._held.waiting else self._idle_ms())
        if self._transport.is_broken:
            self._reconnect("the broker closed the connection")
        elif not self._welcomed:
            self._check_absence()

    def _idle_ms(self) -> int | None:
        """Poll without end when all is well; while the broker is away, the time is watched."""
        if self._draining:
            return 0
        return None if self._welcomed else ABSENCE_POLL_MS

    def _receive(self, timeout_ms: int | None) -> None:
        """Wait for something and handle the first message, if it was one.

        One, because asking again costs the same whether by poll or by a receive that finds nothing.
        """
        if self._transport.poll(timeout_ms):
            frames = self._transport.receive()
            if frames is not None:
                self._handle(frames)

    # --- The connection ----------------------------------------------------------------------

    def _hello(self) -> None:
        load = self._load
        hello = m.SlotHello(
            secret=self._secret,
            slot=self._slot.name,
            device=self._slot.device,
            pid=os.getpid(),
            software=__version__,
            backends=self._slot.backends,
            incarnation=self._incarnation,
            instance=0 if load is None else load.instance,
            model="" if load is None else load.model,
            version=0 if load is None else load.version,
            held=self._held.describe(),
            arenas=(),
            leases=(),
        )
        self._welcomed = False
        self._hello_at = monotonic()
        self._transport.send(encode(hello))

    def _reconnect(self, reason: str) -> None:
        if self._welcomed:
            self._log.line(f"{reason}; connecting anew")
            self._absent_since = monotonic()
        self._transport.reopen()
        self._hello()

    def _check_absence(self) -> None:
        now = monotonic()
        away_s = now - self._absent_since
        if self._is_orphaned():
            raise Stopping(ExitCode.ORPHANED, "the broker is away and so is the parent process")
        if away_s > BROKER_ABSENCE_MAX_S:
            raise Stopping(ExitCode.NO_BROKER, f"no broker for {away_s:.0f} s")
        if self._transport.is_connected and now - self._hello_at > WELCOME_WAIT_MAX_S:
            self._reconnect("no welcome")

    def _send(
        self, header: bytes, frames: list[bytes | memoryview] | tuple[bytes, ...] = ()
    ) -> None:
        if not self._transport.send(header, frames):
            self._reconnect("the broker does not read")

    # --- Messages ----------------------------------------------------------------------------

    def _handle(self, frames: Frames) -> None:
        header, payload = frames
        try:
            message = decode(header, [len(frame) for frame in payload])
        except ProtocolError as fault:
            if fault.code is Code.VERSION_MISMATCH:
                raise Stopping(ExitCode.REFUSED, f"{fault} ({peek_version(header)})") from fault
            self._log.line(f"a message of the broker cannot be read: {fault}")
            self._reconnect("the broker broke the protocol")
            return
        match message:
            case m.Batch():
                self._on_batch(message, payload)
            case m.SlotWelcome():
                self._on_welcome(message)
            case m.Load():
                self._on_load(message, payload)
            case m.Forget(ids):
                self._forgotten(self._regions.forget(ids))
            case m.Abandon(requests):
                self._held.abandon(requests)
            case m.Return():
                pass
            case m.Stop(grace_ms):
                self._stop.start_grace(grace_ms / 1e3)
                self._drain("the broker's STOP", grace_ms / 1e3)
            case m.Refused(code, text):
                raise Stopping(ExitCode.REFUSED, f"refused by the broker: {code}: {text}")
            case _:
                self._log.line(f"unexpected {type(message).__name__} from the broker")

    def _on_welcome(self, welcome: m.SlotWelcome) -> None:
        if welcome.incarnation != self._incarnation:
            self._regions = RegionTable()
            self._incarnation = welcome.incarnation
        self._welcomed = True
        if not welcome.keep:
            self._drain("the broker does not need this slot", self._stop.grace_s)
        for finished in self._held.finished.values():
            self._send(finished.header, finished.frames)

    def _on_batch(self, batch: m.Batch, payload: list[memoryview]) -> None:
        self._held.acknowledge(batch.acknowledged)
        self._regions.define(batch.regions)
        if self._execution is None or len(self._held.waiting) >= WAITING_BATCHES_MAX:
            self._log.line(f"batch {batch.id} came while none could be taken")
            self._reconnect("the broker sent a batch too many")
            return
        self._held.waiting.append(ReceivedBatch(batch.id, batch.requests, payload, self._regions))

    def _forgotten(self, ids: tuple[int, ...]) -> None:
        if ids:
            self._send(encode(m.Forgotten(ids)))

    def _on_load(self, load: m.Load, payload: list[memoryview]) -> None:
        if self._load is not None:
            self._log.line(f"already is {self._load.instance_name}, cannot load {load.model}")
            self._reconnect("the broker sent a second LOAD")
            return
        self._load = load
        self._log.name = load.instance_name
        self._page.set_phase(Phase.LOADING)
        started = monotonic()
        try:
            model = load_model(load, payload[0] if payload else b"")
            self._execution = Execution(
                model.backend,
                model.instance,
                model.config,
                page=self._page,
                log=self._log,
                is_cancelled=self._is_cancelled,
                lender=None,
            )
            config = json.dumps(model.config.to_json()).encode()
        except BaseException as fault:
            self._load_failed(load, fault, started)
        load_ns = int((monotonic() - started) * 1e9)
        self._page.set_phase(Phase.READY)
        self._log.line(f"{load.model} version {load.version} loaded in {load_ns / 1e9:.2f} s")
        self._send(encode(m.Loaded(load.instance, None, load_ns)), (config,))

    def _load_failed(self, load: m.Load, fault: BaseException, started: float) -> None:
        """Report and exit: a load that failed half-way may have left anything behind."""
        error = load_error(load, fault)
        self._log.failure(error.message, fault)
        load_ns = int((monotonic() - started) * 1e9)
        failed = m.Loaded(load.instance, error.wire(), load_ns)
        self._send(encode(failed), (traceback_bytes(fault),))
        raise Stopping(ExitCode.LOAD_FAILED, "the model did not load") from fault

    # --- Batches -----------------------------------------------------------------------------

    def _run_batch(self, batch: ReceivedBatch) -> None:
        execution = self._execution
        assert execution is not None
        done = execution.run(batch, self._held.abandoned)
        header = encode(m.Results(batch.id, done.results, done.durations, done.splits, ()))
        self._held.finish(FinishedBatch(batch.id, batch.requests, header, done.frames))
        if self._welcomed:
            self._send(header, done.frames)
        if self._regions.is_leaving:
            self._forgotten(self._regions.sweep())

    def _is_cancelled(self, request: Key) -> bool:
        """Asked by a running model: look at the socket, but not at every question."""
        now = monotonic()
        if now - self._looked_at >= CANCEL_POLL_S:
            self._looked_at = now
            try:
                self._receive(0)
            except Stopping as stopping:  # not through the model's own code
                self._stopping = stopping
        return request in self._held.abandoned

    def _drain(self, reason: str, grace_s: float) -> None:
        if not self._draining:
            self._draining = True
            self._log.line(f"drains within {grace_s:.0f} s: {reason}")

    def unload(self) -> None:
        """Free the model; a fault in its clean-up is logged and changes nothing."""
        if self._execution is None:
            return
        self._page.set_phase(Phase.UNLOADING)
        try:
            self._execution.backend.unload()
        except Exception as fault:
            self._log.failure(f"unloading failed: {fault}", fault)
