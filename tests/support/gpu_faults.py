"""One call of a worker's to its GPU fails: does the worker keep the law?

The law: a load, or a batch, that fails says what failed; nothing is under way then; nothing is held
that a good run would not hold; the next batch is right; an unload leaves nothing; and after an
error that CUDA never leaves again the worker ends at once. `fault_of` says how it is broken.
"""

from __future__ import annotations

import gc
import logging
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from naiad.worker.backends.base import InstanceLost
from support.gpu_worker import GpuWorker, Story

RELEASES = frozenset(
    {
        "cudaEventDestroy",
        "cudaFree",
        "cudaFreeHost",
        "cudaGraphDestroy",
        "cudaGraphExecDestroy",
        "cudaHostUnregister",
        "cudaIpcCloseMemHandle",
        "cudaStreamDestroy",
    }
)
"""What fails to give something back leaves that one thing behind."""


class Good(NamedTuple):
    """A step without faults: its calls, and what is held after it and one batch more."""

    calls: Counter[str]
    held: Mapping[str, int]


class Told(NamedTuple):
    """What came of a step: errors of its requests or of itself, and whether it ends the worker."""

    errors: Sequence[str]
    is_lost: bool


@dataclass(frozen=True)
class Prepared:
    """A story whose engine is in a directory."""

    story: Story
    directory: Path

    @contextmanager
    def worker_before(self, step: str) -> Iterator[GpuWorker]:
        """A worker to which all that comes before the step has happened."""
        worker = GpuWorker(self.directory, self.story.config)
        try:
            for run in self.story.before(step):
                run(worker)
            assert worker.errors == []
            yield worker
        finally:
            worker.close()

    def good(self, step: str, count: Callable[[GpuWorker], Counter[str]]) -> Good:
        """`count` tells what was called so far."""
        with self.worker_before(step) as worker:
            before = count(worker).copy()
            self.story.steps[step](worker)
            calls = count(worker) - before
            if step not in ("load", "unload"):
                self.story.again(worker)
            assert worker.errors == []
            return Good(calls, worker.held())


def tell(worker: GpuWorker, run: Callable[[GpuWorker], None]) -> Told:
    """Run a step; nobody keeps what it raises, nor the frames that this came through."""
    is_lost, own = False, []
    worker.errors.clear()
    try:
        run(worker)
    except InstanceLost as lost:
        is_lost, own = True, [str(lost)]
    except Exception as fault:
        own = [f"{type(fault).__name__}: {fault}"]
    return Told([*worker.errors, *own], is_lost)


def lost_fault(prepared: Prepared, step: str, told: Told, worker: GpuWorker) -> str:
    """How the law is broken by what was told after an error that stays."""
    if not told.is_lost and step == "forget":  # a finalizer raises nothing: the next call does
        told = tell(worker, prepared.story.again)
    if told.is_lost or (step == "load" and told.errors):  # which ends the worker as well
        return ""
    return f"expected the end of the worker, got {told.errors}"


def fault_of(
    prepared: Prepared,
    step: str,
    good: Good,
    told: Told,
    worker: GpuWorker,
    *,
    words: Sequence[str],
    is_dispensable: bool,
    is_release: bool,
    log: Sequence[logging.LogRecord],
) -> str:
    """How the law is broken; empty: it is not. `words`: one of these must have been told."""
    if told.is_lost:
        return f"ended the worker: {told.errors}"
    errors = list(told.errors)
    if not errors:
        errors = [one.getMessage() for one in log if one.levelno >= logging.WARNING]
    if not is_dispensable and not any(word in text for word in words for text in errors):
        return f"expected one of {words}, told {errors}"
    if step in ("load", "unload"):  # the process ends
        return ""
    if worker.is_working():
        return "something is under way"
    again = tell(worker, prepared.story.again)
    if again.errors:
        return f"the next batch: {again.errors}"
    kept = int(is_release)
    left = more(worker.held(), good.held)
    if sum(left.values()) > kept:
        return f"it holds {left} more"
    if step != "forget":
        worker.forget()
    worker.unload()
    left = more(worker.held(), {})
    return f"the unload leaves {left}" if sum(left.values()) > kept else ""


def more(found: Mapping[str, int], good: Mapping[str, int]) -> dict[str, int]:
    return {name: n - good.get(name, 0) for name, n in found.items() if n > good.get(name, 0)}


@contextmanager
def little_to_collect() -> Iterator[None]:
    """Errors and the frames that they came through hold each other, so collections are many."""
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def each(good: Mapping[str, Good]) -> Iterator[tuple[str, str, int]]:
    """(step, function, number of the call within the step)."""
    for step, one in good.items():
        for function, count in one.calls.items():
            for number in range(count):
                yield step, function, number
