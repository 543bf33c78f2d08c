"""Which GPUs a server uses: what its operator chose, and what CUDA_VISIBLE_DEVICES leaves of them.

A GPU is named by its UUID everywhere ("gpu:<uuid>" as a device); its number, as in `gpus` of an
instance group, is its place among those the server uses. Knows no driver: who asks one is
gpu_listing. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final, NamedTuple

from naiad.config.faults import listed
from naiad.config.names import printable

DEVICE_PREFIX: Final = "gpu:"
VISIBLE_VARIABLE: Final = "CUDA_VISIBLE_DEVICES"
AUTO: Final = "auto"
ALL: Final = "all"
NONE: Final = "none"
GPUS_MAX: Final = 128
"""More than one machine holds, its MIG devices counted one by one."""
UUID_CHARS_MAX: Final = 64
_UUID: Final = re.compile(rf"(GPU|MIG)-[A-Za-z0-9/-]{{1,{UUID_CHARS_MAX - 4}}}")


class Gpu(NamedTuple):
    """A whole GPU, or a MIG device. `number` is that of the whole one, as the driver counts."""

    uuid: str
    name: str
    number: int


class GpuFault(Exception):
    """What was asked for cannot be had; the text is for the operator."""


def device_of(uuid: str) -> str:
    """As the device of a slot."""
    return f"{DEVICE_PREFIX}{uuid}"


def is_gpu(device: str) -> bool:
    """Of the device of a slot, which is the CPU otherwise."""
    return device.startswith(DEVICE_PREFIX)


def uuid_of(device: str) -> str:
    """Of the device of a slot; empty for the CPU."""
    return device.removeprefix(DEVICE_PREFIX) if is_gpu(device) else ""


def chosen_uuids(choice: str) -> tuple[str, ...] | None:
    """The UUIDs that a choice (--gpus) names; None for one that a listing has to answer.

    Raises GpuFault for what is neither.
    """
    if choice in (AUTO, ALL):
        return None
    if choice == NONE:
        return ()
    uuids = tuple(dict.fromkeys(choice.split(",")))
    wrong = [uuid for uuid in uuids if not _UUID.fullmatch(uuid)]
    if wrong:
        raise GpuFault(
            f"--gpus: expected {AUTO}, {ALL}, {NONE}, or UUIDs with commas between (GPU-..., "
            f"MIG-..., as `nvidia-smi -L` shows them), got {printable(wrong[0])}"
        )
    if len(uuids) > GPUS_MAX:
        raise GpuFault(f"--gpus: expected at most {GPUS_MAX} UUIDs, got {len(uuids)}")
    return uuids


def visible(gpus: Sequence[Gpu], text: str | None) -> list[Gpu]:
    """Of the listed ones, those that CUDA_VISIBLE_DEVICES (None: not set) names, in its order.

    As CUDA reads it: numbers or beginnings of UUIDs, and all behind one that fits none is hidden. A
    number means its first MIG device where a GPU is divided. Numbers count as the driver does.
    """
    if text is None:
        return list(gpus)
    found: dict[Gpu, None] = {}
    for word in (word.strip() for word in text.split(",")):
        if word.isdecimal():
            match = next((gpu for gpu in gpus if gpu.number == int(word)), None)
        else:
            match = next((gpu for gpu in gpus if word and gpu.uuid.startswith(word)), None)
        if match is None:
            break
        found[match] = None
    return list(found)


def described(gpus: Sequence[Gpu]) -> str:
    """One line for the operator: numbers, UUIDs, names."""
    return listed([f"{number} {gpu.uuid} ({gpu.name})" for number, gpu in enumerate(gpus)])
