"""Fill in what the operator left out, as Triton does, so that a config query shows the truth.

`complete` needs the names of files (whoever scans gives them), `normalise` only the config. Both
take JSON and return new JSON; neither looks at a disk. Pure.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Final, NamedTuple

from naiad.config.backends import (
    BACKEND_PLATFORM,
    DEFAULT_FILENAME,
    ENSEMBLE,
    GPU_ONLY_BACKENDS,
    KNOWN_BACKENDS,
    PLATFORM_BACKEND,
    WELL_KNOWN_FILES,
    filename_backend,
    found_backend,
)
from naiad.config.faults import Fault, did_you_mean, listed
from naiad.config.model import Json
from naiad.config.names import printable
from naiad.config.surroundings import CPU_ONLY, Surroundings

SEQUENCE_IDLE_US: Final = 1_000_000
ONNXRUNTIME_CPU_COUNT: Final = 2
"""Triton's default count of a CPU instance group of an ONNX model that gives none."""


class Completed(NamedTuple):
    """The config with name, platform, backend and file name; faults where they cannot be known."""

    json: Json
    faults: list[Fault]
    warnings: list[str]


def complete(json: Json, *, directory_name: str, files: Collection[str]) -> Completed:
    """Fill in name, backend, platform and default_model_filename.

    `files` are the entries of the first version directory, `directory_name` is the model's.
    """
    config = dict(json)
    faults: list[Fault] = []
    warnings: list[str] = []
    if not config.get("name"):
        config["name"] = directory_name
    elif config["name"] != directory_name:
        faults.append(
            Fault(
                "name",
                f"unexpected directory name {printable(directory_name)} for model "
                f"{printable(config['name'])}, "
                "directory name must equal model name",
                "rename one of them, or leave `name` out",
            )
        )
    if config.get("platform") == ENSEMBLE:
        return Completed(config, faults, warnings)
    found_file = ""
    if not config.get("backend"):
        config["backend"], found_file = _backend(config, directory_name, files, faults, warnings)
    backend = config["backend"]
    if backend and not config.get("platform"):
        config["platform"] = BACKEND_PLATFORM.get(backend, "")
    if backend and not config.get("default_model_filename"):
        config["default_model_filename"] = found_file or _default_filename(backend, files)
    return Completed(config, faults, warnings)


def _backend(
    config: Json,
    directory_name: str,
    files: Collection[str],
    faults: list[Fault],
    warnings: list[str],
) -> tuple[str, str]:
    """(backend, well-known file that told it) from platform, file name or files."""
    platform = config.get("platform", "")
    if platform in PLATFORM_BACKEND:
        return PLATFORM_BACKEND[platform], ""
    if platform in KNOWN_BACKENDS:
        warnings.append(f'platform: "{platform}" is a backend\'s name; taken as backend')
        config["platform"] = ""
        return platform, ""
    if platform:
        known = sorted([*PLATFORM_BACKEND, ENSEMBLE])
        hint = did_you_mean(platform, known) or f"known platforms: {listed(known)}"
        faults.append(
            Fault("platform", f'unknown platform "{platform}"', f'{hint}; or name a backend: "..."')
        )
        return "", ""
    backend = filename_backend(config.get("default_model_filename", ""))
    if backend:
        return backend, ""
    backend, found_file = found_backend(files, directory_name)
    if not backend:
        faults.append(_no_backend(config, files))
    return backend, found_file


def _no_backend(config: Json, files: Collection[str]) -> Fault:
    looked_for = ", ".join(filename for filename, _ in WELL_KNOWN_FILES)
    found = listed([printable(name) for name in sorted(files)])
    remedy = 'write backend: "onnxruntime" (or "python", ...)'
    if "ensemble_scheduling" in config:
        remedy = 'ensemble_scheduling is set, so write platform: "ensemble"'
    return Fault(
        "backend",
        "neither platform nor backend is set, and none of the well-known model files is in the "
        f"version directory (looked for {looked_for}; found {found})",
        remedy,
    )


def _default_filename(backend: str, files: Collection[str]) -> str:
    if backend == "tensorflow":
        return "model.graphdef" if "model.graphdef" in files else "model.savedmodel"
    if backend == "pytorch" and "model.pt" not in files and "model.pt2" in files:
        return "model.pt2"
    return DEFAULT_FILENAME.get(backend, "")


def normalise(json: Json, surroundings: Surroundings = CPU_ONLY) -> Json:
    """The config with Triton's defaults for everything that was left out; safe to run twice.

    The GPUs of the surroundings decide KIND_AUTO, and fill `gpus` of a KIND_GPU group that lists
    none.
    """
    config = dict(json)
    is_ensemble = config.get("platform") == ENSEMBLE
    if not config.get("version_policy"):
        config["version_policy"] = {"latest": {"num_versions": 1}}
    if not is_ensemble:
        config["optimization"] = _optimization(config.get("optimization"))
        config["instance_group"] = _instance_groups(config, surroundings)
    return normalise_scheduling(config)


def normalise_scheduling(json: Json) -> Json:
    """The part of `normalise` that is done again when a backend has completed the config."""
    config = dict(json)
    if "dynamic_batching" in config:
        config["dynamic_batching"] = _preferred(config, config["dynamic_batching"])
    if "sequence_batching" in config:
        config["sequence_batching"] = _sequence_batching(config)
    return config


def _optimization(given: Json | None) -> Json:
    optimization: Json = {
        "priority": "PRIORITY_DEFAULT",
        "gather_kernel_buffer_threshold": 0,
        "eager_batching": False,
        **(given or {}),
    }
    for buffer in ("input_pinned_memory", "output_pinned_memory"):
        optimization.setdefault(buffer, {"enable": True})
    return optimization


def _preferred(config: Json, scheduler: Json) -> Json:
    max_batch_size = config.get("max_batch_size", 0)
    if scheduler.get("preferred_batch_size") or max_batch_size <= 0:
        return scheduler
    return {**scheduler, "preferred_batch_size": [max_batch_size]}


def _sequence_batching(config: Json) -> Json:
    batching = dict(config["sequence_batching"])
    if not batching.get("max_sequence_idle_microseconds"):
        batching["max_sequence_idle_microseconds"] = SEQUENCE_IDLE_US
    if "oldest" in batching:
        batching["oldest"] = _preferred(config, batching["oldest"])
    elif "direct" not in batching:
        batching["direct"] = {"max_queue_delay_microseconds": 0, "minimum_slot_utilization": 0.0}
    return batching


def _instance_groups(config: Json, surroundings: Surroundings) -> list[Json]:
    name = config.get("name", "")
    given = config.get("instance_group") or [{"name": name, "count": 1}]
    return [
        _instance_group(group, f"{name}_{index}", config.get("backend", ""), surroundings)
        for index, group in enumerate(given)
    ]


def _instance_group(
    given: Json, default_name: str, backend: str, surroundings: Surroundings
) -> Json:
    gpu_count = surroundings.gpu_count
    group: dict[str, Any] = {
        "name": "",
        "kind": "KIND_AUTO",
        "count": 0,
        "gpus": [],
        "secondary_devices": [],
        "profile": [],
        "passive": False,
        "host_policy": "",
        **given,
    }
    group["name"] = group["name"] or default_name
    if backend in GPU_ONLY_BACKENDS:
        if group["kind"] == "KIND_AUTO":
            group["kind"] = "KIND_GPU"
    elif group["kind"] == "KIND_AUTO":
        on_gpu = (
            gpu_count > 0
            and backend not in surroundings.cpu_backends
            and all(gpu < gpu_count for gpu in group["gpus"])
        )
        group["kind"] = "KIND_GPU" if on_gpu else "KIND_CPU"
        if not on_gpu:
            group["gpus"] = []
    elif group["kind"] == "KIND_GPU" and not gpu_count and surroundings.on_missing_gpu == "cpu":
        group["kind"], group["gpus"] = "KIND_CPU", []
    if group["kind"] == "KIND_GPU" and not group["gpus"]:
        group["gpus"] = list(range(gpu_count))
    if group["count"] == 0:
        on_cpu = group["kind"] == "KIND_CPU"
        group["count"] = ONNXRUNTIME_CPU_COUNT if backend == "onnxruntime" and on_cpu else 1
    return group
