"""`naiad tritonserver`, and the program `tritonserver`: naiad under Triton's command line.

Translates the flags and calls `naiad serve`. Owns what differs for whoever starts it: Triton's
defaults, its texts, and its exit codes (0, and 1 for everything that went wrong).
"""

from __future__ import annotations

import sys
from typing import Final

import click

from naiad.cli import main as root
from naiad.cli.exit_codes import ExitCode
from naiad.cli.failure import CommandFailed
from naiad.cli.serve import serve
from naiad.cli.streams import complain
from naiad.cli.tritonserver_arguments import Translated, WrongFlag, translated
from naiad.cli.tritonserver_flags import FLAGS, Absent, NoEffect, Setting

HELP_FLAGS: Final = frozenset({"-h", "--help"})
SAME: Final = frozenset({ExitCode.DONE, ExitCode.INTERRUPTED})
"""Exit codes that stay as they are."""
USAGE: Final = """\
Usage: tritonserver --model-repository DIRECTORY [options]

naiad under Triton's command line: --flag value or --flag=value, booleans true or false. These are
heeded (defaults as Triton's, see docs/tritonserver.md), and every option of `naiad serve`:

{heeded}

Accepted without any effect, with a line that says why:

{ignored}
"""


@click.command(
    add_help_option=False,
    context_settings={"ignore_unknown_options": True, "allow_extra_args": True},
)
@click.argument("flags", nargs=-1, type=click.UNPROCESSED)
def tritonserver(flags: tuple[str, ...]) -> int:
    """Serve with Triton's command line."""
    if HELP_FLAGS.intersection(flags):
        click.echo(usage(), nl=False)
        return ExitCode.DONE
    try:
        wanted = translated(flags, own_options())
        _check(wanted)
    except WrongFlag as fault:
        raise _failed(str(fault)) from fault
    for note in wanted.notes.values():
        complain(note)
    return _serve(wanted.arguments)


def _serve(arguments: list[str]) -> int:
    try:
        with serve.make_context("tritonserver", arguments) as context:
            code = int(serve.invoke(context))
    except CommandFailed as fault:
        raise CommandFailed(fault.message, ExitCode.FAILED) from fault
    except click.UsageError as fault:
        raise _failed(fault.format_message().rstrip(".")) from fault
    return code if code in SAME else ExitCode.FAILED


def own_options() -> dict[str, bool]:
    """The options of `naiad serve`, and whether each has no value."""
    return {
        option: bool(parameter.is_flag)
        for parameter in serve.params
        if isinstance(parameter, click.Option)
        for option in parameter.opts
    }


def usage() -> str:
    """What --help prints."""
    known = own_options()
    ignored = [name for name, flag in FLAGS.items() if isinstance(flag.fate, NoEffect)]
    refused = [name for name, flag in FLAGS.items() if isinstance(flag.fate, Absent)]
    missing = {
        name
        for name, flag in FLAGS.items()
        if getattr(flag.fate, "option", None) not in {None, *known}
    }
    heeded = [
        f"  {name} {'' if flag.kind == 'none' else f'<{flag.kind}>'}".rstrip()
        for name, flag in FLAGS.items()
        if name not in {*ignored, *refused, *missing}
        and not isinstance(flag.fate, Setting)
        and not flag.advice
    ]
    return USAGE.format(heeded="\n".join(heeded), ignored="\n".join(f"  {one}" for one in ignored))


def _check(wanted: Translated) -> None:
    if not wanted.repositories:
        raise WrongFlag("--model-repository must be specified")


def _failed(text: str) -> CommandFailed:
    return CommandFailed(f"{text} (see tritonserver --help)", ExitCode.FAILED)


def main() -> None:
    """The program `tritonserver`."""
    sys.exit(root.main(["tritonserver", *sys.argv[1:]]))
