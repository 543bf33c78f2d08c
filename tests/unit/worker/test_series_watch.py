"""The thread that looks at long executions: while there are any, and not for ever."""

from __future__ import annotations

import threading

from naiad.worker.series_watch import IDLE_LOOKS_MAX, LOOK_S_MAX, SeriesWatch
from support.waiting import wait_until


class Worker:
    """Its lock is free while it executes."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.lock.acquire()
        self.looks = 0
        self.watch = SeriesWatch(self.lock, self._look)

    def _look(self) -> float:
        assert self.lock.locked()
        self.looks += 1
        return self.looks * LOOK_S_MAX

    def executes_until_seen(self) -> None:
        before = self.looks
        self.watch.begin()
        self.lock.release()
        wait_until(lambda: self.looks > before, "a look")
        self.lock.acquire()

    def sleeps(self) -> bool:
        return not self.watch._awake.is_set()


def test_an_execution_is_looked_at_as_long_as_it_goes_on() -> None:
    worker = Worker()
    worker.watch.begin()
    worker.lock.release()
    wait_until(lambda: worker.looks > IDLE_LOOKS_MAX, "many looks")
    worker.lock.acquire()
    worker.watch.close()


def test_it_sleeps_when_nothing_is_executed_and_wakes_for_the_next() -> None:
    worker = Worker()
    worker.executes_until_seen()
    wait_until(worker.sleeps, "its sleep")
    for _ in range(3):
        worker.executes_until_seen()
    wait_until(worker.sleeps, "its sleep")
    worker.executes_until_seen()
    worker.watch.close()


def test_a_closed_worker_is_not_looked_at() -> None:
    worker = Worker()
    worker.executes_until_seen()
    worker.watch.close()
    looks = worker.looks
    worker.watch.begin()
    worker.lock.release()
    assert worker.watch._thread is not None
    worker.watch._thread.join(20)
    assert not worker.watch._thread.is_alive()
    assert worker.looks == looks
