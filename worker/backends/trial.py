"""Trial runs with zeros: what they tell about a model, and what they save the first request.

Zeros in shapes where every free dimension is 1 do not suit every model, so a trial that fails is
no error here.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from time import monotonic
from typing import TYPE_CHECKING, Final

import numpy as np

from naiad.config.model import ModelConfig
from naiad.protocol.datatypes import NUMPY_NAME
from naiad.worker.backends.completion import DeclaredTensor

if TYPE_CHECKING:
    from naiad.worker.backends.base import Array

WARM_UP_SECONDS_MAX: Final = 0.25
"""A full batch of zeros is run at load only when it should take no longer."""

Run = Callable[[Sequence[str], Mapping[str, "Array"]], Sequence["Array"]]
"""(names of outputs, inputs) → outputs."""

_log = logging.getLogger(__name__)


def zeros(datatype: str, shape: tuple[int, ...]) -> Array:
    """Zeros, empty strings for BYTES, zero bits for BF16."""
    if datatype == "BYTES":
        return np.full(shape, b"", dtype=np.object_)
    return np.zeros(shape, dtype=NUMPY_NAME.get(datatype, "uint16"))


def probe_outputs(
    inputs: Sequence[DeclaredTensor], outputs: Sequence[DeclaredTensor], run: Run
) -> list[DeclaredTensor]:
    """The outputs, those of unknown shape with as many free dims as a trial run gave them."""
    names = [tensor.name for tensor in outputs if tensor.datatype]
    try:
        arrays = run(names, _zero_feeds(inputs, 1))
    except Exception as error:
        _log.debug("trial run: %s", error)
        return list(outputs)
    ranks = {name: array.ndim for name, array in zip(names, arrays, strict=True)}
    return [
        replace(tensor, dims=(-1,) * ranks[tensor.name], is_probed=True)
        if tensor.dims is None and tensor.name in ranks
        else tensor
        for tensor in outputs
    ]


def warm_up(config: ModelConfig, inputs: Sequence[DeclaredTensor], run: Run) -> None:
    """A run of one and, where cheap, one of max_batch_size."""
    names = [tensor.name for tensor in config.outputs]
    configured = {tensor.name: tensor for tensor in config.inputs}
    known = [tensor for tensor in inputs if tensor.name in configured]
    if config.max_batch_size > 0:
        known = [replace(t, dims=(-1, *configured[t.name].model_dims)) for t in known]
    started = monotonic()
    for rows in (1, config.max_batch_size):
        if rows > 1 and (monotonic() - started) * rows > WARM_UP_SECONDS_MAX:
            return
        try:
            run(names, _zero_feeds(known, max(1, rows)))
        except Exception as error:
            _log.debug("%s: no warm-up: %s", config.name, error)
            return


def _zero_feeds(inputs: Sequence[DeclaredTensor], rows: int) -> dict[str, Array]:
    """Zeros for every required input: `rows` where the first dimension is free, 1 elsewhere."""
    feeds: dict[str, Array] = {}
    for tensor in inputs:
        if tensor.is_optional:
            continue
        dims = list(tensor.dims or ())
        shape = [1 if size == -1 else size for size in dims]
        if dims[:1] == [-1]:
            shape[0] = rows
        feeds[tensor.name] = zeros(tensor.datatype, tuple(shape))
    return feeds
