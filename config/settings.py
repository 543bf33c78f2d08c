"""What an operator may set for a whole server: options of `naiad serve` and `naiad broker`.

Values only, each with a default and its unit in its name; reading a command line or an environment
is the caller's work. Settings of one model stand in config.parameters. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Final

from naiad.config.gpus import AUTO, GpuFault, chosen_uuids
from naiad.config.log_levels import INITIAL
from naiad.config.names import NAME_BYTES_MAX, model_name_fault, printable
from naiad.config.surroundings import OnMissingGpu
from naiad.protocol.endpoints import path_fault
from naiad.protocol.messages import LogLevels

DEFAULT_NAME: Final = "naiad"
RUN_DIR_VARIABLE: Final = "NAIAD_RUN_DIR"
CONTROL_MODES: Final = ("none", "explicit")
ALL_MODELS: Final = "*"
SCAN_TIMEOUT_SECONDS: Final = 60.0
SECONDS_MAX: Final = 365 * 86_400.0
"""Of every time that can be set: a year. Beyond, clocks in nanoseconds run out of bits."""
SPARES_MAX: Final = 16
MIB: Final = 2**20
USER_REQUESTS_MAX: Final = 2048
USER_BYTES_MAX: Final = 256 * MIB


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """One server. `faults` says what does not go together; nothing is checked before."""

    run_dir: str
    name: str = DEFAULT_NAME
    repositories: tuple[str, ...] = ()
    control_mode: str = "none"
    """none: every model is loaded at start; explicit: those asked for."""
    load_models: tuple[str, ...] = ()
    """With explicit control; "*" alone means all."""
    on_missing_gpu: OnMissingGpu = "fail"
    gpus: str = AUTO
    """Which GPUs are used: auto, all, none, or UUIDs with commas between (config.gpus)."""
    identity: str = ""
    """The server's name in its metadata (Triton's --id); without one, `name`."""
    strict_readiness: bool = True
    """Ready only when every model is; else when the models of the start have settled."""
    auto_complete: bool = True
    """What a configuration leaves out may be filled in from the model."""
    config_name: str = ""
    """Of the configuration in each model's folder `configs` that is preferred to config.pbtxt."""
    allow_file_override: bool = False
    """A load may bring the files of its model along."""
    log_levels: LogLevels = INITIAL
    log_file: str = ""
    """Where the supervisor writes the log; for those who ask, nothing here writes it."""

    spare_workers_count: int = 1
    """Warm empty workers per device, so that a replacement is there at once."""
    scan_timeout_seconds: float = SCAN_TIMEOUT_SECONDS
    """For one look at the model repository, of all models or of the one to be loaded."""
    drain_seconds: float = 30.0
    session_absence_seconds: float = 2.0
    """A lost client's queued work is cancelled after this time. After a restart of the broker,
    workers have as long to come back."""
    heartbeat_interval_ms: int = 200
    heartbeat_timeout_ms: int = 400

    inline_bytes_max: int = 64 * MIB
    sessions_max: int = 4096
    session_requests_max: int = 4096
    session_bytes_max: int = 512 * MIB
    session_outbox_bytes_max: int = 256 * MIB
    session_regions_max: int = 1024
    user_requests_max: int = USER_REQUESTS_MAX
    user_bytes_max: int = USER_BYTES_MAX
    """Of one user (accounting key) of a session, queued and executing, bytes of all tensors
    wherever they are; 0: no limit."""

    def faults(self) -> list[str]:
        """Everything wrong with these settings, one sentence each."""
        return [*_names(self), *_control(self), *_numbers(self)]


def default_run_dir(
    name: str, *, environment: Mapping[str, str], uid: int, temporary_dir: str = "/tmp"
) -> str:
    """$NAIAD_RUN_DIR, else a directory of this user in $XDG_RUNTIME_DIR or /tmp."""
    chosen = environment.get(RUN_DIR_VARIABLE)
    if chosen:
        return chosen
    base = environment.get("XDG_RUNTIME_DIR") or temporary_dir
    return f"{base}/naiad-{uid}-{name}"


def seconds(text: str) -> float:
    """A time on a command line, 0 to SECONDS_MAX; ValueError for any other text."""
    value = float(text)
    if not 0 <= value <= SECONDS_MAX:  # also not a number
        raise ValueError(f"expected 0 to {SECONDS_MAX:.0f} seconds, got {text!r:.80}")
    return value


def server_name_fault(name: str) -> str | None:
    """Why a server cannot be called this, or None: the name is part of the names of files."""
    if not name.strip():
        return "the server's name is empty; give it one with --name, or leave the option out"
    if model_name_fault(name):
        return (
            f"a server cannot be called {printable(name)}; use letters, digits, - and _, at most "
            f"{NAME_BYTES_MAX} bytes"
        )
    return None


def config_name_fault(name: str) -> str | None:
    """Why no configs/NAME.pbtxt can be of this name, or None."""
    if len(name) > NAME_BYTES_MAX or "/" in name or " " in name or not name.isprintable():
        return f"--model-config-name: expected a name without / and blanks, got {printable(name)}"
    if name.endswith(".pbtxt"):
        return f"--model-config-name: expected {name.removesuffix('.pbtxt')}, without .pbtxt"
    return None


def _names(settings: Settings) -> Iterator[str]:
    name_fault = server_name_fault(settings.name)
    if name_fault:
        yield name_fault
    fault = config_name_fault(settings.config_name)
    if fault:
        yield fault
    if len(settings.identity) > NAME_BYTES_MAX or not settings.identity.isprintable():
        yield f"--id: expected at most {NAME_BYTES_MAX} printable characters"
    fault = path_fault(settings.run_dir)
    if fault:
        yield fault


def _control(settings: Settings) -> Iterator[str]:
    mode = settings.control_mode
    if mode == "poll":
        yield (
            'control mode "poll" is not in this release; use "none", or "explicit" and '
            "`naiad load MODEL` when a model has changed"
        )
    elif mode not in CONTROL_MODES:
        yield f"control mode {printable(mode)} is unknown; use one of {', '.join(CONTROL_MODES)}"
    if settings.load_models and mode == "none":
        yield 'models to load are named, but control mode "none" loads every model; use "explicit"'
    if ALL_MODELS in settings.load_models and len(settings.load_models) > 1:
        yield f'"{ALL_MODELS}" loads every model; name it alone'
    for model in settings.load_models:
        fault = None if model == ALL_MODELS else model_name_fault(model)
        if fault:
            yield fault
    try:
        chosen_uuids(settings.gpus)
    except GpuFault as wrong:
        yield str(wrong)
    if settings.on_missing_gpu not in ("fail", "cpu"):
        yield f"on_missing_gpu {printable(settings.on_missing_gpu)} is unknown; use fail or cpu"


def _numbers(settings: Settings) -> Iterator[str]:
    may_be_zero = {
        "spare_workers_count", "drain_seconds", "user_requests_max", "user_bytes_max"
    }  # fmt: skip
    for row in fields(settings):
        value = getattr(settings, row.name)
        if isinstance(value, bool) or not isinstance(value, int | float):
            continue
        if value < 0 or (value == 0 and row.name not in may_be_zero):
            least = "0 or more" if row.name in may_be_zero else "more than 0"
            yield f"{row.name}: expected {least}, got {value}"
        elif row.name.endswith("_seconds") and not value <= SECONDS_MAX:  # also not a number
            yield f"{row.name}: expected at most {SECONDS_MAX:.0f} (a year), got {value}"
    if settings.spare_workers_count > SPARES_MAX:
        yield f"spare_workers_count: expected at most {SPARES_MAX}"
    if settings.heartbeat_timeout_ms <= settings.heartbeat_interval_ms:
        yield (
            f"heartbeat_timeout_ms ({settings.heartbeat_timeout_ms}) must be longer than "
            f"heartbeat_interval_ms ({settings.heartbeat_interval_ms})"
        )
