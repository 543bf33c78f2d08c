"""What TensorRT tells while it builds: its phases as bars, its errors as the reason of a failure.

The classes here are plain Python; `logger_of` and `monitor_of` make of them what the module calls.
TensorRT calls from threads of its own, several at a time.
"""

from __future__ import annotations

import sys
from collections import deque
from types import ModuleType
from typing import Any, Final

import click

from naiad.config.names import visible

ERROR: Final = 1
WARNING: Final = 2
"""Severities as TensorRT numbers them: 0 is an internal error, 4 everything."""
ERRORS_KEPT_MAX: Final = 8
MESSAGE_CHARS_MAX: Final = 2000


class Messages:
    """The last errors, in TensorRT's own words; with `is_verbose` everything is shown at once."""

    def __init__(self, *, is_verbose: bool = False) -> None:
        self.errors: deque[str] = deque(maxlen=ERRORS_KEPT_MAX)
        self._is_verbose = is_verbose

    def take(self, severity: int, text: str) -> None:
        text = text.strip()[:MESSAGE_CHARS_MAX]
        if severity <= ERROR and text not in self.errors:
            self.errors.append(text)
        if self._is_verbose:
            click.echo(visible(text), err=True)


class Phases:
    """A bar on stderr for every phase that runs, where a person looks; nothing elsewhere.

    `cancel` makes TensorRT leave at its next step.
    """

    def __init__(self) -> None:
        self.is_cancelled = False
        self._tasks: dict[str, tuple[Any, int]] = {}
        self._bars: Any = None
        if sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

            columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
            self._bars = Progress(*columns, console=Console(stderr=True), transient=True)
            self._bars.start()

    def start(self, name: str, parent: str | None, steps_count: int) -> None:
        if self._bars is not None:
            depth = self._tasks[parent][1] + 1 if parent in self._tasks else 0
            task = self._bars.add_task(f"{'  ' * depth}{visible(name)}", total=steps_count)
            self._tasks[name] = (task, depth)

    def step(self, name: str, number: int) -> bool:
        """Whether to go on."""
        if self._bars is not None and name in self._tasks:
            self._bars.update(self._tasks[name][0], completed=number + 1)
        return not self.is_cancelled

    def finish(self, name: str) -> None:
        task = self._tasks.pop(name, None)
        if task is not None:
            self._bars.remove_task(task[0])

    def cancel(self) -> None:
        self.is_cancelled = True

    def close(self) -> None:
        if self._bars is not None:
            self._bars.stop()


def logger_of(trt: ModuleType, messages: Messages) -> Any:
    """What a Builder and a parser are given; it must outlive them."""
    methods = {"log": lambda _, severity, text: messages.take(int(severity), text)}
    return type("Logger", (trt.ILogger,), methods)()


def monitor_of(trt: ModuleType, phases: Phases) -> Any | None:
    """What a builder's config is given; None where this TensorRT has no progress to tell."""
    base = getattr(trt, "IProgressMonitor", None)
    if base is None:
        return None
    methods = {
        "phase_start": lambda _, name, parent, count: phases.start(name, parent, count),
        "step_complete": lambda _, name, step: phases.step(name, step),
        "phase_finish": lambda _, name: phases.finish(name),
    }
    return type("Monitor", (base,), methods)()
