"""The memory of a worker's GPU: is there enough for its instance, and how much did that take.

Asked of NVML before and after a load, so that an instance that does not fit is refused before it
takes what others need for their next batch. Owns the limit of one instance (gpu_memory_limit_mb).
Where NVML does not tell, nothing is known and nothing refused; it has NVML_SECONDS_MAX to answer.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

from naiad.config.nvml import Memory, Nvml, NvmlFault, knows_pids
from naiad.protocol.errors import Code, ModelError, Unavailable
from naiad.worker.backends.base import ModelInstance

NVML_SECONDS_MAX: Final = 5.0
MIB: Final = 2**20
LIMIT_PARAMETER: Final = "naiad.gpu_memory_limit_mb"
OWN_LIMIT_BACKENDS: Final = frozenset({"onnxruntime", "tensorrt"})
"""They keep to the limit themselves: one has an arena of that size, the other takes everything when
it is loaded. All others need MPS for it."""
MPS_VARIABLE: Final = "CUDA_MPS_PIPE_DIRECTORY"
MPS_DIRECTORY: Final = "/tmp/nvidia-mps"
MPS_LIMIT_VARIABLE: Final = "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"


class Seen(NamedTuple):
    """`own`: what this process has of it; None where NVML does not tell."""

    memory: Memory
    own: int | None


Look = Callable[[str], Seen | None]


def look(uuid: str) -> Seen | None:
    """The GPU's memory as NVML tells it now; None when it cannot, or takes too long."""
    found: list[Seen] = []

    def ask() -> None:
        with suppress(NvmlFault), Nvml() as nvml:
            memory = nvml.memory(uuid)
            if memory is not None:
                own = nvml.process_bytes(uuid).get(os.getpid()) if knows_pids() else None
                found.append(Seen(memory, own))

    thread = threading.Thread(target=ask, name="nvml", daemon=True)
    thread.start()
    thread.join(NVML_SECONDS_MAX)
    return found[0] if found else None


def has_mps() -> bool:
    """Whether CUDA programs of this environment share the GPU through MPS."""
    return Path(os.environ.get(MPS_VARIABLE) or MPS_DIRECTORY, "control").exists()


class GpuMemory:
    """Of one load: `prepare` before anything of the engine, `taken` after the warm-up.

    `need` is what another instance of the model took, 0 while nobody knows.
    """

    def __init__(self, instance: ModelInstance, need: int, look: Look = look) -> None:
        self._instance = instance
        self._need = need
        self._look = look
        self._limit = instance.config.naiad.gpu_memory_limit_mb * MIB
        self._before: Seen | None = None

    def prepare(self) -> None:
        """Raises Unavailable where the instance cannot fit, ModelError for a limit nobody keeps."""
        if self._limit:
            self._limit_process()
        self._before = seen = self._look(self._instance.gpu_uuid)
        if seen is not None and self._need > seen.memory.free:
            raise Unavailable(
                f"it needs {self._need} bytes of GPU memory, as its first instance took, and "
                f"{seen.memory.free} of {seen.memory.total} bytes are free on "
                f"{self._instance.gpu_uuid}; serve fewer instances or models on this GPU"
            )

    def _limit_process(self) -> None:
        backend = self._instance.config.backend
        if has_mps():
            os.environ[MPS_LIMIT_VARIABLE] = f"0={self._limit // MIB}M"
        elif backend not in OWN_LIMIT_BACKENDS:
            raise ModelError(
                f'parameters["{LIMIT_PARAMETER}"]: the backend "{backend}" cannot be held to a '
                "limit of GPU memory without MPS; start nvidia-cuda-mps-control before the server, "
                "or remove the parameter and set a limit in the model's own code",
                code=Code.LOAD_FAILED,
            )

    def taken(self, bound_growth: Callable[[int], None] | None = None) -> int:
        """Bytes that the load took, 0 where nobody can tell. ModelError: more than the limit.

        `bound_growth` is told what the limit leaves.
        """
        taken = self._measured()
        if self._limit and taken > self._limit:
            raise ModelError(
                f'parameters["{LIMIT_PARAMETER}"]: loading took {taken} bytes of GPU memory, '
                f"expected at most {self._limit} ({self._limit // MIB} MiB); raise the limit, or "
                "make the model smaller (batch size, profiles, workspace)",
                code=Code.LOAD_FAILED,
            )
        if self._limit and bound_growth is not None:
            bound_growth(self._limit - taken)
        return taken

    def _measured(self) -> int:
        seen = self._look(self._instance.gpu_uuid)
        if seen is None:
            return 0
        if seen.own is not None:
            return seen.own
        # Of all processes there: what another one freed or took meanwhile is in it.
        before = seen.memory.free if self._before is None else self._before.memory.free
        return max(0, before - seen.memory.free)
