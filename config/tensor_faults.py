"""What is wrong with the inputs and outputs of a config: names, types, dims, reshapes, label files.

The rules are Triton's. Knows nothing of a model's file: what that says is compared when it loads.
Pure.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod
from typing import Final

from naiad.config.faults import Fault
from naiad.config.model import ModelConfig, TensorConfig
from naiad.config.names import inner_path_fault
from naiad.protocol.checks import RANK_MAX

IMAGE_RANK: Final = 3
"""Dimensions that FORMAT_NHWC, FORMAT_NCHW and non-linear formats demand."""


def tensor_faults(
    config: ModelConfig, side: str, tensors: Sequence[TensorConfig], is_complete: bool
) -> Iterator[Fault]:
    """Faults of one `side` ("input" or "output"), in the order of the file."""
    seen: set[str] = set()
    for index, tensor in enumerate(tensors):
        where = f"{side}[{index}]"
        if not tensor.name:
            yield Fault(f"{where}.name", "a tensor must have a name", "give it the model's name")
        elif tensor.name in seen:
            yield Fault(
                f"{where}.name", f'"{tensor.name}" is there already', f"give each {side} one entry"
            )
        seen.add(tensor.name)
        if is_complete and not tensor.data_type:
            yield Fault(
                f"{where}.data_type",
                f'no data type for "{tensor.name}", and the model does not tell it',
                "write data_type: TYPE_FP32 (or another TYPE_...)",
            )
        yield from _dims(where, tensor, is_complete)
        yield from _rank(where, tensor, config.max_batch_size)
        if tensor.reshape is not None and tensor.dims:
            yield from _reshape(where, tensor, config.max_batch_size)
        if tensor.label_filename:
            fault = inner_path_fault(tensor.label_filename)
            if fault:
                yield Fault(f"{where}.label_filename", f'"{tensor.label_filename}" {fault}')


def _dims(where: str, tensor: TensorConfig, is_complete: bool) -> Iterator[Fault]:
    if not tensor.dims:
        if is_complete:
            yield Fault(
                f"{where}.dims",
                f'no dims for "{tensor.name}", and the model does not tell them',
                "write dims: [ ... ]; for a scalar dims: [ 1 ]",
            )
        return
    for position, dim in enumerate(tensor.dims):
        if dim != -1 and dim < 1:
            yield Fault(
                f"{where}.dims[{position}]",
                f"expected 1 or more, or -1 for any size, got {dim}",
                "write -1 for a dimension that varies",
            )
    needs_image = tensor.format != "FORMAT_NONE" or tensor.is_non_linear_format_io
    if needs_image and len(tensor.dims) != IMAGE_RANK:
        cause = tensor.format if tensor.format != "FORMAT_NONE" else "is_non_linear_format_io"
        yield Fault(
            f"{where}.dims",
            f"{cause} needs exactly {IMAGE_RANK} dims, got {list(tensor.dims)}",
            "leave out the batch dimension, or the format",
        )


def _rank(where: str, tensor: TensorConfig, max_batch_size: int) -> Iterator[Fault]:
    most = RANK_MAX - (max_batch_size > 0)
    for what, dims in (("dims", tensor.dims), ("reshape.shape", tensor.reshape or ())):
        if len(dims) > most:
            beside = " beside the batch dimension" if max_batch_size > 0 else ""
            yield Fault(
                f"{where}.{what}",
                f"expected at most {most} dimensions{beside}, got {len(dims)}",
                "join some of them: no request can carry more",
            )


def _reshape(where: str, tensor: TensorConfig, max_batch_size: int) -> Iterator[Fault]:
    """As Triton does: equal element counts, and between the -1 of both sides equal products."""
    shape = tensor.reshape or ()
    if not shape and max_batch_size == 0:
        yield Fault(
            f"{where}.reshape",
            "an empty shape needs a batch dimension, and max_batch_size is 0",
            "use reshape { shape: [ 1 ] }, or set max_batch_size",
        )
        return
    for position, dim in enumerate(shape):
        if dim != -1 and dim < 1:
            yield Fault(
                f"{where}.reshape.shape[{position}]", f"expected 1 or more, or -1, got {dim}"
            )
            return
    if _fixed_products(tensor.dims) != _fixed_products(shape):
        yield Fault(
            f"{where}.reshape",
            f"dims {list(tensor.dims)} and reshape {list(shape)} hold different element counts",
            "both need the same product, and the same number of -1 with equal products between",
        )


def _fixed_products(dims: Sequence[int]) -> list[int]:
    """Products of the runs of fixed dimensions between the variable ones."""
    runs: list[list[int]] = [[]]
    for dim in dims:
        if dim == -1:
            runs.append([])
        else:
            runs[-1].append(dim)
    return [prod(run) for run in runs]
