"""The process behind `naiad serve`: starts its processes, watches and ends them.

One thread, one selector: pidfds, pipes, the self-pipe of signals, the link to the broker. Owns the
broker and the worker slots, has gateways and metrics run by `doors`, and what children write logged
by `watch`; knows nothing of requests or models beyond what it shows at the start.

The order of a shutdown, at the first SIGTERM or SIGINT:
 1. The broker gets SIGTERM: it says not ready, takes nothing new, finishes what is there, tells the
    workers to stop, and exits. Nothing is restarted from now on. When the broker is gone (or was
    when the signal came), the workers that are left get SIGTERM: nobody else will tell them.
    Listening sockets are left to the processes that run: when those end, nobody waits in a backlog.
    Gateways get theirs `grace_seconds` before the broker: until then they are not ready, but serve.
    Then they pass on the answers to what is under way, and exit.
    Metrics are told last, as the workers: a drain can be watched.
 2. All of this has `drain_seconds`, and MARGIN_SECONDS on top for the words of farewell. Workers
    that are left when the broker has drained have LEFT_SECONDS_MAX.
 3. What is left then gets SIGKILL, and the exit code says so. A second signal does this at once.
 4. With every child reaped, what they could not remove themselves is: see `cleanup`.
"""

from __future__ import annotations

import selectors
import signal
import time
from collections.abc import Callable
from enum import Enum
from typing import Final

from naiad.cli.broker_link import BrokerLink
from naiad.cli.children import Child, describe_status, has_executed
from naiad.cli.doors import GATEWAY, METRICS, Doors
from naiad.cli.exit_codes import ExitCode
from naiad.cli.log import LogWriter
from naiad.cli.plan import Plan
from naiad.cli.signals import SignalPipe
from naiad.cli.slots import EARLY_DEATH_NS, NS, BackOff, SlotTable, Start
from naiad.cli.startup import Startup, Status
from naiad.cli.watch import Watch, last_words
from naiad.protocol import messages as m
from naiad.protocol.endpoints import Endpoints
from naiad.protocol.errors import ProtocolError

BROKER_EARLY_DEATHS_MAX: Final = 6
"""In a row; with the back-off between them this is about two seconds of trying."""
KILLED_SECONDS_MAX: Final = 5.0
"""After SIGKILL. A process in an uninterruptible wait cannot be ended: say so and leave it."""
LEFT_SECONDS_MAX: Final = 2.0
"""For workers when the broker has drained and exited: it did not know them, they have no work."""
MARGIN_SECONDS: Final = 2.0
"""For the broker to say itself what it could not finish, before it is killed."""
BROKER_DRAIN_TIMED_OUT: Final = 1
"""The exit code with which a broker says that work was left (naiad.broker.__main__.ExitCode)."""


class Phase(Enum):
    """Moves only forward."""

    SERVING = 1
    DRAINING = 2
    KILLING = 3
    OVER = 4


class Supervisor:
    """`run` until everything has ended.

    Args:
        plan: what to run.
        log: where the lines of children and our own go.
        on_settled: called once with the status when every model is ready or has failed; an exit
            code drains and ends the server with it.
        on_drain: called when the end begins: nothing that listens is started any more.
    """

    def __init__(
        self,
        plan: Plan,
        log: LogWriter,
        on_settled: Callable[[Status], ExitCode | None],
        on_drain: Callable[[], None] = lambda: None,
    ) -> None:
        self._plan = plan
        self._log = log
        self._on_settled = on_settled
        self._on_drain = on_drain
        self._phase = Phase.SERVING
        self._code = ExitCode.DONE
        self._selector = selectors.DefaultSelector()
        self._signals = SignalPipe((signal.SIGTERM, signal.SIGINT, signal.SIGHUP))
        self._broker: Child | None = None
        self._broker_back_off = BackOff()
        self._broker_start_ns: int | None = time.monotonic_ns()
        self._broker_has_served = False
        self._workers: dict[str, Child] = {}
        self._slots = SlotTable()
        self._watch = Watch(self._selector, log)
        self._doors = Doors(
            plan,
            log,
            self._watch,
            is_serving=lambda: self._phase is Phase.SERVING,
            is_draining=lambda: self._phase is Phase.DRAINING,
        )
        self._deadline_ns: int | None = None
        """Of the drain, then of the killing."""
        self._broker_stop_ns: int | None = None
        """When the grace of gateways is over."""
        self._is_drained = False
        self.failure = ""
        """Why the server ended by itself, for the person who started it."""
        self._link = BrokerLink(
            Endpoints(plan.run_dir).workers,
            slots=lambda: tuple((slot, child.pid) for slot, child in self._workers.items()),
            selector=self._selector,
            callback=self._nothing,
        )
        self._startup = Startup(plan.run_dir, self._selector, self._nothing)
        self._is_announced = False

    def run(self) -> ExitCode:
        """Start everything; return when nothing runs any more."""
        self._selector.register(self._signals.descriptor, selectors.EVENT_READ, self._read_signals)
        with self._signals:
            self._link.start()
            try:
                while self._phase is not Phase.OVER:
                    self._turn()
            finally:
                self._startup.close()
                self._link.close()
                self._selector.close()
        return self._code

    def _turn(self) -> None:
        """Wait, react, then do what is due."""
        for key, _ in self._selector.select(self._timeout_seconds()):
            if self._selector.get_map().get(key.fd) is key:  # not closed by one before it
                key.data()
        self._hear_broker()
        now_ns = time.monotonic_ns()
        if self._phase is Phase.SERVING:
            if self._broker_start_ns is not None and now_ns >= self._broker_start_ns:
                self._start_broker()
            for start in self._slots.due(now_ns):
                self._start_worker(start)
            self._doors.start_due(now_ns)
            status = self._startup.step(now_ns)
            if status is not None:
                self._settled(status)
        elif not self._children():
            self._phase = Phase.OVER
        elif self._broker_stop_ns is not None and now_ns >= self._broker_stop_ns:
            self._stop_broker()
        elif self._deadline_ns is not None and now_ns >= self._deadline_ns:
            self._time_ran_out(now_ns)

    def _timeout_seconds(self) -> float | None:
        if self._phase is not Phase.SERVING:
            due = [self._deadline_ns, self._broker_stop_ns]
        else:
            due = [self._broker_start_ns, self._startup.next_ns]
            due += [self._slots.deadline_ns(), self._doors.deadline_ns]
        known = [moment for moment in due if moment is not None]
        if not known:
            return None
        return max(0.0, (min(known) - time.monotonic_ns()) / NS)

    def _children(self) -> list[Child]:
        broker = [self._broker] if self._broker else []
        return [*broker, *self._workers.values(), *self._doors.all()]

    def _nothing(self) -> None:
        """The descriptor's messages are read in every turn."""

    # --- Starting ----------------------------------------------------------------------------

    def _start_broker(self) -> None:
        self._broker_start_ns = None
        arguments = list(self._plan.broker_arguments)
        try:
            self._broker = Child.start("broker", self._plan.broker_module, arguments)
        except OSError as error:
            self._fail(ExitCode.BROKER_FAILED, f"the broker could not be started: {error}")
            return
        self._watch.add(self._broker, self._broker_exited)
        if not self._is_announced:
            self._startup.start(time.monotonic_ns())

    def _start_worker(self, start: Start) -> None:
        arguments = ["--run-dir", self._plan.run_dir, "--slot", start.slot]
        arguments += ["--device", start.device]
        if start.preload:
            arguments += ["--preload", ",".join(start.preload)]
        try:
            child = Child.start(start.slot, self._plan.worker_module, arguments)
        except OSError as error:  # out of processes or memory: it may pass
            delay_ns = self._slots.exited(start.slot, time.monotonic_ns(), is_early=True)
            self._log.event(f"cannot start {start.slot}: {error}; next try in {delay_ns / NS:g} s")
            return
        self._workers[start.slot] = child
        self._watch.add(child, lambda: self._worker_exited(child))
        self._link.send(m.Spawned(child.name, child.pid))

    def _settled(self, status: Status) -> None:
        self._is_announced = True
        self._doors.open()
        code = self._on_settled(status)
        if code is not None:
            self._code = code
            self._drain()

    # --- Children's ends -----------------------------------------------------------------------

    def _worker_exited(self, child: Child) -> None:
        del self._workers[child.name]
        status = self._watch.ended(child)
        self._link.send(m.Exited(child.name, child.pid, status))
        now_ns = time.monotonic_ns()
        is_early = (
            status != 0
            and now_ns - child.started_ns < EARLY_DEATH_NS
            and not has_executed(Endpoints(self._plan.run_dir).page_path(child.name), child.pid)
        )
        delay_ns = self._slots.exited(child.name, now_ns, is_early=is_early, is_clean=status == 0)
        if status != 0 and self._phase is Phase.SERVING:
            again = f"; next start in {delay_ns / NS:g} s" if delay_ns else ""
            self._log.event(f"{child.name}[{child.pid}] ended: {describe_status(status)}{again}")

    def _broker_exited(self) -> None:
        child = self._broker
        assert child is not None
        self._broker = None
        self._broker_stop_ns = None
        status = self._watch.ended(child)
        reason = f"{describe_status(status)}{last_words(child)}"
        if self._phase is Phase.SERVING:
            self._restart_broker(child, status, reason)
            return
        if self._phase is Phase.DRAINING:
            self._broker_drained(status, reason)
        self._signal_rest(signal.SIGTERM)

    def _restart_broker(self, child: Child, status: int, reason: str) -> None:
        """Unless it never served, or dies again and again as soon as it is started."""
        now_ns = time.monotonic_ns()
        if status > 0 and not self._broker_has_served:
            self._fail(ExitCode.BROKER_FAILED, f"the broker could not start: {reason}")
            return
        is_early = now_ns - child.started_ns < EARLY_DEATH_NS
        delay_ns = self._broker_back_off.delay_ns(is_early=is_early)
        if self._broker_back_off.early_deaths >= BROKER_EARLY_DEATHS_MAX:
            deaths = f"{BROKER_EARLY_DEATHS_MAX} times in a row, each within {EARLY_DEATH_NS // NS}"
            self._fail(ExitCode.BROKER_FAILED, f"the broker ended {deaths} s; the last: {reason}")
            return
        self._broker_start_ns = now_ns + delay_ns
        self._log.event(f"broker[{child.pid}] ended: {reason}; restarting it")

    def _broker_drained(self, status: int, reason: str) -> None:
        """It ended while it was to drain: what that means for the rest."""
        if status == 0:
            self._is_drained = True
            left_ns = time.monotonic_ns() + int(LEFT_SECONDS_MAX * NS)
            self._deadline_ns = min(self._deadline_ns or left_ns, left_ns)
        elif status > 0:
            timed_out = status == BROKER_DRAIN_TIMED_OUT
            ended = ExitCode.DRAIN_TIMED_OUT if timed_out else ExitCode.BROKER_FAILED
            self._code = self._code or ended
            self._log.event(f"the broker did not end cleanly: {reason}")
        elif status != -signal.SIGTERM:  # else it had not come to handling signals yet
            self._log.event(f"the broker died before it had drained: {reason}")

    def _hear_broker(self) -> None:
        try:
            messages = self._link.receive()
        except ProtocolError as fault:
            self._fail(ExitCode.BROKER_FAILED, f"the broker does not speak naiad: {fault.message}")
            return
        for message in messages:
            match message:
                case m.Want(device, slots, preload):
                    self._broker_has_served = True
                    self._slots.want(device, slots, preload)
                case m.LogLevels():
                    self._log.levels = message
                case m.Refused(_, text):
                    self._fail(ExitCode.BROKER_FAILED, f"the broker refused its supervisor: {text}")
                case _:
                    self._broker_has_served = True

    # --- Ending --------------------------------------------------------------------------------

    def _read_signals(self) -> None:
        for number in self._signals.read():
            if number == signal.SIGHUP and self._log.path is not None:
                try:
                    self._log.reopen()
                except OSError as error:
                    self._log.event(f"cannot reopen {self._log.path}: {error.strerror}")
            else:  # without a log file a hang-up is the terminal's end, and nobody reads on
                self._asked_to_stop(number)

    def _asked_to_stop(self, number: signal.Signals) -> None:
        if self._phase is Phase.SERVING:
            again = "; once more ends everything at once"
            self._log.event(
                f"{number.name}: draining, {self._plan.drain_seconds:g} s at most{again}"
            )
            self._drain()
        elif self._phase is Phase.DRAINING:
            self._log.event(f"{number.name} again: ending everything now")
            self._code = ExitCode.INTERRUPTED
            self._kill(time.monotonic_ns())

    def _fail(self, code: ExitCode, reason: str) -> None:
        """End because it cannot go on."""
        if self._phase is Phase.SERVING:
            self.failure = reason
            self._code = code
            self._log.event(reason)
            self._drain()

    def _drain(self) -> None:
        self._phase = Phase.DRAINING
        self._on_drain()
        self._startup.close()
        gateways = self._doors.of(GATEWAY)
        grace_seconds = self._plan.grace_seconds if gateways else 0.0
        seconds = grace_seconds + self._plan.drain_seconds + MARGIN_SECONDS
        now_ns = time.monotonic_ns()
        self._deadline_ns = now_ns + int(seconds * NS)
        for gateway in gateways:
            gateway.signal(signal.SIGTERM)
        if grace_seconds and self._broker is not None:
            self._broker_stop_ns = now_ns + int(grace_seconds * NS)
        else:
            self._stop_broker()

    def _stop_broker(self) -> None:
        self._broker_stop_ns = None
        if self._broker is not None:
            self._broker.signal(signal.SIGTERM)
        else:
            self._signal_rest(signal.SIGTERM)

    def _time_ran_out(self, now_ns: int) -> None:
        left = ", ".join(f"{child.name}[{child.pid}]" for child in self._children())
        if self._phase is Phase.DRAINING and self._is_drained:
            self._log.event(f"{left}: not ended although there is nothing to do, killed")
            self._kill(now_ns)
        elif self._phase is Phase.DRAINING:
            self._code = ExitCode.DRAIN_TIMED_OUT
            self._log.event(
                f"{left}: not ended within {self._plan.drain_seconds:g} s, killed; "
                "give them longer with --drain-seconds"
            )
            self._kill(now_ns)
        else:
            self._log.event(f"{left}: cannot be killed (in the kernel?); left behind")
            self._phase = Phase.OVER

    def _kill(self, now_ns: int) -> None:
        self._phase = Phase.KILLING
        self._broker_stop_ns = None
        self._deadline_ns = now_ns + int(KILLED_SECONDS_MAX * NS)
        for child in self._children():
            child.signal(signal.SIGKILL)

    def _signal_rest(self, number: signal.Signals) -> None:
        """Who has nothing to do without a broker; gateways were told before."""
        for child in (*self._workers.values(), *self._doors.of(METRICS)):
            child.signal(number)
