"""`naiad check`: what `naiad serve` would refuse, found without serving."""

from __future__ import annotations

import json
from dataclasses import replace

import click

from naiad.cli.exit_codes import ExitCode
from naiad.cli.failure import CommandFailed
from naiad.cli.server_options import (
    auto_complete_option,
    found,
    gpus_option,
    missing_gpu_option,
    model_config_option,
)
from naiad.cli.streams import complain
from naiad.config.engines import cpu_backends
from naiad.config.model import ModelConfig
from naiad.config.model_directory import ScannedModel
from naiad.config.model_file import model_file_faults
from naiad.config.names import visible
from naiad.config.repository import Scan, scan
from naiad.config.settings import config_name_fault
from naiad.config.surroundings import OnMissingGpu, Surroundings
from naiad.worker.backends.registry import importable_backends


@click.command(epilog="\b\nExamples:\n  naiad check model_repository\n  naiad check --json a b\n")
@click.argument("repository", nargs=-1, required=True)
@click.option("--json", "as_json", is_flag=True, help="Everything found, for programs.")
@missing_gpu_option
@gpus_option
@model_config_option
@auto_complete_option
def check(
    repository: tuple[str, ...],
    as_json: bool,
    on_missing_gpu: OnMissingGpu,
    gpus: str,
    model_config_name: str,
    disable_auto_complete_config: bool,
) -> ExitCode:
    """Find faults in the folders REPOSITORY: syntax with line and column, fields with their path,
    model files that cannot be any. What only loading shows is in docs/model_configuration.md.

    Exit code 0 when every model could be loaded, 1 when not, 2 when a folder is no repository.
    """
    fault = config_name_fault(model_config_name)
    if fault:
        raise CommandFailed(fault, ExitCode.USAGE)
    devices = found(gpus)
    surroundings = Surroundings(
        backends=importable_backends(),
        devices=devices.devices,
        cpu_backends=cpu_backends(),
        on_missing_gpu=on_missing_gpu,
        auto_complete=not disable_auto_complete_config,
        config_name=model_config_name,
    )
    seen = scan(repository, surroundings=surroundings)
    notes = (*seen.notes, *([devices.note] if devices.note else []))
    seen = replace(seen, models=tuple(map(_with_files, seen.models)), notes=notes)
    if as_json:
        click.echo(json.dumps(seen.to_json(), indent=2))
    else:
        _show(seen)
    if seen.faults:
        return ExitCode.USAGE
    return ExitCode.FAILED if any(model.reasons for model in seen.models) else ExitCode.DONE


def _with_files(model: ScannedModel) -> ScannedModel:
    """A server finds these by loading; here nothing is loaded."""
    if model.config is None or model.reasons:
        return model
    config = ModelConfig.from_json(model.config)
    return replace(model, faults=tuple(model_file_faults(config, model.directory, model.versions)))


def _show(found: Scan) -> None:
    for model in found.models:
        _show_model(model)
    for note in found.notes:
        click.echo(f"note: {visible(note)}")
    for fault in found.faults:
        complain(fault.message)
    faulty = sum(bool(model.reasons) for model in found.models)
    if found.models:
        count = len(found.models)
        click.echo(f"{count} model{'s' if count > 1 else ''}, {faulty} with faults")


def _show_model(model: ScannedModel) -> None:
    faults = model.reasons
    text, colour = ("cannot be served", "red") if faults else ("ok", "green")
    versions = ", ".join(map(str, model.versions))
    shown = f" (version {versions})" if versions and not faults else ""
    click.echo(f"{visible(model.name)}: {click.style(text, fg=colour)}{shown}")
    for fault in faults:
        click.echo(f"  {visible(fault)}")
    for warning in model.warnings:
        click.echo(f"  {click.style('warning', fg='yellow')}: {visible(warning)}")
