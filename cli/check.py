"""`naiad check`: what `naiad serve` would refuse, found without serving."""

from __future__ import annotations

import json

import click

from naiad.cli.exit_codes import ExitCode
from naiad.cli.server_options import missing_gpu_option
from naiad.config.model_directory import ScannedModel
from naiad.config.repository import Scan, scan
from naiad.config.surroundings import OnMissingGpu, Surroundings


@click.command(epilog="\b\nExamples:\n  naiad check model_repository\n  naiad check --json a b\n")
@click.argument("repository", nargs=-1, required=True)
@click.option("--json", "as_json", is_flag=True, help="Everything found, for programs.")
@missing_gpu_option
def check(repository: tuple[str, ...], as_json: bool, on_missing_gpu: OnMissingGpu) -> ExitCode:
    """Find faults in the folders REPOSITORY: syntax with line and column, fields with their path.

    Exit code 0 when every model could be loaded, 1 when not, 2 when a folder is no repository.
    """
    found = scan(repository, surroundings=Surroundings(on_missing_gpu=on_missing_gpu))
    if as_json:
        click.echo(json.dumps(found.to_json(), indent=2))
    else:
        _show(found)
    if found.faults:
        return ExitCode.USAGE
    return ExitCode.FAILED if any(map(_faults, found.models)) else ExitCode.DONE


def _show(found: Scan) -> None:
    for model in found.models:
        _show_model(model)
    for note in found.notes:
        click.echo(f"note: {note}")
    for fault in found.faults:
        click.echo(f"naiad: {fault.message}", err=True)
    faulty = sum(bool(_faults(model)) for model in found.models)
    if found.models:
        click.echo(f"{len(found.models)} models, {faulty} with faults")


def _show_model(model: ScannedModel) -> None:
    faults = _faults(model)
    text, colour = ("cannot be served", "red") if faults else ("ok", "green")
    versions = ", ".join(map(str, model.versions))
    shown = f" (version {versions})" if versions and not faults else ""
    click.echo(f"{model.name}: {click.style(text, fg=colour)}{shown}")
    for fault in faults:
        click.echo(f"  {fault}")
    for warning in model.warnings:
        click.echo(f"  {click.style('warning', fg='yellow')}: {warning}")


def _faults(model: ScannedModel) -> list[str]:
    return [*map(str, model.faults), *model.refusals]
