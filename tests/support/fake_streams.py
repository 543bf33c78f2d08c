"""When the fake GPU does what it was given: in threads, or as the ordering rules just allow.

CUDA promises that a stream works in order, and that it waits for the events that it was told to
wait for; all else may happen at any time. With Threads it happens when the machine likes. With
Order it happens as badly as it may: streams that are EARLY work at once, those that are LATE when
somebody waits for just that, and those that are SHUFFLED anywhere in between; a missing wait shows
as wrong bytes, and always in the same way. Knows nothing of memory.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from queue import SimpleQueue
from random import Random
from time import monotonic, perf_counter, sleep
from typing import Final, NamedTuple, Protocol

EARLY: Final = "early"
LATE: Final = "late"
SHUFFLED: Final = "shuffled"
MOODS: Final = (EARLY, LATE, SHUFFLED)

WAIT_SECONDS_MAX: Final = 30
"""Nothing in a test takes that long: somebody waits for what nobody does."""


class Trap(Exception):
    """What a kernel does that goes wrong: every later call answers with this error."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


class Reached(threading.Event):
    """One recording of an event: set when its stream has done what it was given before. Who never
    asked the stream for anything counts as reached."""

    def __init__(self, stream: Stream | None = None) -> None:
        super().__init__()
        self.stream = stream
        self.was_looked_at = False
        self.at_s = 0.0
        if stream is None:
            self.set()

    def happen(self) -> None:
        self.at_s = perf_counter()
        self.set()


class Entry(NamedTuple):
    """What a stream does next: when `after` is reached, and `is_open` agrees."""

    run: Callable[[], object]
    after: Reached | None = None
    is_open: Callable[[], bool] | None = None

    @property
    def can_run(self) -> bool:
        if self.after is not None and not self.after.is_set():
            return False
        return self.is_open is None or self.is_open()


def nothing() -> None:
    """What an entry does that only waits."""


class Stream:
    """Entries in order, or a list of them while it is captured."""

    def __init__(self, timing: Timing, trapped: Callable[[int], object]) -> None:
        self._timing = timing
        self._trapped = trapped
        self.entries: deque[Entry] = deque()
        self.captured: list[Entry] | None = None
        self.is_capture_broken = False
        self.pending = 0
        """Entries that are not done."""

    def add(self, run: Callable[[], object]) -> None:
        self.give(Entry(run))

    def wait_for(self, reached: Reached) -> None:
        """Do nothing more before that."""
        self.give(Entry(nothing, reached))

    def wait_until(self, is_open: Callable[[], bool]) -> None:
        """The same, for what happens in another process."""
        self.give(Entry(nothing, None, is_open))

    def record(self) -> Reached:
        reached = Reached(self)
        self.add(reached.happen)
        return reached

    def give(self, entry: Entry) -> None:
        if self.captured is not None:
            self.captured.append(entry)
            return
        self.pending += 1
        self._timing.given(self, entry)

    def do(self, entry: Entry) -> None:
        """Once it can run."""
        try:
            entry.run()
        except Trap as trap:
            self._trapped(trap.code)
        finally:
            self.pending -= 1

    def drain(self) -> None:
        """Wait until all of it is done."""
        assert self.captured is None
        self._timing.wait(self.record())

    def end(self) -> None:
        self._timing.ended(self)


class Timing(Protocol):
    """Of one device's streams."""

    def begun(self, stream: Stream) -> None: ...

    def given(self, stream: Stream, entry: Entry) -> None: ...

    def looked(self, reached: Reached) -> bool:
        """Whether it is reached, asked by somebody who does not wait."""
        ...

    def wait(self, reached: Reached) -> None: ...

    def called(self) -> None:
        """After each call of the API."""
        ...

    def ended(self, stream: Stream) -> None: ...


class Threads:
    """A thread for each stream: they overlap, and take the time that they take."""

    def __init__(self) -> None:
        self._threads: dict[Stream, threading.Thread] = {}
        self._given: dict[Stream, SimpleQueue[Entry | None]] = {}

    def begun(self, stream: Stream) -> None:
        self._given[stream] = SimpleQueue()
        self._threads[stream] = threading.Thread(target=self._work, args=[stream], daemon=True)
        self._threads[stream].start()

    def given(self, stream: Stream, entry: Entry) -> None:
        self._given[stream].put(entry)

    def looked(self, reached: Reached) -> bool:
        return reached.is_set()

    def wait(self, reached: Reached) -> None:
        assert reached.wait(WAIT_SECONDS_MAX)

    def called(self) -> None:
        """They go on by themselves."""

    def ended(self, stream: Stream) -> None:
        self._given[stream].put(None)
        self._threads[stream].join(WAIT_SECONDS_MAX)

    def _work(self, stream: Stream) -> None:
        while (entry := self._given[stream].get()) is not None:
            if entry.after is not None:
                assert entry.after.wait(WAIT_SECONDS_MAX)
            if entry.is_open is not None:
                _poll(entry.is_open)
            stream.do(entry)


class Order:
    """Everything happens within calls of the API, on the thread that makes them.

    `moods` of the streams in the order of their creation, the last one for all that follow; they
    may be changed at any time.
    """

    def __init__(self, moods: Sequence[str] = (LATE,), seed: int = 0) -> None:
        self.moods = moods
        self._random = Random(seed)
        self._streams: list[Stream] = []
        self._lock = threading.RLock()

    def seed(self, seed: int) -> None:
        self._random.seed(seed)

    def begun(self, stream: Stream) -> None:
        self._streams.append(stream)

    def given(self, stream: Stream, entry: Entry) -> None:
        with self._lock:
            stream.entries.append(entry)

    def looked(self, reached: Reached) -> bool:
        """The first look comes too early, so that whoever asks once is found out."""
        with self._lock:
            if reached.was_looked_at:
                self._reach(reached)
            reached.was_looked_at = True
            return reached.is_set()

    def wait(self, reached: Reached) -> None:
        def is_reached() -> bool:
            with self._lock:
                return self._reach(reached)

        _poll(is_reached)

    def called(self) -> None:
        with self._lock:
            is_going = True
            while is_going:
                is_going = False
                for number, stream in enumerate(self._streams):
                    is_going = self._goes_on(number, stream) or is_going

    def ended(self, stream: Stream) -> None:
        stream.drain()

    def _goes_on(self, number: int, stream: Stream) -> bool:
        """One step, if its mood is for one."""
        mood = self.moods[min(number, len(self.moods) - 1)]
        if mood == LATE or (mood == SHUFFLED and self._random.random() < 0.5):
            return False
        return self._step(stream)

    def _step(self, stream: Stream) -> bool:
        if not stream.entries or not stream.entries[0].can_run:
            return False
        stream.do(stream.entries.popleft())
        return True

    def _reach(self, reached: Reached) -> bool:
        """Do what it needs, and nothing else."""
        stream = reached.stream
        while not reached.is_set():
            assert stream is not None
            assert stream.entries, "it was recorded in a stream that has nothing left to do"
            after = stream.entries[0].after
            if after is not None and not self._reach(after):
                return False
            if not self._step(stream):
                return False
        return True


def _poll(is_so: Callable[[], bool]) -> None:
    deadline = monotonic() + WAIT_SECONDS_MAX
    while not is_so():
        assert monotonic() < deadline, "nobody let it happen"
        sleep(0.0005)
