"""The options of `naiad serve` that are rarely wanted: what Triton's users may bring along.

Most are hidden, so that --help fits a screen; docs/tritonserver.md has them, and docs/scheduling.md
those for users.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final, TypeVar

import click

from naiad.cli.server_options import auto_complete_option, model_config_option
from naiad.config.log_levels import FORMATS, INITIAL, VERBOSE_MAX
from naiad.config.settings import USER_BYTES_MAX, USER_REQUESTS_MAX
from naiad.protocol.messages import LogLevels

F = TypeVar("F", bound=Callable[..., Any])


def options(command: F) -> F:
    """Adds them to a command, which passes them on to `taken`."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def _switch(name: str, default: bool) -> Callable[[Any], Any]:
    return click.option(name, type=bool, default=default, metavar="true|false", hidden=True)


_OPTIONS: Final[Sequence[Callable[[Any], Any]]] = (
    click.option("--id", "identity", metavar="TEXT", hidden=True),
    _switch("--strict-readiness", True),
    auto_complete_option,
    partial(model_config_option, hidden=True),  # the list of options is long enough
    click.option("--allow-file-override", is_flag=True, hidden=True),
    click.option("--log-verbose", type=click.IntRange(0, VERBOSE_MAX), default=0, hidden=True),
    _switch("--log-info", INITIAL.info),
    _switch("--log-warning", INITIAL.warning),
    _switch("--log-error", INITIAL.error),
    click.option(
        "--user-requests-max", type=click.IntRange(0), default=USER_REQUESTS_MAX, hidden=True
    ),
    click.option("--user-bytes-max", type=click.IntRange(0), default=USER_BYTES_MAX, hidden=True),
    click.option("--log-format", type=click.Choice(FORMATS), default=INITIAL.format, hidden=True),
)


def taken(given: dict[str, Any]) -> dict[str, Any]:
    """Takes their values out of `given`: fields of config.settings.Settings."""
    return {
        "identity": given.pop("identity") or "",
        "strict_readiness": given.pop("strict_readiness"),
        "config_name": given.pop("model_config_name"),
        "auto_complete": not given.pop("disable_auto_complete_config"),
        "allow_file_override": given.pop("allow_file_override"),
        "user_requests_max": given.pop("user_requests_max"),
        "user_bytes_max": given.pop("user_bytes_max"),
        "log_levels": LogLevels(
            given.pop("log_info"),
            given.pop("log_warning"),
            given.pop("log_error"),
            given.pop("log_verbose"),
            given.pop("log_format"),
        ),
    }
