"""The root of the command line: `naiad COMMAND`. Loads a command's module only when it is run.

Owns how errors are shown (one sentence on stderr, an exit code of `ExitCode`, never a traceback for
a user's mistake) and what happens when the reader of our output goes away. Holds no command itself.
"""

from __future__ import annotations

import importlib
from typing import Final, NamedTuple

import click

from naiad import __version__
from naiad.cli import streams
from naiad.cli.exit_codes import ExitCode
from naiad.cli.failure import CommandFailed
from naiad.compiled import is_compiled
from naiad.config.faults import did_you_mean

OVERVIEW: Final = """\
naiad serves models: a broker queues requests, every model instance is a process of its own.

  naiad serve model_repository           serve every model of a folder, Ctrl-C to stop
  naiad status                           what runs: models, instances, queues
  naiad infer string_upper --input INPUT0='["hello"]'
  naiad perf -m identity --concurrency 1,16
  naiad check model_repository           find faults without serving

naiad --help lists all commands, naiad COMMAND --help explains one.
"""


class _Entry(NamedTuple):
    target: str
    summary: str


COMMANDS: Final[dict[str, _Entry]] = {
    "serve": _Entry("naiad.cli.serve:serve", "Serve every model of a repository."),
    "tritonserver": _Entry(
        "naiad.cli.tritonserver:tritonserver", "Serve with Triton's command line."
    ),
    "status": _Entry("naiad.cli.status:status", "Show models, instances and queues."),
    "infer": _Entry("naiad.cli.infer:infer", "Ask a model once."),
    "load": _Entry("naiad.cli.repository:load", "Load or reload a model."),
    "unload": _Entry("naiad.cli.repository:unload", "Unload a model."),
    "check": _Entry("naiad.cli.check:check", "Find faults in a repository without serving it."),
    "perf": _Entry("naiad.cli.perf:perf", "Measure throughput and latency of a model."),
    "build": _Entry("naiad.cli.build:build", "Build an ONNX model into a TensorRT plan."),
    "broker": _Entry("naiad.cli.processes:broker", "Run a broker alone (for supervisord)."),
    "worker": _Entry("naiad.cli.processes:worker", "Run one worker slot (for supervisord)."),
    "gateway": _Entry("naiad.cli.processes:gateway", "Run one gateway (for supervisord)."),
    "metrics": _Entry("naiad.cli.processes:metrics", "Run the metrics process (for supervisord)."),
}


class Commands(click.Group):
    """A group whose help needs no command imported."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        entry = COMMANDS.get(cmd_name)
        if entry is None:
            return None
        module, _, attribute = entry.target.partition(":")
        command: click.Command = getattr(importlib.import_module(module), attribute)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """With a guess, for a command that is none."""
        if args and args[0] not in COMMANDS and not args[0].startswith("-"):
            guess = did_you_mean(args[0], COMMANDS)
            if guess:
                raise click.UsageError(f"No such command {args[0]!r:.80}; {guess}", ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, entry.summary) for name, entry in COMMANDS.items()])


@click.group(
    cls=Commands,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="Start with: naiad serve model_repository",
)
@click.version_option(
    f"{__version__} ({'compiled' if is_compiled() else 'plain Python'})",
    "-V",
    "--version",
    message="naiad %(version)s",
)
@click.pass_context
def root(context: click.Context) -> None:
    """An inference server that queues in one process and runs every model instance in its own."""
    if context.invoked_subcommand is None:
        click.echo(OVERVIEW, nl=False)


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    streams.prepare()
    try:
        code = _run(arguments)
    except OSError as error:
        fault = streams.output_fault(error)
        if fault is None:
            raise
        return _unwritten(fault)
    fault = streams.output_fault()
    return code if fault is None else _unwritten(fault)


def _run(arguments: list[str] | None) -> int:
    try:
        code = root.main(args=arguments, prog_name="naiad", standalone_mode=False)
    except click.exceptions.Exit as end:
        return end.exit_code
    except click.Abort:
        streams.complain("interrupted")
        return ExitCode.INTERRUPTED
    except click.ClickException as fault:
        return _show(fault)
    except KeyboardInterrupt:
        return ExitCode.INTERRUPTED
    except MemoryError as fault:
        streams.complain(f"not enough memory: {fault}")
        return ExitCode.FAILED
    return code if isinstance(code, int) else ExitCode.DONE


def _unwritten(fault: OSError) -> int:
    if isinstance(fault, BrokenPipeError):
        # The reader has what it wanted (`naiad status | head`).
        return ExitCode.DONE
    streams.complain(f"cannot write the output: {fault.strerror}")
    return ExitCode.FAILED


def _show(fault: click.ClickException) -> int:
    hint = ""
    if isinstance(fault, click.UsageError) and fault.ctx is not None:
        hint = f" (see {fault.ctx.command_path} --help)"
    streams.complain(f"{fault.format_message().rstrip('.')}{hint}")
    return fault.code if isinstance(fault, CommandFailed) else fault.exit_code
