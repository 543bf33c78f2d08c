"""What a sound config asks for that this release does not serve, by name and with the way out.

A refusal concerns one model; all others load. Refused is what would make an answer wrong, or what
the operator would believe to be in force; hints on speed that are merely not followed pass. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from naiad.config.backend_parameters import parameter_warnings
from naiad.config.backends import (
    ENSEMBLE,
    ENTRY_POINT_GROUP,
    GPU_ONLY_BACKENDS,
    NOT_IN_THIS_RELEASE,
    SHAPE_TENSOR_BACKENDS,
    way_out,
)
from naiad.config.cuda_graphs import graph_warnings
from naiad.config.execution_accelerators import accelerator_refusals
from naiad.config.faults import RELEASE, did_you_mean, listed
from naiad.config.model import InstanceGroup, ModelConfig, TensorConfig, messages
from naiad.config.surroundings import gpu_devices

GPUS_HIDDEN: Final = (
    "if `nvidia-smi -L` lists one here, look at --gpus and CUDA_VISIBLE_DEVICES (a container needs "
    "`docker run --gpus all`)"
)
"""Why a server may not see what is there."""
_HOST_POLICIES_MEANT_ANYWAY: Final = ("", "cpu", "model")


def refusals(
    config: ModelConfig, available_backends: Sequence[str] | None, devices: Sequence[str]
) -> list[str]:
    """One sentence for each thing that keeps this model from being served; empty: it may load.

    The config is normalised. `available_backends` are those the workers can import; None while
    nobody knows, when only backends that this release certainly lacks are refused. `devices` are
    those of the workers: "cpu", "gpu:<uuid>".
    """
    is_served = config.backend in (available_backends or ())
    return [
        *_ensemble(config),
        *(() if is_served else _backend(config, available_backends, devices)),
        *(_devices(config, devices) if is_served or available_backends is None else ()),
        *request_refusals(config),
        *_instances(config),
        *accelerator_refusals(config),
        *_surroundings(config),
    ]


def request_refusals(config: ModelConfig) -> list[str]:
    """Those of how requests look and are scheduled, which a backend may complete."""
    return [*_scheduling(config), *_tensors(config)]


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
    return [*found, *parameter_warnings(config), *graph_warnings(config)]


def _ensemble(config: ModelConfig) -> Iterator[str]:
    if config.platform == ENSEMBLE or "ensemble_scheduling" in config.raw:
        yield (
            f"ensemble_scheduling: ensembles are {RELEASE}; serve the composing models and call "
            "them one after another from the client, or do all steps in one python model (model.py)"
        )


def _backend(
    config: ModelConfig, available_backends: Sequence[str] | None, devices: Sequence[str]
) -> Iterator[str]:
    if config.platform == ENSEMBLE or not config.backend:
        return
    if available_backends is None and config.backend not in NOT_IN_THIS_RELEASE:
        return
    known = way_out(config.backend, listed(devices))
    if known:
        yield known
        return
    installed = sorted(available_backends or ())
    hint = did_you_mean(config.backend, installed)
    yield (
        f'backend "{config.backend}" is not installed; installed backends: {listed(installed)} '
        f'(searched: entry points of the group "{ENTRY_POINT_GROUP}" in the Python environment of '
        "the workers); "
        + (hint or "install the package that provides it, or write a python model (model.py)")
    )


def _devices(config: ModelConfig, devices: Sequence[str]) -> Iterator[str]:
    gpus = gpu_devices(devices)
    for index, group in enumerate(config.instance_groups):
        if group.kind != "KIND_GPU":
            continue
        where = f'instance_group[{index}] "{group.name}"'
        unknown = [str(gpu) for gpu in group.gpus if gpu >= len(gpus)]
        if not gpus:
            yield (
                f"{where}: KIND_GPU, but no GPU is visible (visible devices: {listed(devices)}); "
                f"{_without_gpu(config.backend)}"
            )
        elif unknown:
            valid = listed([f"{number} ({device})" for number, device in enumerate(gpus)])
            yield f"{where}: no GPU {listed(unknown)}; valid ids are {valid}"


def _without_gpu(backend: str) -> str:
    """The way out where there is no GPU at all."""
    if backend in GPU_ONLY_BACKENDS:
        return (
            f'backend "{backend}" runs on GPUs only: {GPUS_HIDDEN}; or serve the ONNX file the '
            'engine was built from with backend: "onnxruntime"'
        )
    return (
        f"{GPUS_HIDDEN}; or write kind: KIND_CPU or KIND_AUTO, or serve it with "
        "--on-missing-gpu=cpu"
    )


def _scheduling(config: ModelConfig) -> Iterator[str]:
    raw = config.raw
    if "sequence_batching" in raw:
        sequences = raw["sequence_batching"]
        yield (
            f"sequence_batching: stateful models are {RELEASE}; make the state an ordinary output "
            "that the client sends back as an input"
        )
        if sequences.get("state"):
            yield f"sequence_batching.state: implicit state is {RELEASE}"
        if sequences.get("iterative_sequence"):
            yield f"sequence_batching.iterative_sequence: rescheduled requests are {RELEASE}"
    batching = config.dynamic_batching
    if batching is not None and batching.preserve_ordering:
        count = sum(group.count for group in config.instance_groups)
        if count > 1:
            yield (
                f"dynamic_batching.preserve_ordering with {count} instances is {RELEASE}; use one "
                "instance, whose answers are in order, or remove preserve_ordering"
            )
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
    batches = config.max_batch_size > 0
    if batches and config.inputs and all(tensor.is_shape_tensor for tensor in config.inputs):
        yield (
            "input: all are shape tensors, and one of the others must tell the size of a batch; "
            "set max_batch_size: 0 and give whole shapes"
        )
    sides = (("input", config.inputs), ("output", config.outputs))
    for side, tensors in sides:
        for index, tensor in enumerate(tensors):
            if tensor.is_shape_tensor and config.backend not in SHAPE_TENSOR_BACKENDS:
                yield f"{side}[{index}].is_shape_tensor: shape tensors are {RELEASE}"
            elif tensor.is_shape_tensor and batches and not _is_list(tensor):
                yield (
                    f"{side}[{index}].is_shape_tensor: expected one dim and no reshape, as "
                    "max_batch_size is not 0: the number of values without the batch, which is "
                    f"the first; got dims {list(tensor.dims)}"
                )
            if tensor.is_non_linear_format_io:
                yield f"{side}[{index}].is_non_linear_format_io: such formats are {RELEASE}"


def _is_list(tensor: TensorConfig) -> bool:
    return len(tensor.dims) == 1 and tensor.reshape is None


def _instances(config: ModelConfig) -> Iterator[str]:
    groups = messages(config.raw, "instance_group")
    for index, (group, raw) in enumerate(zip(config.instance_groups, groups, strict=True)):
        where = f"instance_group[{index}]"
        if group.passive:
            yield f"{where}.passive: instances that serve nothing are {RELEASE}; remove the group"
        if group.kind == "KIND_MODEL" and config.naiad.gpu_memory_limit_mb:
            yield (
                f"{where}: with KIND_MODEL the model chooses its GPUs itself, and nothing holds it "
                "to naiad.gpu_memory_limit_mb; write kind: KIND_GPU, or remove the parameter"
            )
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
