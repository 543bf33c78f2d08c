"""What config.pbtxt says of a plan: that of its ONNX, made over for the TensorRT backend. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from naiad.cli.building.profiles import Profile, batch_sizes
from naiad.config.backend_parameters import BACKEND_PARAMETERS
from naiad.config.backends import BACKEND_PLATFORM
from naiad.config.model import Json, ModelConfig

BACKEND: Final = "tensorrt"
ONNX_SUFFIX: Final = ".onnx"
ONNX_PARAMETERS: Final = BACKEND_PARAMETERS["onnxruntime"]
"""Said to ONNX Runtime alone."""
ONNX_OPTIMIZATIONS: Final = ("graph", "execution_accelerators")


def plan_config(config: ModelConfig, filename: str, profiles: Sequence[Profile]) -> Json:
    """The JSON of the plan's config: everything of the ONNX's that still means something.

    `config` is completed, with all inputs and outputs. Its batches are no larger than the plan's.
    Instances move to a GPU; with several profiles each instance has all of them, so that the one
    that fits best can be chosen for each batch.
    """
    json = config.to_json()
    json["backend"] = BACKEND
    json["platform"] = BACKEND_PLATFORM[BACKEND]
    json["default_model_filename"] = filename
    if config.max_batch_size > 0 and profiles:
        greatest = max(most for _, most in batch_sizes(profiles))
        json["max_batch_size"] = min(config.max_batch_size, greatest)
        _limit_preferred(json)
    json["cc_model_filenames"] = {
        capability: name
        for capability, name in (json.get("cc_model_filenames") or {}).items()
        if not name.lower().endswith(ONNX_SUFFIX)
    }
    json["instance_group"] = _instance_groups(json, len(profiles))
    json["parameters"] = {
        key: value
        for key, value in (json.get("parameters") or {}).items()
        if key not in ONNX_PARAMETERS.known and not key.startswith(ONNX_PARAMETERS.prefix)
    }
    optimization = json.get("optimization")
    if optimization:
        json["optimization"] = {
            key: value for key, value in optimization.items() if key not in ONNX_OPTIMIZATIONS
        }
    return json


def _limit_preferred(json: Json) -> None:
    batching = json.get("dynamic_batching")
    if batching and batching.get("preferred_batch_size"):
        sizes = [
            size for size in batching["preferred_batch_size"] if size <= json["max_batch_size"]
        ]
        json["dynamic_batching"] = {**batching, "preferred_batch_size": sizes}


def _instance_groups(json: Json, profile_count: int) -> list[Json]:
    """Those that may be on a GPU, as they are; of the CPU's not even the count means anything."""
    given = json.get("instance_group") or []
    kinds = (None, "KIND_AUTO", "KIND_GPU")
    on_gpu = [{**group, "kind": "KIND_GPU"} for group in given if group.get("kind") in kinds]
    profile = [str(index) for index in range(profile_count)] if profile_count > 1 else []
    return [{**group, "profile": profile} for group in on_gpu or [{"kind": "KIND_GPU", "count": 1}]]
