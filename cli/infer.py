"""`naiad infer`: one question to one model, the answer as a table or as JSON."""

from __future__ import annotations

import json
import math
from typing import Any, Final

import click
import numpy as np

from naiad.cli import inputs, run_dir
from naiad.cli.control import ControlLink, refused, require_server
from naiad.cli.exit_codes import ExitCode
from naiad.cli.failure import CommandFailed
from naiad.cli.seconds import Seconds
from naiad.cli.server_options import server_options
from naiad.cli.tables import table
from naiad.client import Client, InferResult
from naiad.protocol.checks import INT64_MAX
from naiad.protocol.errors import Code, NaiadError

Json = dict[str, Any]
VALUES_SHOWN_MAX: Final = 8
VALUE_CHARS_MAX: Final = 60


@click.command(
    epilog="\b\nExamples:\n"
    "  naiad infer string_upper --input INPUT0='[\"hello\"]'\n"
    "  naiad infer mlp --input features=@features.npy --json\n"
    "  naiad infer classify --input image=@cat.jpg\n"
)
@click.argument("model")
@click.option(
    "--input",
    "given",
    multiple=True,
    metavar="NAME=VALUE",
    help="JSON, text, or @file (.npy, .json, otherwise raw bytes); repeatable.",
)
@click.option("--output", "wanted", multiple=True, metavar="NAME", help="Only these; repeatable.")
@click.option(
    "--version", type=click.IntRange(0, INT64_MAX), default=None, help="Default: the newest."
)
@click.option("--timeout", type=Seconds(0.001), default=None, help="In seconds.")
@click.option(
    "--parameter", "parameters", multiple=True, metavar="KEY=VALUE", help="For the model."
)
@click.option(
    "--json",
    "as_json",
    is_flag=True,
    help="All values, as KServe writes them; NaN and Infinity as strings.",
)
@server_options
def infer(
    model: str,
    given: tuple[str, ...],
    wanted: tuple[str, ...],
    version: int | None,
    timeout: float | None,
    parameters: tuple[str, ...],
    as_json: bool,
    folder: str | None,
    name: str,
) -> None:
    """Ask MODEL once."""
    values = dict(map(inputs.split, given))
    where = run_dir.located(folder, name)
    require_server(where)
    try:
        metadata = _metadata(where, model, version)
        arrays = _arrays(model, metadata, values)
        with Client(where, role="cli") as client:
            client.live()  # connected: the timeout is the request's alone
            result = client.infer(
                model,
                arrays,
                list(wanted),
                version=-1 if version is None else version,
                timeout_us=int((timeout or 0) * 1e6),
                parameters=dict(map(_parameter, parameters)),
            )
            click.echo(_as_json(model, result) if as_json else _as_table(result))
    except NaiadError as fault:
        if fault.code == Code.TIMEOUT and timeout is not None:
            raise CommandFailed(
                f"{model} did not answer within --timeout {timeout:g} s; give it more time",
                ExitCode.FAILED,
            ) from fault
        raise refused(fault) from fault


def _metadata(where: str, model: str, version: int | None) -> Json:
    with ControlLink(where) as link:
        found: Json
        if version is None:
            found = link.call("model_metadata", model=model)
        else:
            found = link.call("model_metadata", model=model, version=version)
        return found


def _arrays(model: str, metadata: Json, values: dict[str, str]) -> dict[str, inputs.Array]:
    known = {tensor["name"]: tensor for tensor in metadata["inputs"]}
    for unknown in values.keys() - known.keys():
        raise CommandFailed(
            f"{model} has no input {unknown}; it takes {_described(metadata)}", ExitCode.USAGE
        )
    if not values:
        raise CommandFailed(
            f"{model} takes {_described(metadata)}; give each as --input NAME=VALUE",
            ExitCode.USAGE,
        )
    return {
        name: inputs.array(name, value, known[name]["datatype"], tuple(known[name]["shape"]))
        for name, value in values.items()
    }


def _described(metadata: Json) -> str:
    return ", ".join(
        f"{tensor['name']} ({tensor['datatype']} {tensor['shape']})"
        for tensor in metadata["inputs"]
    )


def _parameter(argument: str) -> tuple[str, str | int | float | bool]:
    key, text = inputs.split(argument)
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return key, text
    return key, value if isinstance(value, str | int | float | bool) else text


def _as_table(result: InferResult) -> str:
    rows = []
    for output in result.outputs:
        values = result[output.name].reshape(-1)
        shown = ", ".join(map(_text, values[:VALUES_SHOWN_MAX]))
        more = ", …" if values.size > VALUES_SHOWN_MAX else ""
        rows.append((output.name, output.datatype, list(output.shape), shown + more))
    return table(("OUTPUT", "DATATYPE", "SHAPE", "VALUES"), rows)


def _as_json(model: str, result: InferResult) -> str:
    outputs = [
        {
            "name": output.name,
            "datatype": output.datatype,
            "shape": list(output.shape),
            "data": [_plain(value) for value in result[output.name].reshape(-1)],
        }
        for output in result.outputs
    ]
    answer = {"model_name": model, "model_version": str(result.version), "outputs": outputs}
    return json.dumps(answer, allow_nan=False)


def _plain(value: Any) -> Any:
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    plain = value.item() if isinstance(value, np.generic) else value
    if isinstance(plain, float) and not math.isfinite(plain):
        return {math.inf: "Infinity", -math.inf: "-Infinity"}.get(plain, "NaN")  # JSON has none
    return plain


def _text(value: Any) -> str:
    if isinstance(value, bytes):
        text = value.decode("utf-8", "replace")
        return repr(text if len(text) <= VALUE_CHARS_MAX else f"{text[:VALUE_CHARS_MAX]}…")
    return f"{value:.6g}" if isinstance(value, np.floating) else str(value)
