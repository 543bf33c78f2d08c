"""`naiad serve`: check what was asked for, run the supervisor, leave nothing behind."""

from __future__ import annotations

import sys
from contextlib import ExitStack
from dataclasses import replace
from typing import Any, Final

import click

from naiad.cli import (
    front_door,
    front_door_options,
    metrics_listener,
    repositories,
    run_dir,
    server_settings,
)
from naiad.cli.cleanup import cleanup, forget_state
from naiad.cli.exit_codes import ExitCode
from naiad.cli.failure import CommandFailed
from naiad.cli.front_door import FrontDoor
from naiad.cli.log import LogWriter
from naiad.cli.metrics_listener import MetricsListener
from naiad.cli.plan import Plan
from naiad.cli.seconds import Seconds
from naiad.cli.server_options import found, gpus_option, missing_gpu_option
from naiad.cli.startup import Status, failed_models, models_table, outcome
from naiad.cli.supervisor import Supervisor
from naiad.config.settings import DEFAULT_NAME, SCAN_TIMEOUT_SECONDS, SPARES_MAX, Settings
from naiad.config.surroundings import OnMissingGpu
from naiad.protocol.messages import LogLevels

DRAIN_SECONDS: Final = 30.0
LOAD_FAILED: Final = "error: creating server: Internal - failed to load all models"
"""The last word of --exit-on-error; Triton's, which tools look for."""


@click.command(
    epilog="\b\nExamples:\n"
    "  naiad serve model_repository\n"
    "  naiad serve a b --control-mode explicit --load-model magika\n"
    "\nRarer options: docs/http.md, access.md, tritonserver.md, metrics.md.\n"
)
@click.argument("repository", nargs=-1, required=True)
@click.option("--name", default=DEFAULT_NAME, help="Of this server; two on a host differ.")
@click.option("--run-dir", "folder", help="For sockets, state; default: per user, name.")
@click.option(
    "--control-mode",
    default="none",
    metavar="none|explicit",
    help="none (default) loads every model; explicit those of --load-model and `naiad load`.",
)
@click.option("--load-model", multiple=True, metavar="MODEL", help="With explicit; repeatable.")
@click.option("--log-file", metavar="FILE", help="Instead of stderr; reopened on SIGHUP.")
@click.option("--exit-on-error", is_flag=True, help="Stop when a model does not load.")
@missing_gpu_option
@gpus_option
@click.option(
    "--spares",
    type=click.IntRange(0, SPARES_MAX),
    default=1,
    help="Warm empty workers per device, for when one dies; default: 1.",
)
@front_door_options.options
@metrics_listener.options
@server_settings.options
@click.option(
    "--drain-seconds",
    type=Seconds(0),
    default=DRAIN_SECONDS,
    help="For running work after Ctrl-C; default: 30.",
)
@click.option(
    "--scan-timeout-seconds",
    type=Seconds(),
    default=SCAN_TIMEOUT_SECONDS,
    help="For reading model folders; default: 60.",
)
@click.option("--may-be-empty", is_flag=True, hidden=True)  # serve no model rather than refuse
def serve(
    repository: tuple[str, ...],
    name: str,
    folder: str | None,
    control_mode: str,
    load_model: tuple[str, ...],
    log_file: str | None,
    exit_on_error: bool,
    on_missing_gpu: OnMissingGpu,
    gpus: str,
    spares: int,
    drain_seconds: float,
    scan_timeout_seconds: float,
    metrics_port: str,
    metrics_address: str | None,
    allow_gpu_metrics: bool,
    may_be_empty: bool,
    **ports: Any,
) -> ExitCode:
    """Serve every model of the folders REPOSITORY until Ctrl-C.

    A broker process queues requests; each model instance gets a process of its own, which is
    replaced when it dies. Gateway processes speak HTTP and gRPC (KServe v2, as Triton does).
    """
    where = run_dir.located(folder, name)
    settings = Settings(
        run_dir=where,
        name=name,
        repositories=repositories.checked(
            repository, may_be_empty=may_be_empty or control_mode == "explicit"
        ),
        control_mode=control_mode,
        load_models=load_model,
        on_missing_gpu=on_missing_gpu,
        gpus=gpus,
        spare_workers_count=spares,
        drain_seconds=drain_seconds,
        scan_timeout_seconds=scan_timeout_seconds,
        log_file=log_file or "",
        **server_settings.taken(ports),
    )
    faults = settings.faults()
    if faults:
        raise click.UsageError("; ".join(faults))
    _check_ports(ports, metrics_port, metrics_address)
    devices = found(gpus)
    settings = replace(settings, gpus=devices.choice)  # a restarted broker finds the same ones
    is_new = run_dir.prepare(where)
    lock = run_dir.lock(where)
    with ExitStack() as started:
        may_remove = is_new or run_dir.is_usual(where, name)
        started.callback(run_dir.leave, where, lock, may_remove=may_remove)
        door = front_door.opened(drain_seconds=drain_seconds, **ports)
        started.callback(door.close)
        metrics = metrics_listener.opened(metrics_port, metrics_address, ports["http_address"])
        started.callback(metrics.close)
        # A killed server left them; this one is told anew what to serve.
        for line in forget_state(where):
            raise CommandFailed(f"{line}; choose another --run-dir", ExitCode.RUN_DIR)
        cleanup(where, name)
        log = _started_log(log_file, settings.log_levels)
        started.callback(log.close)
        notices = log if log_file is None else _started_log(None, settings.log_levels)
        started.pop_all()  # from here on the end is the supervisor's

    def show(status: Status) -> ExitCode | None:
        failed = _show_settled(status, where, notices)
        if not failed or not exit_on_error:
            return None
        notices.show(LOAD_FAILED)
        return ExitCode.MODEL_FAILED

    for line in (devices.note, *_addresses(door, metrics)):
        if line:
            notices.show(line)

    def leave_ports() -> None:
        door.leave()
        metrics.close()

    plan = _plan(settings, door, metrics, has_gpu_metrics=allow_gpu_metrics)
    supervisor = Supervisor(plan, log, show, leave_ports)
    try:
        code = supervisor.run()
        for line in [*forget_state(where), *cleanup(where, name)]:
            log.event(line)
    finally:
        log.close()
        notices.close()
        door.close()
        metrics.close()
        run_dir.leave(where, lock, may_remove=may_remove)
    if supervisor.failure:
        raise CommandFailed(supervisor.failure, code)
    return code


def _check_ports(ports: dict[str, Any], metrics_port: str, metrics_address: str | None) -> None:
    """Two services on one port: the system's word for it would speak of another program."""
    http = ports["http_address"]
    chosen = (
        ("--http-port", http, ports["http_port"]),
        ("--grpc-port", ports["grpc_address"] or http, ports["grpc_port"]),
        ("--metrics-port", metrics_address or http, metrics_port),
    )
    known: dict[tuple[str, str], str] = {}
    for option, address, port in chosen:
        other = known.setdefault((address, port), option)
        if port not in ("0", front_door_options.OFF) and other != option:
            raise CommandFailed(
                f"{other} and {option} are both {port}; give each service a port of its own",
                ExitCode.PORT,
            )


def _addresses(door: FrontDoor, metrics: MetricsListener) -> list[str]:
    """One line for each port, for the person who started the server."""
    named = {
        "HTTP": door.url,
        "gRPC": door.grpc_target,
        "management": door.management_url,
        "metrics": metrics.url,
    }
    return [f"{name} on {address}" for name, address in named.items() if address]


def _plan(
    settings: Settings, door: FrontDoor, metrics: MetricsListener, *, has_gpu_metrics: bool
) -> Plan:
    return Plan(
        run_dir=settings.run_dir,
        broker_arguments=broker_arguments(settings),
        drain_seconds=settings.drain_seconds,
        grace_seconds=door.grace_seconds,
        gateways_count=door.gateways_count,
        gateways_wait=door.is_shared,
        gateway_arguments=door.arguments,
        gateway_descriptors=door.descriptors,
        metrics_descriptors=metrics.descriptors,
        metrics_arguments=[f"--gpu-metrics={int(has_gpu_metrics)}"],
    )


def broker_arguments(settings: Settings) -> list[str]:
    """The command line of the broker process."""
    arguments = [
        f"--run-dir={settings.run_dir}",
        f"--name={settings.name}",
        f"--control-mode={settings.control_mode}",
        f"--on-missing-gpu={settings.on_missing_gpu}",
        f"--gpus={settings.gpus}",
        f"--spares={settings.spare_workers_count}",
        f"--drain-seconds={settings.drain_seconds}",
        f"--scan-timeout-seconds={settings.scan_timeout_seconds}",
        f"--strict-readiness={int(settings.strict_readiness)}",
        f"--auto-complete={int(settings.auto_complete)}",
        f"--model-config-name={settings.config_name}",
        f"--allow-file-override={int(settings.allow_file_override)}",
        f"--log-levels={','.join(str(int(one)) for one in settings.log_levels[:4])}",
        f"--log-format={settings.log_levels.format}",
        f"--log-file={settings.log_file}",
        f"--id={settings.identity}",
        f"--user-requests-max={settings.user_requests_max}",
        f"--user-bytes-max={settings.user_bytes_max}",
    ]
    arguments += [f"--repository={path}" for path in settings.repositories]
    arguments += [f"--load-model={model}" for model in settings.load_models]
    return arguments


def _started_log(path: str | None, levels: LogLevels) -> LogWriter:
    log = LogWriter(path, levels)
    try:
        log.start()
    except OSError as error:
        raise CommandFailed(
            f"cannot write --log-file {path}: {error.strerror}", ExitCode.USAGE
        ) from error
    return log


def _show_settled(status: Status, where: str, notices: LogWriter) -> bool:
    """The table and the greeting; whether a model failed."""
    notices.show(models_table(status["models"], sys.stderr))
    notices.show(f"listening on {where} ({outcome(status)})")
    return bool(failed_models(status))
