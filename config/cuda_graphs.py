"""What optimization.cuda may say of a model's batches, and what of it has no effect. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from naiad.config.backends import GPU_ONLY_BACKENDS
from naiad.config.faults import Fault, did_you_mean, listed
from naiad.config.model import ModelConfig, messages

SPECS_MAX: Final = 256
"""Each takes device memory, and seconds of the load."""


def graph_spec_faults(config: ModelConfig, *, is_complete: bool = False) -> Iterator[Fault]:
    """What fits no batch. Until a backend has completed the config (`is_complete`), a
    max_batch_size of 0 and inputs that are left out are the model's to tell."""
    cuda = _cuda(config)
    if config.backend not in GPU_ONLY_BACKENDS or not cuda.get("graphs"):
        return
    specs = messages(cuda, "graph_spec")
    if len(specs) > SPECS_MAX:
        yield Fault(
            "optimization.cuda.graph_spec",
            f"expected at most {SPECS_MAX}, got {len(specs)}",
            "keep the batches that come most often",
        )
    for index, spec in enumerate(specs):
        where = f"optimization.cuda.graph_spec[{index}]"
        yield from _spec(config, where, spec, is_complete)
        bound = spec.get("graph_lower_bound")
        if bound:
            yield from _spec(config, f"{where}.graph_lower_bound", bound, is_complete)
            rows, least = int(spec.get("batch_size", 0)), int(bound.get("batch_size", 0))
            if least > rows:
                yield Fault(
                    f"{where}.graph_lower_bound.batch_size",
                    f"expected at most the {rows} of the spec, got {least}",
                )


def graph_warnings(config: ModelConfig) -> Iterator[str]:
    """What is said of graphs and has no effect."""
    cuda = _cuda(config)
    where = "optimization.cuda.graph"
    if cuda.get("graph_spec") and not cuda.get("graphs"):
        yield f"{where}_spec has no effect without graphs: true"
    elif cuda.get("graphs") and config.backend and config.backend not in GPU_ONLY_BACKENDS:
        yield f'{where}s has no effect: backend "{config.backend}" captures no CUDA graphs'


def _cuda(config: ModelConfig) -> Mapping[str, Any]:
    return (config.raw.get("optimization") or {}).get("cuda") or {}


def _spec(
    config: ModelConfig, where: str, spec: Mapping[str, Any], is_complete: bool
) -> Iterator[Fault]:
    rows, most = int(spec.get("batch_size", 0)), max(0, config.max_batch_size)
    least = 1 if most > 0 else 0
    if not least <= rows <= most and (most > 0 or is_complete):
        yield Fault(f"{where}.batch_size", f"expected {least} to {most}, got {rows}")
    known = [tensor.name for tensor in config.inputs]
    for name in sorted(spec.get("input") or {}):
        if known and name not in known:
            hint = did_you_mean(name, known) or f"expected {listed(sorted(known))}"
            yield Fault(f"{where}.input", f'the model has no input "{name}"', hint)
