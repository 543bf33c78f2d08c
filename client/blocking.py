"""One Driver shared by threads that block: leader and followers, no thread of its own.

Owns the lock, and who leads: when to submit, send, wait, cancel and end. What came is handed on by
outcomes, the descriptors and the sleep on them are bell's. The rest is long, and one file:
each step of it is safe only together with all others that take the same lock.

The thread that waits for something drives the socket for all (the leader); others that wait sleep
until theirs came, or until the leader leaves and wakes one of them to go on. With one thread nobody
is ever woken.

An interruption (KeyboardInterrupt) may come between any two steps. In the middle of I/O it costs a
reconnect, never an answer: what was completed is kept, what may be half done is sent again. Who
leads holds a lock of its own by `with`, which lets go of it whatever happens, so that nobody leads
who has left; a follower whose wake-up was lost to an interruption looks for itself after a while.
"""

from __future__ import annotations

import atexit
import math
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from typing import Any, Final

from naiad.client.bell import Bell
from naiad.client.calls import Ask
from naiad.client.deadlines import deadline_after
from naiad.client.driver import Driver, copy_of, over_budget, timed_out_in_line
from naiad.client.followers import Followers, Waitable
from naiad.client.futures import CANCELLED, PENDING, Future, Wish
from naiad.client.leads import Lead
from naiad.client.outcomes import Outcomes
from naiad.client.pump import Pump
from naiad.client.regions import ClientRegion
from naiad.client.requests import Prepared
from naiad.client.results import InferResult
from naiad.client.session import Phase
from naiad.protocol.errors import NaiadError, RequestError

SUBMITTED_MAX: Final = 16
"""Submitted requests that wait for a thread to drive the socket while others are under way."""

FOLLOW_S_MAX: Final = 1.0
"""How long a follower sleeps before it looks whether there still is a leader."""
POLL_MS_MAX: Final = 24 * 3600 * 1000
"""Longer sleeps are several: poll() takes no more than 31 bits."""

EXIT_PATIENCE_S: Final = 1.0
"""How long the end of the process waits for a thread that is in the middle of I/O."""

_NS_PER_MS: Final = 1_000_000
_now_ns: Final = time.monotonic_ns


class BlockingDriver:
    """What Client and its futures stand on. Every public method may be called by any thread."""

    def __init__(self, driver: Driver, *, waits_for_room: bool) -> None:
        self.driver = driver
        self._session = driver.session
        self.turns = 0
        """Grows whenever somebody drives the socket."""
        self._waits_for_room = waits_for_room
        self._lock = threading.Lock()
        self._lead = Lead()
        self._is_polling = False
        """The leader sleeps on the descriptors: who submits meanwhile sends by himself."""
        self._sleeps_until_ns = 0
        """And would wake up by itself then; 0: never."""
        self._is_busy = False
        """Between beginning and end of I/O; found set at the beginning: it was interrupted."""
        self._followers = Followers()
        self._outcomes = Outcomes(driver, self._followers)
        self._callbacks = self._outcomes.callbacks
        self._is_closed = False
        self._bell = Bell()
        self._farewell = weakref.finalize(self, _abandon, driver, self._bell)
        self._farewell.atexit = False  # others may still lead then: see _at_exit
        _living.add(self)
        self.pump = Pump()
        driver.connection.before_close(self._bell.unwatch)
        driver.when_lease_ends(self._lease_ended)

    # --- requests and calls ------------------------------------------------------------------

    def submit(self, future: Future[InferResult], parts: Prepared) -> None:
        """Queue a request; waits (or raises budget_exceeded) when the broker's budgets are full."""
        session = self._session
        now_ns = _now_ns() if parts.tail[2] else 0
        while True:
            with self._lock:
                if session.fault is not None:
                    raise copy_of(session.fault)
                if parts.memory is not None:
                    self.driver.memory.announce(_now_ns())
                ident = session.submit(parts, future, now_ns)
                if ident:
                    future.id = ident
                    if self._is_polling:
                        self._send_for_leader()
                    return
            self._wait_for_room(parts.inline_bytes, now_ns + parts.tail[2] * 1000 if now_ns else 0)

    def _wait_for_room(self, inline_bytes: int, deadline_ns: int) -> None:
        session = self.driver.session
        if not self._waits_for_room or self.may_not_wait:
            raise over_budget(session)
        wish = Wish(inline_bytes)
        with self._lock:
            if session.has_room(inline_bytes):
                return
            self._outcomes.wishes.append(wish)
        left_s = max(0, deadline_ns - _now_ns()) / 1e9 if deadline_ns else None
        if not self._wait_for_wish(wish, left_s):
            raise timed_out_in_line(session)

    def _wait_for_wish(self, wish: Wish, timeout_s: float | None) -> bool:
        try:
            return self.wait(wish, timeout_s)
        finally:
            if wish.state is PENDING:
                with self._lock:
                    if wish in self._outcomes.wishes:
                        self._outcomes.wishes.remove(wish)

    def call(self, future: Future[Any], ask: Ask, timeout_s: float) -> None:
        """Queue a call with `ask(calls, token, deadline_ns)`; the future gets its parsed JSON."""
        with self._lock:
            session = self._session
            if session.fault is not None:
                raise copy_of(session.fault)
            future.id = ask(session.calls, future, deadline_after(timeout_s, "timeout_s"))
            if self._is_polling:
                self._send_for_leader()

    def region(self, size: int) -> ClientRegion:
        """Memory of the arena, announced to the broker before any request can name it."""
        memory = self.driver.memory
        with self._lock:
            region = memory.allocate(size)
            memory.announce(_now_ns())
            return region

    @property
    def is_led(self) -> bool:
        """Whether some thread drives the socket right now."""
        return self._lead.is_held()

    @property
    def is_leading(self) -> bool:
        """Whether this thread drives the socket right now."""
        return self._lead.is_mine()

    @property
    def may_not_wait(self) -> bool:
        """Whether this thread is inside a callback, or anything else that a leader runs."""
        return self._callbacks.is_running_here or self.is_leading

    def send_soon(self) -> None:
        """Nobody may ever wait for what was submitted: send it now if it is alone or much, else
        when somebody drives the socket, and let the pump do so if nobody does."""
        with self._lock:
            self.pump.start(self)
            session = self.driver.session
            if session.phase is Phase.OPEN and not self.is_led:
                waiting = len(session.requests.waiting)
                if waiting == session.unanswered or waiting >= SUBMITTED_MAX:
                    self._begin()
                    self.driver.send()
                    self._is_busy = False

    def drive(self, timeout_s: float | None) -> bool:
        """Send and receive until something was completed. False: not in time, or nothing to do."""
        deadline_ns = deadline_after(timeout_s, "timeout")
        wish = Wish()
        with self._lock:
            is_answered = not self._session.unanswered
            if not is_answered:
                self._outcomes.wishes.append(wish)
        if is_answered:
            # The last was: its callbacks, in another thread maybe, may submit the next.
            return self._callbacks.finish(deadline_ns)
        return self._wait_for_wish(wish, timeout_s)

    def _send_for_leader(self) -> None:
        self._begin()
        self.driver.send()
        self._is_busy = False
        connection = self.driver.connection
        deadline_ns = self.driver.deadline_ns()
        is_sooner = deadline_ns and not 0 < self._sleeps_until_ns <= deadline_ns
        if is_sooner or not connection.is_open or connection.has_input():
            self._bell.ring()

    def cancel(self, future: Future[Any]) -> bool:
        """See Future.cancel."""
        with self._lock:
            if future.state is not PENDING:
                return future.state is CANCELLED
            future.state = CANCELLED
            self._followers.wake(future)
            if future.is_call:
                self.driver.session.calls.drop(future.id)
            else:
                self.driver.session.cancel(future.id)
            if future.callbacks:
                self._callbacks.called.append(future)
            if self._is_polling:
                self._send_for_leader()
        self._run_callbacks()  # whoever leads may sleep for ever
        return True

    def _run_callbacks(self) -> None:
        try:
            self._callbacks.run()
        except BaseException:
            with self._lock:
                if self._is_polling:  # a leader that relied on this thread for the rest
                    self._bell.ring()
            raise

    def add_callback(self, future: Future[Any], callback: Callable[[Future[Any]], Any]) -> bool:
        """False: the future is done, the caller runs the callback itself."""
        with self._lock:
            if future.state is not PENDING:
                return False
            if future.callbacks is None:
                future.callbacks = [callback]
            else:
                future.callbacks.append(callback)
            return True

    # --- waiting -----------------------------------------------------------------------------

    def wait(self, waitable: Waitable, timeout_s: float | None) -> bool:
        """Until it is done, driving the socket or following who does. False: not in time."""
        deadline_ns = deadline_after(timeout_s, "timeout")
        if self.may_not_wait:
            raise RequestError(
                "a callback must not wait for an answer: it runs in the thread that receives them;"
                " submit with another callback instead"
            )
        while waitable.state is PENDING:
            lead = Lead()
            ticket: threading.Lock | None = None
            try:
                with lead.lock:
                    with self._lock:
                        if waitable.state is not PENDING:
                            break
                        if self._lead.is_held():
                            ticket = threading.Lock()
                            self._follow(waitable, ticket)
                        else:
                            self._lead = lead
                    if ticket is None:
                        self._drive_until(waitable, deadline_ns)
                if ticket is not None:
                    left_s = (deadline_ns - _now_ns()) / 1e9 if deadline_ns else FOLLOW_S_MAX
                    ticket.acquire(timeout=max(0.0, min(left_s, FOLLOW_S_MAX)))
            finally:
                self._step_back(ticket)
            if deadline_ns and _now_ns() >= deadline_ns:
                break
        return waitable.state is not PENDING

    def _follow(self, waitable: Waitable, ticket: threading.Lock) -> None:
        self._followers.join(waitable, ticket)
        if self._outcomes.end_errand():
            self._bell.ring()

    def _step_back(self, ticket: threading.Lock | None) -> None:
        """After leading or following: see to it that somebody leads if anybody waits.

        Interrupted, it leaves nothing undone that the next leader or follower would not do.
        """
        with self._lock:
            if ticket is not None:
                self._followers.leave(ticket)
            if self._lead.is_held():
                return
            self._is_polling = False
            if self._is_closed:
                self._farewell()
            elif ticket is None:
                if self._session.leases.held:
                    self.driver.memory.release_ended()
                if self.driver.session.has_messages and not self._is_busy:
                    self._begin()
                    self.driver.send()
                    self._is_busy = False
            self._followers.wake_heir()

    # --- leading -----------------------------------------------------------------------------

    def lead_errand(self, wish: Wish) -> bool:
        """Lead until nothing is unanswered or another thread wants to. False: nothing to do."""
        with self._lock:
            if self._is_closed or not self.driver.session.unanswered:
                return False
            if self.is_led:
                return True
            self._outcomes.errand = wish
        try:
            self.wait(wish, None)
        finally:
            self._outcomes.errand = None
        return True

    def pump_ended(self) -> None:
        """The pump found nothing to do for a while; what was submitted since needs a new one."""
        with self._lock:
            self.pump.is_running = False
            if self.driver.session.unanswered and not self._is_closed:
                self.pump.start(self)

    def _drive_until(self, waitable: Waitable, deadline_ns: int) -> None:
        ready: Sequence[tuple[int, int]] = ()
        callbacks = self._callbacks
        called = callbacks.called
        while True:
            now_ns = _now_ns()
            with self._lock:
                self._turn(now_ns, ready)
                is_idle = (
                    (not called or callbacks.is_running)
                    and waitable.state is PENDING
                    and self.driver.is_drained
                )
                if is_idle:
                    timeout_ms = self._sleep_ms(now_ns, deadline_ns)
                    self._is_polling = True
            if called:
                self._run_callbacks()
            if waitable.state is not PENDING or (deadline_ns and now_ns >= deadline_ns):
                return
            ready = self._bell.sleep(timeout_ms) if is_idle else ()

    def _begin(self) -> None:
        """I/O begins. If the last time it did not end, half a message may have been taken."""
        if self._is_busy:
            self.driver.lose()
        self._is_busy = True

    def _turn(self, now_ns: int, ready: Sequence[tuple[int, int]]) -> None:
        self._is_polling = False
        self.turns += 1
        self._begin()
        driver = self.driver
        bell = self._bell
        if ready and bell.hear(ready, driver.connection.monitor_descriptor):
            driver.watch()
        outcomes = self._outcomes
        driver.turn(now_ns, outcomes.completions)
        if outcomes.completions or driver.session.fault is not None:
            outcomes.settle()
        if not bell.watched and driver.connection.is_open:
            bell.watch(driver.connection)
        self._is_busy = False

    def _sleep_ms(self, now_ns: int, deadline_ns: int) -> int | None:
        soonest_ns = self.driver.deadline_ns()
        if deadline_ns and (not soonest_ns or deadline_ns < soonest_ns):
            soonest_ns = deadline_ns
        self._sleeps_until_ns = soonest_ns
        if not soonest_ns:
            return None
        return max(0, min(math.ceil((soonest_ns - now_ns) / _NS_PER_MS), POLL_MS_MAX))

    def _lease_ended(self) -> None:
        """Maybe inside the garbage collector: no lock may be taken."""
        if self._is_polling:
            self._bell.ring()

    # --- the end -----------------------------------------------------------------------------

    def close(self) -> None:
        """Say BYE; everything unanswered fails. Never blocks for long, may be called twice."""
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
            self._outcomes.completions += self.driver.close()
            self._outcomes.settle()
            self._outcomes.end_errand()  # nobody is unanswered any more: its leader leaves
            self._bell.ring()
            if not self.is_led:
                self._is_polling = False
                self._farewell()
        self._run_callbacks()

    def end_with_process(self) -> None:
        """Say BYE, while the pump may still lead; nobody is told what becomes of his requests."""
        if self._lock.acquire(timeout=EXIT_PATIENCE_S):
            try:
                self._is_closed = True
                self.driver.close()
            finally:
                self._lock.release()

    def after_fork(self, fault: NaiadError) -> None:
        """In a child process: nothing here may be used; the parent's locks are of no use either."""
        self._lock = threading.Lock()
        self._lead = Lead()
        self._followers.clear()
        self._callbacks.after_fork()
        self._is_closed = True
        self._farewell.detach()
        _living.discard(self)
        self.driver.session.end(fault)


_living: Final[weakref.WeakSet[BlockingDriver]] = weakref.WeakSet()


def _at_exit() -> None:
    for blocking in list(_living):
        blocking.end_with_process()


atexit.register(_at_exit)


def _abandon(driver: Driver, bell: Bell) -> None:
    """Also when a client was simply forgotten."""
    driver.close()
    bell.close()
