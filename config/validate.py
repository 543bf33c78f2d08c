"""Everything wrong with a config that parsed, all at once, each with the field's path and a remedy.

The rules are Triton's. What is merely not served yet is not a fault: see config.refusals. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from naiad.config.backend_parameters import parameter_faults
from naiad.config.backends import ENSEMBLE, GPU_ONLY_BACKENDS, PLATFORM_BACKEND, TELLS_NOTHING
from naiad.config.cuda_graphs import graph_spec_faults
from naiad.config.faults import Fault
from naiad.config.model import DynamicBatching, InstanceGroup, ModelConfig, messages
from naiad.config.names import inner_path_fault, model_name_fault
from naiad.config.parameters import read_parameters
from naiad.config.tensor_faults import tensor_faults

SCHEDULERS: Final = ("dynamic_batching", "sequence_batching", "ensemble_scheduling")
"""At most one of them is set."""
INSTANCES_MAX: Final = 4096
"""Of one version of a model, all groups together."""


def validate(config: ModelConfig, *, is_complete: bool = False) -> list[Fault]:
    """All faults of a config, in the order of the file.

    Until a backend has completed it (`is_complete`) an input or output may leave out data_type and
    dims: the backend fills them in from the model itself. A backend that never does (identity)
    needs them at once.
    """
    is_complete = is_complete or config.backend in TELLS_NOTHING
    return [
        *_model(config),
        *tensor_faults(config, "input", config.inputs, is_complete),
        *tensor_faults(config, "output", config.outputs, is_complete),
        *_scheduling(config),
        *_instance_groups(config),
        *read_parameters(config.parameters)[1],
        *parameter_faults(config),
        *graph_spec_faults(config, is_complete=is_complete),
        *_metrics(config),
    ]


def _model(config: ModelConfig) -> Iterator[Fault]:
    name_fault = model_name_fault(config.name)
    if name_fault:
        yield Fault("name", name_fault)
    expected = PLATFORM_BACKEND.get(config.platform)
    if expected and config.backend and config.backend != expected:
        yield Fault(
            "backend",
            f'platform "{config.platform}" goes with backend "{expected}", not "{config.backend}"',
            "keep one of the two",
        )
    if config.platform == ENSEMBLE and config.backend:
        yield Fault(
            "backend", f'an ensemble has no backend, got "{config.backend}"', "leave it out"
        )
    if config.max_batch_size < 0:
        yield Fault(
            "max_batch_size",
            f"expected 0 or more, got {config.max_batch_size}",
            "write 0 for a model that does not batch",
        )
    files = {"default_model_filename": config.default_model_filename}
    files |= {
        f'cc_model_filenames["{key}"]': v for key, v in config.cc_model_filenames.items() if v
    }
    for where, filename in files.items():
        fault = inner_path_fault(filename) if filename else None
        if fault:
            yield Fault(where, f'file name "{filename}" {fault}')
    if config.backend == "identity" and len(config.inputs) < len(config.outputs):
        yield Fault(
            "output",
            f"identity answers with its inputs: expected at most {len(config.inputs)} outputs, "
            f"got {len(config.outputs)}",
            "give it an input for each output",
        )
    if config.version_policy.kind == "specific" and not config.version_policy.versions:
        yield Fault(
            "version_policy.specific.versions", "no version listed", "list at least one version"
        )


def _scheduling(config: ModelConfig) -> Iterator[Fault]:
    raw = config.raw
    choices = [key for key in SCHEDULERS if key in raw]
    for extra in choices[1:]:
        yield Fault(extra, f"{choices[0]} is set as well", "keep one of them")
    if config.dynamic_batching is not None:
        yield from _dynamic_batching(config.dynamic_batching, config.max_batch_size)
    if raw.get("response_cache", {}).get("enable"):
        if "sequence_batching" in raw:
            yield Fault("response_cache", "cannot be used with sequence_batching", "remove one")
        if config.decoupled:
            yield Fault("response_cache", "cannot be used with a decoupled model", "remove one")
    if "ensemble_scheduling" in raw:
        if config.platform != ENSEMBLE and (config.platform or config.backend):
            yield Fault("platform", "ensemble_scheduling is set", 'write platform: "ensemble"')
        yield from _ensemble_names(config)
    elif config.platform == ENSEMBLE:
        yield Fault(
            "ensemble_scheduling", "an ensemble without steps", "write ensemble_scheduling { ... }"
        )


def _dynamic_batching(batching: DynamicBatching, max_batch_size: int) -> Iterator[Fault]:
    where = "dynamic_batching"
    for index, size in enumerate(batching.preferred_batch_size):
        if not 0 < size <= max_batch_size:
            yield Fault(
                f"{where}.preferred_batch_size[{index}]",
                f"expected 1 to max_batch_size ({max_batch_size}), got {size}",
                "remove it, or raise max_batch_size",
            )
    levels = batching.priority_levels
    if levels > 0:
        if not 1 <= batching.default_priority_level <= levels:
            yield Fault(
                f"{where}.default_priority_level",
                f"expected 1 to priority_levels ({levels}), got {batching.default_priority_level}",
                f"write default_priority_level: {(levels + 1) // 2}",
            )
        for level in batching.priority_queue_policy:
            if not 1 <= level <= levels:
                yield Fault(
                    f"{where}.priority_queue_policy[{level}]",
                    f"expected a level from 1 to priority_levels ({levels})",
                    "remove it, or raise priority_levels",
                )
    if batching.preserve_ordering:
        yield from _preserve_ordering(batching)


def _preserve_ordering(batching: DynamicBatching) -> Iterator[Fault]:
    where = "dynamic_batching.preserve_ordering"
    if batching.priority_levels > 1:
        yield Fault(
            where,
            f"cannot be kept with priority_levels {batching.priority_levels}",
            "remove one of the two",
        )
    policies = (batching.default_queue_policy, *batching.priority_queue_policy.values())
    if any(p.timeout_action == "DELAY" and p.default_timeout_microseconds for p in policies):
        yield Fault(
            where,
            "cannot be kept with timeout_action DELAY and a default timeout",
            "use REJECT, or remove preserve_ordering",
        )


def _ensemble_names(config: ModelConfig) -> Iterator[Fault]:
    """Names of composing models: a path there would reach outside the repository."""
    for index, step in enumerate(messages(config.raw["ensemble_scheduling"], "step")):
        fault = model_name_fault(step.get("model_name", ""))
        if fault:
            yield Fault(f"ensemble_scheduling.step[{index}].model_name", fault)


def _instance_groups(config: ModelConfig) -> Iterator[Fault]:
    for index, group in enumerate(config.instance_groups):
        where = f"instance_group[{index}]"
        if group.count < 0:
            yield Fault(
                f"{where}.count", f"expected 1 or more, got {group.count}", "write count: 1"
            )
        if group.kind in ("KIND_CPU", "KIND_MODEL") and group.gpus:
            yield Fault(
                f"{where}.gpus",
                f"{group.kind} cannot list gpus, got {list(group.gpus)}",
                "remove gpus, or write kind: KIND_GPU",
            )
        if any(gpu < 0 for gpu in group.gpus):
            yield Fault(
                f"{where}.gpus", f"expected GPU numbers from 0, got {list(group.gpus)}", "fix them"
            )
        if group.kind not in ("KIND_AUTO", "KIND_GPU") and config.backend in GPU_ONLY_BACKENDS:
            yield Fault(
                f"{where}.kind",
                f'backend "{config.backend}" runs on GPUs only: expected KIND_GPU, or KIND_AUTO, '
                f"got {group.kind}",
                "write kind: KIND_GPU, or leave it out",
            )
        yield from _profiles(where, group, config.backend)
    total = sum(max(1, group.count) * max(1, len(group.gpus)) for group in config.instance_groups)
    if total > INSTANCES_MAX:
        yield Fault(
            "instance_group",
            f"expected at most {INSTANCES_MAX} instances, got {total}",
            "write smaller counts: each instance is a process",
        )


def _profiles(where: str, group: InstanceGroup, backend: str) -> Iterator[Fault]:
    if group.profile and backend != "tensorrt":
        yield Fault(
            f"{where}.profile", f'is for TensorRT only, the backend is "{backend}"', "remove it"
        )
    for index, profile in enumerate(group.profile):
        if not (profile.isascii() and profile.isdecimal()):
            yield Fault(
                f"{where}.profile[{index}]",
                f'expected the number of an optimization profile, got "{profile}"',
                'write profile: "0"',
            )


def _metrics(config: ModelConfig) -> Iterator[Fault]:
    controls = messages(config.raw.get("model_metrics", {}), "metric_control")
    for index, control in enumerate(controls):
        where = f"model_metrics.metric_control[{index}]"
        if not control.get("metric_identifier", {}).get("family"):
            yield Fault(f"{where}.metric_identifier.family", "is empty", "name a metric family")
        if not control.get("histogram_options", {}).get("buckets"):
            yield Fault(f"{where}.histogram_options.buckets", "is empty", "list the buckets")
