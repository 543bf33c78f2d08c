"""`naiad status`: what a running server has loaded, where it runs, how it is doing."""

from __future__ import annotations

import json
import time
from typing import Any

import click

from naiad.cli import run_dir
from naiad.cli.control import ControlLink, refused, require_server
from naiad.cli.server_options import server_options
from naiad.cli.tables import table
from naiad.protocol.errors import NaiadError

Json = dict[str, Any]


@click.command(epilog="\b\nExamples:\n  naiad status\n  naiad status --json | jq .models\n")
@click.option("--json", "as_json", is_flag=True, help="Everything, for programs.")
@server_options
def status(as_json: bool, folder: str | None, name: str) -> None:
    """Show models and instances: pid, device, state, restarts, queue."""
    where = run_dir.located(folder, name)
    require_server(where)
    try:
        with ControlLink(where) as link:
            found: Json = link.call("status")
    except NaiadError as fault:
        raise refused(fault) from fault
    click.echo(json.dumps(found, indent=2) if as_json else render(found, where, time.time()))


def render(found: Json, where: str, now_s: float) -> str:
    """The status for a person; `now_s` in seconds since 1970."""
    server = found["server"]
    head = f"{server['name']} on {where}: {server['phase']}"
    if server.get("pid"):
        head += f", pid {server['pid']}"
    if server.get("started"):
        head += f", up {duration(max(0.0, now_s - float(server['started'])))}"
    counts = server.get("models")
    if counts:
        told = [f"{counts['ready']} of {counts['known']} models ready"]
        told += [f"{counts[one]} {one}" for one in ("loading", "failed") if counts[one]]
        head += f"; {', '.join(told)}"
    parts = [head]
    models = found["models"]
    if not models:
        parts.append("no models; load one with `naiad load MODEL`")
        return "\n".join(parts)
    rows = [[model.get(key) for key in _MODEL_KEYS] for model in models]
    parts.append(table([key.upper() for key in _MODEL_KEYS], _without_empty(rows)))
    instances = found["instances"]
    rows = [[instance.get(key) for key in _INSTANCE_KEYS] for instance in instances]
    if rows:
        parts.append(table([key.upper() for key in _INSTANCE_KEYS], _without_empty(rows)))
    return "\n\n".join(parts)


_MODEL_KEYS = ("name", "version", "state", "instances", "queued", "executing", "reason")
_INSTANCE_KEYS = ("slot", "pid", "device", "model", "version", "state", "restarts", "executing_s")


def _without_empty(rows: list[list[Any]]) -> list[list[Any]]:
    return [["-" if cell is None or cell == "" else cell for cell in row] for row in rows]


def duration(seconds: float) -> str:
    """'4 s', '3 min', '5 h' or '12 d'."""
    for limit, unit, size in ((120, "s", 1), (7200, "min", 60), (172_800, "h", 3600)):
        if seconds < limit:
            return f"{int(seconds / size)} {unit}"
    return f"{int(seconds / 86_400)} d"
