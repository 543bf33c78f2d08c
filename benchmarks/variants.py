"""Model repositories made for one measurement: the same echo with other batching, delay or pace.

Writes config.pbtxt files (and models/paced.py, where an execution has to take its time) into a
folder of the benchmark's. Starts nothing.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Final, NamedTuple

HERE: Final = Path(__file__).resolve().parent


class Variant(NamedTuple):
    """FP32 [16] in and out, one instance. `execution_ms` None means the identity backend, else
    every batch takes that long, whatever its size, as on a device; `queue_policy` is text of the
    configuration."""

    name: str
    batch_max: int = 64
    late_batch: bool = True
    delay_us: int = 0
    execution_ms: float | None = None
    queue_policy: str = ""


def write_repository(folder: Path, variants: list[Variant]) -> Path:
    """The folder with a model for each variant."""
    for variant in variants:
        version = folder / variant.name / "1"
        version.mkdir(parents=True)
        (version.parent / "config.pbtxt").write_text(_config(variant))
        if variant.execution_ms is not None:
            shutil.copy(HERE / "models" / "paced.py", version / "model.py")
    return folder


def _config(variant: Variant) -> str:
    parameters = {"naiad.late_batch": str(variant.late_batch).lower()}
    if variant.execution_ms is not None:
        parameters["execution_ms"] = f"{variant.execution_ms:g}"
    lines = [
        f'name: "{variant.name}"',
        f'backend: "{"identity" if variant.execution_ms is None else "python"}"',
        f"max_batch_size: {variant.batch_max}",
        'input [ { name: "INPUT0" data_type: TYPE_FP32 dims: [ 16 ] } ]',
        'output [ { name: "OUTPUT0" data_type: TYPE_FP32 dims: [ 16 ] } ]',
        "instance_group [ { kind: KIND_CPU count: 1 } ]",
        f"dynamic_batching {{ max_queue_delay_microseconds: {variant.delay_us}",
        f"  {variant.queue_policy}",
        "}",
    ]
    for key, text in parameters.items():
        lines.append(f'parameters {{ key: "{key}" value {{ string_value: "{text}" }} }}')
    return "\n".join(lines) + "\n"
