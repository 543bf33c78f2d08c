"""The steps: which there are, what each proves, how long it may take; and taking one.

A step is a generator of rows in a module of its own, imported in the process that takes it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Final, NamedTuple

from gpu_checks.rows import Row


class Options(NamedTuple):
    """What the steps are told."""

    plans: tuple[str, ...] = ()


class Step(NamedTuple):
    """`place`: module and function."""

    name: str
    place: str
    seconds_max: float
    proves: str


PROBE: Final = Step("device", "device:look", 30, "a GPU that CUDA can use")
STEPS: Final = (
    Step("register", "host_memory:prove", 40, "the GPU reads and writes a POSIX segment by itself"),
    Step("rates", "host_memory:measure", 60, "copies of a segment are as fast as pinned ones"),
    Step("ipc", "between_processes:prove", 40, "memory and events are shared by processes"),
    Step("streams", "order:streams", 30, "streams run side by side, and in order by events"),
    Step("waiting", "waiting:measure", 40, "the end of an execution is seen soon, and cheaply"),
    Step("overlap", "order:overlap", 40, "copies run beside the execution"),
    Step("graphs", "order:graphs", 30, "a captured graph gives the same, sooner"),
    Step("data-path", "data_path:prove", 60, "naiad's backend gives each request its own rows"),
    Step("server", "server:prove", 90, "a whole server runs a kernel as its engine"),
    Step("memory", "context_memory:measure", 60, "what an empty worker takes of the GPU's memory"),
    Step(
        "faults", "faults:prove", 40, "errors of the device are told, and harm their process only"
    ),
    Step("plans", "plans:prove", 120, "real engines run, where TensorRT is installed"),
)


def take(name: str, options: Options, rows_to: Path) -> None:
    """Take a step in this process; each row is in the file as soon as it is known."""
    step = next(step for step in (PROBE, *STEPS) if step.name == name)
    module, _, function = step.place.partition(":")
    found: Callable[[Options], Iterator[Row]] = getattr(
        import_module(f"gpu_checks.{module}"), function
    )
    with rows_to.open("a") as out:
        for row in found(options):
            out.write(row.to_json() + "\n")
            out.flush()
