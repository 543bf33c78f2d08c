"""Auto-complete: what the operator left out of a config, taken from what the model file declares.

Shared by engines whose model files declare their inputs and outputs. Everything both sides state is
compared, and all contradictions are reported at once, each with both values. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from naiad.config.faults import Fault, did_you_mean, listed
from naiad.config.model import ModelConfig, TensorConfig
from naiad.config.validate import SCHEDULERS
from naiad.protocol.datatypes import CONFIG_NAME
from naiad.protocol.errors import Code, ModelError

DEFAULT_MAX_BATCH_SIZE: Final = 4
"""max_batch_size of a model that can batch and whose config does not say (as Triton does)."""

Dims = tuple[int, ...]
Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class DeclaredTensor:
    """An input or output as the model file declares it.

    `dims` is the whole shape, batch dimension included, -1 where the size is free; None when the
    file does not tell the shape. `is_optional`: an input that has a default in the file.
    `is_probed`: the file does not tell, a trial run did: only the number of dims is known.
    `is_shape_tensor`: the engine computes shapes from its values.
    """

    name: str
    datatype: str
    dims: Dims | None
    is_optional: bool = False
    is_probed: bool = False
    is_shape_tensor: bool = False


def complete_config(
    config: ModelConfig,
    inputs: Sequence[DeclaredTensor],
    outputs: Sequence[DeclaredTensor],
    *,
    may_batch: bool = True,
    rows_max: int | None = None,
) -> ModelConfig:
    """The config with max_batch_size, scheduler, inputs and outputs filled in (TRITON: §2).

    With max_batch_size 0 (or absent), every first dimension free and no configured dims that count
    the batch dimension themselves, the model batches: max_batch_size 4 and dynamic_batching, unless
    a scheduler is chosen; not without `may_batch`, and at most `rows_max`. Configured inputs must
    be all that the model requires; configured outputs may be a choice.

    Raises ModelError (LOAD_FAILED) with every contradiction.
    """
    faults = [
        *_name_faults("input", config.inputs, inputs),
        *_name_faults("output", config.outputs, outputs),
    ]
    _raise_for(config, faults)
    used_inputs = _used(config.inputs, [item for item in inputs if not item.is_optional], inputs)
    used_outputs = _used(config.outputs, outputs, outputs)
    used = [*used_inputs, *used_outputs]
    changes: Json = {}
    max_batch_size = config.max_batch_size
    if max_batch_size > 0:
        faults += _batch_faults(max_batch_size, used_inputs, used_outputs)
    elif may_batch and used and _batches_by_itself(config, used):
        max_batch_size = min(DEFAULT_MAX_BATCH_SIZE, rows_max or DEFAULT_MAX_BATCH_SIZE)
        changes["max_batch_size"] = max_batch_size
        if max_batch_size > 1 and not any(scheduler in config.raw for scheduler in SCHEDULERS):
            changes["dynamic_batching"] = {}
    _raise_for(config, faults)
    for field, declared in (("input", used_inputs), ("output", used_outputs)):
        given = {str(entry["name"]): entry for entry in config.raw.get(field) or []}
        changes[field] = [
            _entry(field, given.get(tensor.name, {}), tensor, max_batch_size, faults)
            for tensor in declared
        ]
    _raise_for(config, faults)
    return config.with_fields(**changes)


def _raise_for(config: ModelConfig, faults: Sequence[Fault]) -> None:
    if faults:
        found = "\n".join(str(fault) for fault in faults)
        raise ModelError(f"model '{config.name}': {found}", code=Code.LOAD_FAILED)


def _used(
    configured: Sequence[TensorConfig],
    otherwise: Sequence[DeclaredTensor],
    declared: Sequence[DeclaredTensor],
) -> list[DeclaredTensor]:
    """The declared tensors that are served, in the config's order where it names them."""
    by_name = {tensor.name: tensor for tensor in declared}
    return [by_name[tensor.name] for tensor in configured] or list(otherwise)


def _name_faults(
    field: str, configured: Sequence[TensorConfig], declared: Sequence[DeclaredTensor]
) -> list[Fault]:
    names = [tensor.name for tensor in declared]
    faults: list[Fault] = []
    for index, tensor in enumerate(configured):
        if tensor.name not in names:
            has = listed(sorted(names))
            message = f'the model has no {field} "{tensor.name}"; its {field}s are {has}'
            remedy = did_you_mean(tensor.name, names)
            faults.append(Fault(f"{field}[{index}].name", message, remedy))
    given = {tensor.name for tensor in configured}
    missing = [tensor.name for tensor in declared if not tensor.is_optional]
    missing = [name for name in missing if name not in given]
    if field == "input" and configured and missing:
        faults.append(
            Fault(
                field,
                f"the config lists {listed(sorted(given))}, the model requires "
                f"{listed(sorted(names))}",
                f"add {listed(sorted(missing))}, or leave `input` out to have it filled in",
            )
        )
    return faults


def _batch_faults(
    max_batch_size: int, inputs: Sequence[DeclaredTensor], outputs: Sequence[DeclaredTensor]
) -> list[Fault]:
    """Why a model cannot take batches although max_batch_size says so."""
    faults: list[Fault] = []
    for side, tensors in (("input", inputs), ("output", outputs)):
        for tensor in tensors:
            where = "max_batch_size"
            if tensor.is_shape_tensor:  # the batch is the first of its values
                continue
            if tensor.dims is not None and tensor.dims[:1] != (-1,):
                message = (
                    f'{max_batch_size} is configured, but {side} "{tensor.name}" of the model has '
                    f"the shape {list(tensor.dims)}, whose first dimension is not free: the model "
                    "does not support batching"
                )
                remedy = (
                    "set max_batch_size: 0 and give whole shapes as dims, or export the model "
                    "with a dynamic batch axis"
                )
                faults.append(Fault(where, message, remedy))
            elif tensor.is_optional:
                message = (
                    f'{max_batch_size} is configured, but input "{tensor.name}" is optional (it '
                    "has a default in the model file), and optional inputs cannot be batched"
                )
                remedy = "set max_batch_size: 0, or leave this input out of the config"
                faults.append(Fault(where, message, remedy))
    return faults


def _batches_by_itself(config: ModelConfig, used: Sequence[DeclaredTensor]) -> bool:
    """Whether every tensor has a free first dimension that no configured dims already count."""
    ranks: dict[str, int] = {}
    for tensor in used:
        if tensor.is_optional or tensor.is_probed:
            return False
        if tensor.dims is None or tensor.dims[:1] != (-1,):
            return False
        ranks[tensor.name] = len(tensor.dims)
    given = [tensor for tensor in (*config.inputs, *config.outputs) if tensor.dims]
    return all(len(tensor.model_dims) == ranks[tensor.name] - 1 for tensor in given)


def _entry(
    field: str,
    given: Mapping[str, Any],
    declared: DeclaredTensor,
    max_batch_size: int,
    faults: list[Fault],
) -> Json:
    """One input or output in JSON, completed; contradictions are added to `faults`."""
    where = f'{field} "{declared.name}"'
    entry = {**_defaults(field), "name": declared.name, **given}
    model_type = CONFIG_NAME[declared.datatype]
    if entry["data_type"] == "TYPE_INVALID":
        entry["data_type"] = model_type
    elif entry["data_type"] != model_type:
        faults.append(
            Fault(
                where,
                f"data_type {entry['data_type']} is configured, the model has {model_type}",
                "correct it, or leave data_type out",
            )
        )
    if field == "input" and declared.is_optional:
        entry["optional"] = True
    if not given:
        entry["is_shape_tensor"] = declared.is_shape_tensor
    elif entry["is_shape_tensor"] != declared.is_shape_tensor:
        told, found = ("true", "is none") if entry["is_shape_tensor"] else ("false", "is one")
        faults.append(
            Fault(
                where,
                f"is_shape_tensor is {told}, in the model it {found}",
                f"set is_shape_tensor: {'false' if told == 'true' else 'true'}",
            )
        )
    if entry["dims"]:
        faults += _dims_faults(where, TensorConfig.from_json(entry), declared, max_batch_size)
    elif declared.dims is None:
        faults.append(Fault(where, "the model file does not tell its shape", "configure its dims"))
    else:
        entry.update(_dims_of(declared, max_batch_size))
    return entry


def _defaults(field: str) -> Json:
    common = {"data_type": "TYPE_INVALID", "dims": [], "is_shape_tensor": False}
    if field == "input":
        own = {"format": "FORMAT_NONE", "allow_ragged_batch": False, "optional": False}
        return {"name": "", **common, **own, "is_non_linear_format_io": False}
    return {"name": "", **common, "label_filename": "", "is_non_linear_format_io": False}


def _dims_of(declared: DeclaredTensor, max_batch_size: int) -> Json:
    """dims for a declared shape. A config cannot say "scalar", so [1] stands for it."""
    dims = declared.dims
    assert dims is not None
    if max_batch_size > 0 and declared.is_shape_tensor:
        return {"dims": [size if size < 0 else size - 1 for size in dims]}
    if max_batch_size > 0:
        own = list(dims[1:])
        return {"dims": own} if own else {"dims": [1], "reshape": {"shape": []}}
    return {"dims": list(dims) or [1]}


def _dims_faults(
    where: str, configured: TensorConfig, declared: DeclaredTensor, max_batch_size: int
) -> list[Fault]:
    """A free dimension of the model may be narrowed by the config, a fixed one must be equal."""
    if declared.dims is None:
        return []
    full = (-1, *configured.model_dims) if max_batch_size > 0 else configured.model_dims
    if max_batch_size > 0 and declared.is_shape_tensor:
        full = tuple(size if size < 0 else size + 1 for size in configured.model_dims)
    if declared.dims == () and full in ((), (1,)):
        return []
    if len(full) == len(declared.dims) and all(
        model in (-1, own) for own, model in zip(full, declared.dims, strict=True)
    ):
        return []
    batching = f" (with max_batch_size {max_batch_size} in front: {list(full)})"
    field = "dims" if configured.reshape is None else "reshape"
    message = (
        f"{field} {list(configured.model_dims)} is configured"
        f"{batching if max_batch_size > 0 else ''}, the model has {list(declared.dims)}"
    )
    return [Fault(where, message, "correct it, or leave dims out to have it filled in")]
