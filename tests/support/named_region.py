"""A user's own shared memory, as a KServe client makes it: not by naiad, registered by name."""

from __future__ import annotations

import os
import secrets
from types import TracebackType
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from naiad.client import Client, InferInput, OutputPlace
from naiad.protocol.messages import Place
from naiad.shm.objects import DIRECTORY

CANARY = 0xC5


class NamedRegion:
    """`size` bytes of /dev/shm full of canaries, removed at the end. `id` after `register`."""

    def __init__(self, size: int) -> None:
        self.name = self.key = f"t{secrets.token_hex(8)}"
        self.path = f"{DIRECTORY}/{self.key}"
        self.size = size
        self.id = 0
        with open(self.path, "xb") as file:
            file.write(bytes([CANARY]) * size)

    def register(self, client: Client, offset: int = 0, size: int | None = None) -> Self:
        size = self.size - offset if size is None else size
        self.id = client.region_register(self.name, self.key, size, offset)
        return self

    def write(self, offset: int, array: NDArray[Any]) -> None:
        with open(self.path, "r+b") as file:
            file.seek(offset)
            file.write(array.tobytes())

    def read(self, offset: int, size: int) -> bytes:
        with open(self.path, "rb") as file:
            file.seek(offset)
            return file.read(size)

    def truncate(self, size: int) -> None:
        os.truncate(self.path, size)

    def unlink(self) -> None:
        os.unlink(self.path)

    def input(self, name: str, shape: tuple[int, ...], offset: int, size: int) -> InferInput:
        """FP32 of `shape` from here."""
        return InferInput(name, "FP32", shape, None, Place.REGION, self.id, offset, size)

    def output(self, offset: int, size: int) -> OutputPlace:
        return OutputPlace(self.id, offset, size)

    def damage(self, *written: tuple[int, int]) -> list[int]:
        """Offsets outside of the (offset, size) ranges whose canary was overwritten."""
        content = np.frombuffer(self.read(0, self.size), np.uint8).copy()
        for offset, size in written:
            content[offset : offset + size] = CANARY
        return [int(index) for index in np.flatnonzero(content != CANARY)]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        fault: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if os.path.exists(self.path):
            os.unlink(self.path)
