"""`naiad build`: the TensorRT plan of an ONNX model, and the config.pbtxt that serves it.

What is said on the way goes to stderr; stdout is the config alone, so that it can be redirected.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Final

import click

from naiad.cli.building import modules
from naiad.cli.building.engine_builder import EngineBuilder, Limits
from naiad.cli.building.files import (
    config_path,
    read_cache,
    refuse_existing,
    refuse_unwritable,
    write_whole,
)
from naiad.cli.building.plan_config import BACKEND, plan_config
from naiad.cli.building.profiles import (
    SYNTAX,
    Profile,
    ProfileRequest,
    batch_gaps,
    batch_sizes,
    choose_profiles,
    parse_profile,
)
from naiad.cli.building.progress import Messages, Phases
from naiad.cli.building.source import Source, find_source, refuse_unfit
from naiad.cli.control import refused
from naiad.cli.exit_codes import ExitCode
from naiad.cli.failure import CommandFailed
from naiad.cli.streams import complain
from naiad.cli.tables import table
from naiad.config.model import Json, ModelConfig
from naiad.config.pbtxt import render
from naiad.protocol.errors import NaiadError, RequestError
from naiad.worker.backends.completion import complete_config

MIB: Final = 2**20
WORKSPACE_MIB_MAX: Final = 2**20


def _profiles(
    context: click.Context, option: click.Parameter, given: tuple[str, ...]
) -> list[ProfileRequest]:
    try:
        return [parse_profile(text) for text in given]
    except RequestError as fault:
        raise click.BadParameter(str(fault)) from fault


@click.command(
    epilog="\b\nExamples:\n"
    "  naiad build model_repository/mlp\n"
    "  naiad build model_repository/mlp --profile 1:1:4 --profile 5:32:32 --write-config\n"
    "  naiad build model_repository/embed --profile 1:8:32,tokens=16:64:256\n"
)
@click.argument("model")
@click.option(
    "--version", type=click.IntRange(0), help="Which; default: the newest with an ONNX file."
)
@click.option(
    "--runtime",
    type=click.Choice([modules.AUTO, *modules.MODULES]),
    default=modules.AUTO,
    show_default=True,
    help="What builds, and must serve later; auto: tensorrt where it and a GPU are.",
)
@click.option(
    "--profile",
    "requests",
    multiple=True,
    callback=_profiles,
    metavar="SPEC",
    help=f"Shapes to build for, instead of the config's; {SYNTAX}; comma between, repeatable.",
)
@click.option("--output", help="The plan's file; default: beside the ONNX, as model.plan.")
@click.option(
    "--compute-capability",
    "capabilities",
    multiple=True,
    metavar="8.9",
    help="GPUs that tensorrt_rtx builds for (or: current), repeatable; default: 8.0 and later.",
)
@click.option(
    "--workspace-mib",
    type=click.IntRange(1, WORKSPACE_MIB_MAX),
    help="GPU memory that layers may use for intermediate results; default: all there is.",
)
@click.option(
    "--timing-cache",
    metavar="FILE",
    help="Measurements of tensorrt: read if there, written at the end.",
)
@click.option(
    "--write-config",
    is_flag=True,
    help="Write the config: as config.pbtxt where there is none, else as configs/tensorrt.pbtxt.",
)
@click.option("--force", is_flag=True, help="Replace files that are there.")
@click.option("-v", "--verbose", is_flag=True, help="Show everything that TensorRT says.")
def build(
    model: str,
    version: int | None,
    runtime: str,
    requests: list[ProfileRequest],
    output: str | None,
    capabilities: tuple[str, ...],
    workspace_mib: int | None,
    timing_cache: str | None,
    write_config: bool,
    force: bool,
    verbose: bool,
) -> None:
    """Build the ONNX file of the model directory MODEL into a TensorRT plan.

    Precision is that of the ONNX. The plan runs on the very version of tensorrt or tensorrt_rtx
    that built it. The config.pbtxt for it is printed.
    """
    source = find_source(model, version)
    plan_path = os.path.abspath(output) if output else source.plan
    written = config_path(source)
    targets = [plan_path, *([written] if write_config else [])]
    if not force:
        refuse_existing(targets)
    refuse_unfit(source.onnx)
    refuse_unwritable([*targets, *([timing_cache] if timing_cache else [])])
    toolkit = modules.find_toolkit(runtime)
    if timing_cache and toolkit.is_rtx:
        raise CommandFailed(
            "--timing-cache is for tensorrt: tensorrt_rtx measures nothing when it builds",
            ExitCode.USAGE,
        )
    builder = EngineBuilder(toolkit, Messages(is_verbose=verbose))
    config, profiles = _completed(source, builder, requests)
    json = plan_config(config, os.path.basename(plan_path), profiles)
    text = render(json)
    limits = Limits((workspace_mib or 0) * MIB, capabilities)
    cache = read_cache(timing_cache) if timing_cache else None
    begun_s = time.monotonic()
    phases = Phases()
    try:
        plan = builder.build(profiles, limits, cache, phases)
    finally:
        phases.close()
    took_s = time.monotonic() - begun_s
    write_whole(plan_path, plan)
    if timing_cache:
        write_whole(timing_cache, builder.timing_cache())
    complain(
        f"{plan_path}: {plan.nbytes / 1e6:.1f} MB in {took_s:.1f} s; it runs with {toolkit} only"
    )
    if profiles:
        click.echo(_as_table(profiles), err=True)
    for note in [*_batch_notes(config, json, profiles), *_place_notes(source, plan_path)]:
        complain(note)
    if write_config:
        write_whole(written, text.encode())
        beside = os.path.dirname(written) != source.directory
        choose = f"; `naiad serve --model-config-name {BACKEND}` reads it" if beside else ""
        complain(f"{written}: written{choose}")
    else:
        click.echo(text, nl=False)


def _completed(
    source: Source, builder: EngineBuilder, requests: Sequence[ProfileRequest]
) -> tuple[ModelConfig, list[Profile]]:
    """The config with what the ONNX says, and the profiles to build for."""
    inputs, outputs = builder.parse(source.onnx)
    try:
        config = complete_config(source.config, inputs, outputs)
        declared = {tensor.name: tensor.dims or () for tensor in inputs}
        profiles = choose_profiles(config, declared, requests)
    except NaiadError as fault:
        raise refused(fault) from fault
    if source.config.max_batch_size <= 0 < config.max_batch_size and requests:
        greatest = max(most for _, most in batch_sizes(profiles))
        config = config.with_fields(max_batch_size=greatest)
    return config, profiles


def _batch_notes(config: ModelConfig, json: Json, profiles: Sequence[Profile]) -> Iterator[str]:
    """What a person would otherwise find out when the model is served."""
    if config.max_batch_size <= 0:
        return
    most = json["max_batch_size"]
    if most < config.max_batch_size:
        yield f"max_batch_size is {most} now, not {config.max_batch_size}"
    for first, last in batch_gaps(profiles, most):
        sizes = str(first) if first == last else f"{first} to {last}"
        yield f"no profile takes batches of {sizes}: such requests will fail"


def _place_notes(source: Source, plan_path: str) -> Iterator[str]:
    if os.path.dirname(plan_path) != os.path.dirname(source.plan):
        yield f"a server looks for the plan in {os.path.dirname(source.plan)}"
    elif not source.names_engine:
        yield (
            "no config.pbtxt named this model's backend, so from its next load on the plan is "
            "served, not the ONNX"
        )


def _as_table(profiles: Sequence[Profile]) -> str:
    rows = [
        (index, name, *("x".join(map(str, dims)) for dims in ranged))
        for index, profile in enumerate(profiles)
        for name, ranged in profile.items()
    ]
    return table(("PROFILE", "INPUT", "MIN", "OPT", "MAX"), rows, sys.stderr)
