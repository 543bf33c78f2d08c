"""The life of a worker: say hello, load, run batches in order, answer, and outlive its broker.

Owns the slot's identity, the loaded model and what is held for the broker. One thread does it all:
poll, receive, run a batch, send its results; while it runs a series, another sees to it that nobody
waits for a long execution (series). The loaded model is kept while the broker is away;
hello is said on each new connection (by the connection's thread, when this one executes), and what
the broker may have missed is sent again after its welcome: LOADED and unacknowledged results.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from time import monotonic, monotonic_ns
from typing import Final, NamedTuple

from naiad import __version__
from naiad.protocol import messages as m
from naiad.protocol.bundle import unbundled
from naiad.protocol.codec import decode, encode
from naiad.protocol.errors import Code, ProtocolError
from naiad.shm.output_arena import OutputArena
from naiad.shm.page import Phase, SlotPage
from naiad.worker.backends.triton_python import logger
from naiad.worker.batch import Buffer, ReceivedBatch
from naiad.worker.exception_text import described
from naiad.worker.execution import Execution, Key
from naiad.worker.exit_codes import ExitCode
from naiad.worker.held import WAITING_BATCHES_MAX, FinishedBatch, HeldBatches
from naiad.worker.loading import LoadedModel, load_error, load_model, traceback_bytes
from naiad.worker.log import Log
from naiad.worker.presence import BROKER_ABSENCE_MAX_S, BrokerPresence, Verdict
from naiad.worker.regions import RegionTable
from naiad.worker.results import results_header
from naiad.worker.series import Series
from naiad.worker.series_watch import HELD_S
from naiad.worker.stop_signal import StopSignal
from naiad.worker.transport import Frames, Transport

ABSENCE_POLL_MS: Final = 500
IDLE_POLL_MS: Final = 30_000
"""Between two looks at whether the output arena should shrink."""
CANCEL_POLL_S: Final = 0.001
"""Least time between two looks at the socket for the sake of is_cancelled."""
STAGE_POLL_S: Final = 0.0002
"""The same, for the batch that a device could be given while it executes another."""

_make: Final = tuple.__new__


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
        *,
        page: SlotPage,
        log: Log,
        stop: StopSignal,
        is_orphaned: Callable[[], bool],
        on_welcome: Callable[[], None],
        absence_max_s: float = BROKER_ABSENCE_MAX_S,
    ) -> None:
        self._slot = slot
        self._transport = transport
        self._page = page
        self._log = log
        self._stop = stop
        self._is_orphaned = is_orphaned
        self._on_first_welcome = on_welcome
        self._presence = BrokerPresence(monotonic(), absence_max_s)
        self._secret = os.urandom(m.SECRET_BYTES)
        self._held = HeldBatches()
        self._regions = RegionTable()
        self._arena: OutputArena | None = None
        self._load: m.Load | None = None
        self._execution: Execution | None = None
        self._loaded: tuple[bytes, tuple[bytes, ...]] = (b"", ())
        self._incarnation = 0
        self._series = Series(
            transport, self._held, self._presence, send=self._send, handle=self._handle_aside
        )
        self._received_at = 0.0
        self._draining = False
        self._looked_at = 0.0
        self._stopping: Stopping | None = None

    # --- The loop ----------------------------------------------------------------------------

    def run(self) -> ExitCode:
        """Until told to stop, given up on the broker or failed to load."""
        self._transport.start(self._hello)
        try:
            while True:
                self._step()
        except Stopping as stopping:
            self._log.line(f"stops: {stopping.reason}")
            return stopping.code

    def close(self) -> None:
        """The end, in order: 1. say on the page that the connection ends on purpose; 2. flush the
        last results; 3. unload; 4. unlink unused segments."""
        self._page.set_phase(Phase.UNLOADING)
        self._series.close()
        self._transport.close()
        if self._execution is not None:
            try:
                self._execution.backend.unload()
            except BaseException as fault:  # its finalize may do anything; all else still ends
                self._log.failure(f"unloading failed: {described(fault)}", fault)
        if self._arena is not None:
            self._arena.close()

    def _step(self) -> None:
        if self._stop.asked and not self._draining:
            self._drain("TERM")
        batch = self._held.take()
        if batch is not None:
            self._run_batch(batch)
        elif self._draining:
            raise Stopping(ExitCode.STOPPED, "nothing is left to do")
        # Within a series, a look at the socket would cost as much as an execution does.
        if not self._series.has_results or monotonic() - self._received_at >= HELD_S:
            self._receive(self._wait_ms())
        if self._arena is not None:
            self._arena.trim_when_due(monotonic_ns())
        if self._transport.is_broken:
            self._transport.mend()
        elif not self._presence.is_welcomed:
            self._bear_absence()

    def _wait_ms(self) -> int:
        """Long when all is well; while the broker is away, the time is watched."""
        if self._held.waiting or self._draining:
            return 0
        return IDLE_POLL_MS if self._presence.is_welcomed else ABSENCE_POLL_MS

    def _receive(self, timeout_ms: int) -> None:
        """Wait for something and handle the first message, if it was one.

        One, because asking again costs as much by a poll as by a receive that finds nothing.
        """
        postponed = self._series.take_postponed()
        if postponed is not None:
            self._handle(postponed)
            return
        has_message = self._transport.poll(timeout_ms)
        self._received_at = monotonic()
        if has_message:
            frames = self._transport.receive()
            if frames is not None:
                self._handle(frames)

    # --- The connection ----------------------------------------------------------------------

    def _hello(self) -> None:
        """On each new connection, from whichever thread made it."""
        if self._presence.said_hello(monotonic()):
            self._log.line("the connection to the broker broke; saying hello anew")
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
            arenas=() if self._arena is None else self._arena.arenas(),
            leases=() if self._arena is None else self._arena.leases(),
        )
        self._transport.send(encode(hello))

    def _break_off(self, reason: str) -> None:
        self._log.line(f"{reason}; connecting anew")
        self._transport.break_off()

    def _bear_absence(self) -> None:
        now = monotonic()
        if self._is_orphaned():
            raise Stopping(ExitCode.ORPHANED, "the broker is away and so is the parent process")
        match self._presence.verdict(now, is_connected=self._transport.is_connected):
            case Verdict.GIVE_UP:
                away_s = self._presence.absence_s(now)
                raise Stopping(ExitCode.NO_BROKER, f"no broker for {away_s:.0f} s")
            case Verdict.CONNECT_ANEW:
                self._break_off("no welcome from the broker")

    def _send(self, header: bytes, frames: Sequence[Buffer] = ()) -> None:
        if not self._transport.send(header, frames):
            self._break_off("the broker does not read")

    # --- Messages ----------------------------------------------------------------------------

    def _handle(self, frames: Frames) -> None:
        header, payload = frames
        try:
            message = decode(header, [len(frame) for frame in payload])
            if type(message) is m.Bundle:
                for inner, its in unbundled(message, payload):
                    self._perform(decode(bytes(inner), [len(one) for one in its]), its)
            else:
                self._perform(message, payload)
        except ProtocolError as fault:
            if fault.code is Code.VERSION_MISMATCH:
                raise Stopping(ExitCode.REFUSED, str(fault)) from fault
            self._break_off(f"the broker broke the protocol: {fault}")

    def _perform(self, message: m.Message, payload: list[memoryview]) -> None:
        match message:
            case m.Batch():
                self._on_batch(message, payload)
            case m.SlotWelcome():
                self._on_welcome(message)
            case m.Load():
                self._on_load(message, payload)
            case m.Forget(ids):
                self._say_forgotten(self._regions.forget(ids))
            case m.Abandon(requests):
                self._held.abandon(requests)
            case m.Return(leases):
                for session, request in leases:
                    self._lender().end(session, request)
            case m.Stop(grace_ms):
                self._stop.start_grace(grace_ms / 1e3)
                self._drain("STOP")
            case m.LogLevels():
                self._log.levels = message
                logger.set_levels(message)
            case m.Refused(code, text):
                raise Stopping(ExitCode.REFUSED, f"refused by the broker: {code}: {text}")
            case _:
                raise ProtocolError(f"unexpected {type(message).__name__}")

    def _on_welcome(self, welcome: m.SlotWelcome) -> None:
        if welcome.incarnation != self._incarnation:
            self._regions = RegionTable()
            self._incarnation = welcome.incarnation
        self._presence.was_welcomed()
        if self._arena is None:
            self._arena = OutputArena(welcome.server)
            self._on_first_welcome()
        if not welcome.keep:
            self._drain("the broker does not need this slot")
        if self._execution is not None:
            self._send(*self._loaded)
        self._series.drop_results()  # they are among these
        for finished in self._held.finished.values():
            self._send(finished.header, finished.frames)

    def _on_batch(self, batch: m.Batch, payload: list[memoryview]) -> None:
        self._held.acknowledge(batch.acknowledged)
        if batch.regions:
            self._regions.define(batch.regions)
        if self._execution is None or len(self._held.waiting) >= WAITING_BATCHES_MAX:
            raise ProtocolError(f"batch {batch.id} came while none could be taken")
        received = _make(ReceivedBatch, (batch.id, batch.requests, payload, self._regions))
        self._held.waiting.append(received)

    def _say_forgotten(self, ids: tuple[int, ...]) -> None:
        if ids:
            self._send(encode(m.Forgotten(ids)))

    def _drain(self, reason: str) -> None:
        if not self._draining:
            self._draining = True
            self._log.line(f"drains: {reason}")

    # --- The model ---------------------------------------------------------------------------

    def _on_load(self, load: m.Load, payload: list[memoryview]) -> None:
        if self._load is not None:
            raise ProtocolError(f"LOAD of {load.model} for {self._load.instance_name}")
        self._load = load
        self._log.name = load.instance_name
        self._page.set_phase(Phase.LOADING)
        started = monotonic()
        self._transport.lock.release()
        try:
            model = load_model(load, payload[0] if payload else b"", self._slot.device)
            config = json.dumps(model.config.to_json()).encode()
            fault = None
        except BaseException as failed:
            fault = failed
        finally:
            self._transport.lock.acquire()
        load_ns = int((monotonic() - started) * 1e9)
        if fault is not None:
            self._give_up(load, fault, load_ns)
        self._execution = self._prepare(model)
        self._series.is_on = not model.config.batches
        loaded = m.Loaded(load.instance, None, load_ns, model.gpu_bytes)
        self._loaded = encode(loaded), (config,)
        self._page.set_phase(Phase.READY)
        self._log.line(f"{load.model} version {load.version} loaded in {load_ns / 1e9:.2f} s")
        if self._presence.is_welcomed:
            self._send(*self._loaded)

    def _prepare(self, model: LoadedModel) -> Execution:
        execution = Execution(
            model.backend,
            model.instance,
            model.config,
            page=self._page,
            log=self._log,
            is_cancelled=self._is_cancelled,
            lender=self._lender(),
        )
        execution.overlap(self._find_next, self._series.may_begin)
        return execution

    def _lender(self) -> OutputArena:
        if self._arena is None:
            raise ProtocolError("nothing may come before the first welcome")
        return self._arena

    def _give_up(self, load: m.Load, fault: BaseException, load_ns: int) -> None:
        """Report and exit: a load that failed half-way may have left anything behind."""
        error = load_error(load, fault)
        self._log.failure(error.message, fault)
        failed = m.Loaded(load.instance, error.wire(), load_ns)
        self._send(encode(failed), (traceback_bytes(fault),))
        raise Stopping(ExitCode.LOAD_FAILED, "the model did not load") from fault

    def _run_batch(self, batch: ReceivedBatch) -> None:
        execution = self._execution
        assert execution is not None
        self._series.begin()
        self._transport.lock.release()
        try:
            done = execution.run(batch, self._held.abandoned)
        finally:
            self._transport.lock.acquire()
        arenas = self._lender().new_arenas()
        results = _make(m.Results, (batch.id, done.results, done.durations, done.splits, arenas))
        header = results_header(
            results,
            [len(frame) for frame in done.frames],
            lambda index, error: execution.refuse(batch.requests[index], error),
        )
        self._held.finish(_make(FinishedBatch, (batch.id, batch.requests, header, done.frames)))
        if self._presence.is_welcomed:
            self._series.post(header, done.frames)
        # Only now: what a model broke (descriptors it closed, memory it wrote over) may end the
        # process on the way here, and that is this batch's doing as well.
        self._page.end()
        execution.drop_ahead(self._held.waiting)
        if self._regions.is_leaving:
            self._say_forgotten(self._regions.sweep())
        if self._stopping is not None:
            raise self._stopping

    def _is_cancelled(self, request: Key) -> bool:
        """Asked by a running model: look at the socket, but not at every question."""
        now = monotonic()
        if now - self._looked_at >= CANCEL_POLL_S and self._transport.lock.acquire(blocking=False):
            self._looked_at = now
            try:
                if not self._transport.is_broken:
                    self._receive_aside()
            finally:
                self._transport.lock.release()
        return request in self._held.abandoned

    def _find_next(self) -> ReceivedBatch | None:
        """Asked while a device executes: the batch that comes next, if it is here."""
        now = monotonic()
        held = self._held
        if not self._transport.lock.acquire(blocking=False):
            return None
        try:
            if (
                not held.waiting
                and now - self._looked_at >= STAGE_POLL_S
                and not self._transport.is_broken
            ):
                self._looked_at = now
                self._receive_aside()
            return held.waiting[0] if held.waiting else None
        finally:
            self._transport.lock.release()

    def _receive_aside(self) -> None:
        """From inside the model's code, through which nothing of the worker's may be raised."""
        try:
            self._receive(0)
        except Stopping as stopping:
            self._stopping = stopping

    def _handle_aside(self, frames: Frames) -> None:
        """Beside the model's code, likewise."""
        try:
            self._handle(frames)
        except Stopping as stopping:
            self._stopping = stopping
