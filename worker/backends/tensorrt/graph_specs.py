"""Which batches are to be captured as CUDA graphs, by optimization.cuda of a model's config. Pure.

A graph is captured for whole shapes, and used for batches of exactly these; with a lower bound also
for smaller ones, whose last rows are whatever is there. Only the number of rows may be smaller:
with other dimensions smaller, rows would lie elsewhere.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from naiad.config.cuda_graphs import graph_spec_faults
from naiad.config.faults import listed
from naiad.config.model import ModelConfig
from naiad.worker.backends.tensorrt.engine import Binding, load_error
from naiad.worker.backends.tensorrt.profiles import Shape

DEFAULT_BATCH_SIZES: Final = (1, 2, 3, 4, 6, 8, 12, 16)
"""What Triton captures, and max_batch_size, where no graph_spec and no batcher say otherwise."""


@dataclass(frozen=True, slots=True)
class GraphSpec:
    """The inputs' shapes of a graph, and the fewest rows that it is used for."""

    shapes: Mapping[str, Shape]
    rows: int
    rows_least: int


def graph_specs(
    config: ModelConfig, bindings: Sequence[Binding]
) -> tuple[list[GraphSpec], str | None]:
    """In the config's order, and why there are none although they were asked for.

    Raises ModelError (LOAD_FAILED) for what fits no batch.
    """
    optimization = config.raw.get("optimization") or {}
    cuda: Mapping[str, Any] = optimization.get("cuda") or {}
    if not cuda.get("graphs"):
        return [], None
    hosts = [binding.name for binding in bindings if binding.is_host]
    if hosts:
        return [], f"the values of shape tensors ({listed(hosts)}) are in host memory"
    dims = _dims(config, bindings)
    given = cuda.get("graph_spec") or []
    fault = next(graph_spec_faults(config, is_complete=True), None)
    if fault is not None:
        raise load_error(str(fault))
    if given:
        return [_given(config, dims, spec, number) for number, spec in enumerate(given)], None
    free = [name for name, own in dims.items() if -1 in own]
    if free:
        return [], (
            f"the sizes of input {listed(free)} are free; say what to capture by a graph_spec with "
            "batch_size and the dim of each input"
        )
    rows = _default_rows(config)
    return [GraphSpec(_whole(config, dims, one), one, one) for one in rows], None


def _dims(config: ModelConfig, bindings: Sequence[Binding]) -> dict[str, Shape]:
    """Without the batch, by input."""
    lead = 1 if config.max_batch_size > 0 else 0
    scalars = {b.name for b in bindings if b.dims == ()}
    return {t.name: () if t.name in scalars and not lead else t.model_dims for t in config.inputs}


def _default_rows(config: ModelConfig) -> list[int]:
    most = config.max_batch_size
    if most <= 0:
        return [0]
    if config.dynamic_batching is not None:
        sizes = {1, *config.dynamic_batching.preferred_batch_size, most}
    else:
        sizes = {*DEFAULT_BATCH_SIZES, most}
    return sorted(size for size in sizes if size <= most)


def _whole(config: ModelConfig, dims: Mapping[str, Shape], rows: int) -> dict[str, Shape]:
    if config.max_batch_size <= 0:
        return dict(dims)
    return {name: (rows, *own) for name, own in dims.items()}


def _given(
    config: ModelConfig, dims: Mapping[str, Shape], spec: Mapping[str, Any], number: int
) -> GraphSpec:
    where = f"optimization.cuda.graph_spec[{number}]"
    rows = least = int(spec.get("batch_size", 0))
    own = _dims_of(where, dims, spec.get("input") or {})
    bound = spec.get("graph_lower_bound")
    if bound:
        least = int(bound.get("batch_size", 0))
        _dims_of(f"{where}.graph_lower_bound", dims, bound.get("input") or {})
    return GraphSpec(_whole(config, own, rows), rows, least)


def _dims_of(where: str, dims: Mapping[str, Shape], given: Mapping[str, Any]) -> dict[str, Shape]:
    """Those of the spec where it has them, else the config's."""
    found = {}
    for name, own in dims.items():
        told = tuple(int(size) for size in (given.get(name) or {}).get("dim") or own)
        fits = len(told) == len(own) and all(
            size >= 0 and mine in (-1, size) for size, mine in zip(told, own, strict=True)
        )
        if not fits:
            raise load_error(
                f'{where}.input "{name}": expected one size for each of {list(own)}, '
                f"got {list(told)}"
            )
        found[name] = told
    return found
