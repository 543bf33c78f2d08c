"""The device of a slot, as engines see it: a slot of a GPU sees that GPU alone, as number 0.

Told by the environment, before anything that could ask CUDA is imported. Slots of the CPU see what
the server was started with, for models that choose a device themselves (KIND_MODEL).
"""

from __future__ import annotations

import os
from typing import Final

from naiad.config.gpus import VISIBLE_VARIABLE, uuid_of

ORDINAL: Final = 0
"""Of the one GPU that such a slot has, as its engine counts."""
LAZY: Final = {"CUDA_MODULE_LOADING": "LAZY"}
"""Kernels are loaded when they are used: some 100 MB less of device memory for each process."""


def take_device(device: str) -> None:
    """Hide every other GPU from this process."""
    uuid = uuid_of(device)
    if uuid:
        os.environ[VISIBLE_VARIABLE] = uuid
        for variable, value in LAZY.items():
            os.environ.setdefault(variable, value)
