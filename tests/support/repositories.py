"""Model repositories for tests of whole servers, written on the spot."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path


def add_identity(
    repository: Path,
    name: str = "identity",
    *,
    instances: int = 1,
    max_batch_size: int = 64,
    parameters: Mapping[str, object] | None = None,
    extra: str = "",
) -> Path:
    """An echo model `INPUT0` FP32 [16] → `OUTPUT0`; its parameters are those of the backend."""
    folder = repository / name
    (folder / "1").mkdir(parents=True)
    lines = [
        f'name: "{name}"',
        'backend: "identity"',
        f"max_batch_size: {max_batch_size}",
        'input [ { name: "INPUT0" data_type: TYPE_FP32 dims: [ 16 ] } ]',
        'output [ { name: "OUTPUT0" data_type: TYPE_FP32 dims: [ 16 ] } ]',
        f"instance_group [ {{ kind: KIND_CPU count: {instances} }} ]",
    ]
    for key, value in (parameters or {}).items():
        lines.append(f'parameters {{ key: "{key}" value {{ string_value: "{value}" }} }}')
    (folder / "config.pbtxt").write_text("\n".join([*lines, extra, ""]))
    return folder
