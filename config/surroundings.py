"""What a server has to run models with, as far as configs depend on it. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

from naiad.config.gpus import is_gpu

OnMissingGpu = Literal["fail", "cpu"]


@dataclass(frozen=True, slots=True)
class Surroundings:
    """`backends` are those the workers can import, None when nobody has asked them yet.

    `devices` are those of the workers: "cpu", "gpu:<uuid>"; GPUs are numbered in this order.
    `cpu_backends` have no use for a GPU as they are installed: KIND_AUTO is KIND_CPU for them. With
    `on_missing_gpu` "cpu" a KIND_GPU group on a machine without GPU runs on the CPU instead of
    being refused.
    Without `auto_complete` a config has to say everything itself, as with Triton's
    --disable-auto-complete-config. `config_name` prefers a model's configs/NAME.pbtxt.
    """

    backends: tuple[str, ...] | None = None
    devices: tuple[str, ...] = ("cpu",)
    cpu_backends: tuple[str, ...] = ("identity",)
    on_missing_gpu: OnMissingGpu = "fail"
    auto_complete: bool = True
    config_name: str = ""

    @property
    def gpu_count(self) -> int:
        return len(gpu_devices(self.devices))


def gpu_devices(devices: Sequence[str]) -> list[str]:
    """Those that are GPUs, in the order in which `gpus` of an instance group numbers them."""
    return [device for device in devices if is_gpu(device)]


CPU_ONLY: Final = Surroundings()
"""What is assumed of a server that nobody has described."""
