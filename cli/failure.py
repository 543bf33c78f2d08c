"""What a command says when it cannot go on: one sentence on stderr and an exit code."""

from __future__ import annotations

import click

from naiad.cli.exit_codes import ExitCode


class CommandFailed(click.ClickException):
    """Raised by commands for what a person can do something about; shown without a traceback.

    `message` says what was expected, what came and what to do.
    """

    def __init__(self, message: str, code: ExitCode = ExitCode.FAILED) -> None:
        super().__init__(message)
        self.code = code
