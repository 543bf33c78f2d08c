"""What a sound config asks for that this release does not serve, by name and with the way out.

A refusal concerns one model; all others load. Refused is what would make an answer wrong, or what
the operator would believe to be in force; hints on speed that are merely not followed pass. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final, Literal

from naiad.config.backends import ENSEMBLE, ENTRY_POINT_GROUP, way_out
from naiad.config.faults import did_you_mean, listed
from naiad.config.model import InstanceGroup, ModelConfig, messages

OnMissingGpu = Literal["fail", "cpu"]

RELEASE: Final = "not in this release"
_HOST_POLICIES_MEANT_ANYWAY: Final = ("", "cpu", "model")


def refusals(
    config: ModelConfig,
    available_backends: Sequence[str],
    devices: Sequence[str],
    *,
    on_missing_gpu: OnMissingGpu = "fail",
) -> list[str]:
    """One sentence for each thing that keeps this model from being served; empty: it may load.

    `devices` are those of the server's workers: "cpu", "gpu:<uuid>". With `on_missing_gpu` "cpu" a
    KIND_GPU group on a machine without GPU is not refused; the caller then places it on the CPU.
    """
    gpus = [device for device in devices if device.startswith("gpu")]
    on_cpu_only = not gpus and on_missing_gpu == "cpu"
    is_served = config.backend in available_backends
    return [
        *_ensemble(config),
        *(() if is_served else _backend(config, available_backends, devices)),
        *(_devices(config, gpus, devices, on_missing_gpu) if is_served else ()),
        *_scheduling(config),
        *_tensors(config),
        *_instances(config),
        *_accelerators(config, on_cpu_only=on_cpu_only),
        *_surroundings(config),
    ]


def warnings(config: ModelConfig) -> list[str]:
    """What is read and has no effect here, though nothing is wrong with the answers."""
    found = []
    if config.raw.get("runtime"):
        found.append(f'runtime: "{config.raw["runtime"]}" is ignored: backends are Python packages')
    if config.raw.get("model_metrics"):
        found.append("model_metrics is ignored: histogram buckets are the server's own")
    if "" in config.parameters:
        found.append('parameters[""]: a parameter with an empty key has no effect')
    unfilled = [key for key, value in config.parameters.items() if "${" in value or "{{" in value]
    if unfilled:
        found.append(f"parameters with an unfilled template in their value: {listed(unfilled)}")
    return found


def _ensemble(config: ModelConfig) -> Iterator[str]:
    if config.platform == ENSEMBLE or "ensemble_scheduling" in config.raw:
        yield (
            f"ensemble_scheduling: ensembles are {RELEASE}; serve the composing models and call "
            "them one after another from the client, or do all steps in one python model (model.py)"
        )


def _backend(
    config: ModelConfig, available_backends: Sequence[str], devices: Sequence[str]
) -> Iterator[str]:
    if config.platform == ENSEMBLE or not config.backend:
        return
    known = way_out(config.backend, listed(devices))
    if known:
        yield known
        return
    hint = did_you_mean(config.backend, available_backends)
    yield (
        f'backend "{config.backend}" is not installed; installed backends: '
        f"{listed(sorted(available_backends))} (searched: entry points of the group "
        f'"{ENTRY_POINT_GROUP}" in the Python environment of the workers); '
        + (hint or "install the package that provides it, or write a python model (model.py)")
    )


def _devices(
    config: ModelConfig, gpus: Sequence[str], devices: Sequence[str], on_missing_gpu: OnMissingGpu
) -> Iterator[str]:
    for index, group in enumerate(config.instance_groups):
        if group.kind != "KIND_GPU":
            continue
        where = f'instance_group[{index}] "{group.name}"'
        if not gpus:
            if on_missing_gpu == "fail":
                yield (
                    f"{where}: KIND_GPU, but no GPU is visible (visible devices: "
                    f"{listed(devices)}); write kind: KIND_CPU or KIND_AUTO, or start the server "
                    "with --on-missing-gpu=cpu"
                )
            continue
        unknown = [gpu for gpu in group.gpus if gpu >= len(gpus)]
        if unknown:
            valid = listed([str(number) for number in range(len(gpus))])
            yield f"{where}: no GPU {listed([str(n) for n in unknown])}; valid ids are {valid}"


def _scheduling(config: ModelConfig) -> Iterator[str]:
    raw = config.raw
    if "sequence_batching" in raw:
        batching = raw["sequence_batching"]
        yield (
            f"sequence_batching: stateful models are {RELEASE}; make the state an ordinary output "
            "that the client sends back as an input"
        )
        if batching.get("state"):
            yield f"sequence_batching.state: implicit state is {RELEASE}"
        if batching.get("iterative_sequence"):
            yield f"sequence_batching.iterative_sequence: rescheduled requests are {RELEASE}"
    if config.decoupled:
        yield (
            f"model_transaction_policy.decoupled: several responses to one request are {RELEASE}; "
            "answer each request once and remove model_transaction_policy"
        )
    if raw.get("response_cache", {}).get("enable"):
        yield f"response_cache: caching of responses is {RELEASE}; remove response_cache"
    if raw.get("model_warmup"):
        yield (
            f"model_warmup: configured warm-up requests are {RELEASE}; remove model_warmup "
            "(a backend warms itself up, a python model can do it in initialize)"
        )


def _tensors(config: ModelConfig) -> Iterator[str]:
    for key in ("batch_input", "batch_output"):
        if config.raw.get(key):
            yield f"{key}: ragged batches are {RELEASE}; pad in the client and remove {key}"
    for index, tensor in enumerate(config.inputs):
        if tensor.allow_ragged_batch:
            yield (
                f"input[{index}].allow_ragged_batch: ragged batches are {RELEASE}; remove it, "
                "requests of equal shape are batched"
            )
    sides = (("input", config.inputs), ("output", config.outputs))
    for side, tensors in sides:
        for index, tensor in enumerate(tensors):
            if tensor.is_shape_tensor:
                yield f"{side}[{index}].is_shape_tensor: shape tensors are {RELEASE}"
            if tensor.is_non_linear_format_io:
                yield f"{side}[{index}].is_non_linear_format_io: such formats are {RELEASE}"


def _instances(config: ModelConfig) -> Iterator[str]:
    groups = messages(config.raw, "instance_group")
    for index, (group, raw) in enumerate(zip(config.instance_groups, groups, strict=True)):
        where = f"instance_group[{index}]"
        if group.passive:
            yield f"{where}.passive: instances that serve nothing are {RELEASE}; remove the group"
        if raw.get("secondary_devices"):
            yield f"{where}.secondary_devices: NVDLA cores are {RELEASE}; remove them"
        if raw.get("rate_limiter", {}).get("resources"):
            yield f"{where}.rate_limiter.resources: rate limiting is {RELEASE}; remove rate_limiter"
        if not _is_default_host_policy(group):
            yield (
                f'{where}.host_policy "{group.host_policy}": host policies are {RELEASE}; remove '
                "it, and set the CPU affinity of the server itself"
            )


def _is_default_host_policy(group: InstanceGroup) -> bool:
    return group.host_policy in _HOST_POLICIES_MEANT_ANYWAY or group.host_policy in {
        f"gpu_{gpu}" for gpu in group.gpus
    }


def _accelerators(config: ModelConfig, *, on_cpu_only: bool) -> Iterator[str]:
    """An accelerator of a device that no instance is on would have no effect and passes."""
    optimization = config.raw.get("optimization", {})
    accelerators: dict[str, Any] = optimization.get("execution_accelerators", {})
    kinds = {group.kind for group in config.instance_groups}
    on_gpu = not on_cpu_only and "KIND_GPU" in kinds
    on_cpu = on_cpu_only or "KIND_CPU" in kinds
    for key, is_met in (
        ("gpu_execution_accelerator", on_gpu),
        ("cpu_execution_accelerator", on_cpu),
    ):
        names = [item.get("name", "") for item in messages(accelerators, key)]
        if names and is_met:
            yield (
                f"optimization.execution_accelerators.{key} {listed(names)}: accelerators are "
                f"{RELEASE}; remove them to run with the backend's own execution"
            )


def _surroundings(config: ModelConfig) -> Iterator[str]:
    raw = config.raw
    if "EXECUTION_ENV_PATH" in config.parameters:
        yield (
            f'parameters["EXECUTION_ENV_PATH"]: an environment per model is {RELEASE}; install '
            "the packages where the server runs and remove the parameter"
        )
    if "TRITON_BATCH_STRATEGY_PATH" in config.parameters:
        yield (
            f'parameters["TRITON_BATCH_STRATEGY_PATH"]: custom batching libraries are {RELEASE}; '
            "remove the parameter"
        )
    agents = messages(raw.get("model_repository_agents", {}), "agents")
    if agents:
        names = [agent.get("name", "") for agent in agents]
        yield (
            f"model_repository_agents {listed(names)}: repository agents are {RELEASE}; do their "
            "work before the server starts and remove model_repository_agents"
        )
    libraries = raw.get("model_operations", {}).get("op_library_filename", [])
    if libraries:
        yield (
            f"model_operations.op_library_filename {listed(libraries)}: custom operator libraries "
            f"are {RELEASE}; remove model_operations"
        )
