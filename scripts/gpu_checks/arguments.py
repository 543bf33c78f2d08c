"""The command line, and whether what it names can be used: asked before minutes are spent.

Imports nothing but the standard library: what a step needs is the step's to miss.
"""

from __future__ import annotations

import argparse
import os
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from gpu_checks.steps import STEPS

ARRAYS_SUFFIX: Final = ".npz"
"""Of the file beside a plan with its inputs and expected outputs."""

_EPILOG: Final = """\
exit codes: 0 no row fails; 1 some do, or the table or --out could not be written at the end; 2
called wrongly, or cuda.bindings or NumPy is missing; 3 there is no GPU here; 130 interrupted.
docs/gpu.md says what each step proves."""


def parsed(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Ends the process with exit code 2 and a sentence for what cannot be used."""
    names = [step.name for step in STEPS]
    parser = argparse.ArgumentParser(
        "gpu_check",
        description="Prove and measure naiad's work on this machine's GPU, in 8 minutes at most.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--wheels", type=Path, metavar="DIR", help="wheels to use beside what is installed"
    )
    parser.add_argument(
        "--plan", type=Path, action="append", default=[], metavar="FILE",
        help="a TensorRT plan to run; FILE.npz beside it may hold inputs and expected outputs",
    )  # fmt: skip
    parser.add_argument("--out", type=Path, metavar="FILE", help="write the rows as JSON, too")
    parser.add_argument(
        "--only", dest="steps", metavar="STEP,...", type=lambda text: text.split(","),
        default=names, help=f"some of: {', '.join(names)}",
    )  # fmt: skip
    parser.add_argument("--take", help=argparse.SUPPRESS)
    parser.add_argument("--rows-to", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    unknown = [name for name in given.steps if name not in names]
    if unknown:
        parser.error(f"--only: no step {', '.join(unknown)}; there are {', '.join(names)}")
    given.plan = [path.resolve() for path in given.plan]
    if given.take:
        return given
    if given.plan and "plans" not in given.steps:
        parser.error("--plan: needs the step plans, which --only leaves out")
    for option, path, fault in _faults(given):
        parser.error(f"{option}: {path}: {fault}")
    return given


def _faults(given: argparse.Namespace) -> list[tuple[str, Path, str]]:
    named = [("--plan", path, _plan_fault(path)) for path in given.plan]
    if given.out is not None:
        named.append(("--out", given.out, _out_fault(given.out)))
    return [(option, path, fault) for option, path, fault in named if fault]


def _plan_fault(path: Path) -> str:
    beside = Path(f"{path}{ARRAYS_SUFFIX}")
    try:
        with path.open("rb") as file:
            if not file.read(1):
                return "is empty, expected a TensorRT plan"
        if beside.exists() and not zipfile.is_zipfile(beside):
            return f"{beside.name} beside it is no {ARRAYS_SUFFIX} file; write it with numpy.savez"
    except OSError as error:
        return f"cannot be read ({error.strerror})"
    return ""


def _out_fault(path: Path) -> str:
    """By writing nothing to it: rights, read-only file systems, folders that are none."""
    made = os.path.realpath(path)  # at the end of links that lead to nothing yet
    was_there = os.path.lexists(made)
    try:
        with path.open("ab"):
            pass
        if not was_there:
            os.unlink(made)
    except OSError as error:
        return f"cannot be written ({error.strerror})"
    return ""
