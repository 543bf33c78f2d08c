"""What NVML, the driver's own library, tells of GPUs, through nvidia-ml-py.

The one place that names its functions. Every call may block for as long as the driver does: who
calls says what then (gpu_listing ends a process, the metrics process goes on without). Creates no
CUDA context. Figures that a GPU does not have are None.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from importlib import import_module
from typing import Any, Final, NamedTuple

from naiad.config.gpus import GPUS_MAX, Gpu

MODULE: Final = "pynvml"
PROCESSES_MAX: Final = 4096
MACHINES_PIDS: Final = "pid:[4026531836]"
"""The first namespace of pids has this number on every Linux: in it NVML's pids are ours."""
_MIG_ENABLED: Final = 1


class NvmlFault(Exception):
    """NVML is not there, or refuses; the text is its own."""


class Memory(NamedTuple):
    """Of one GPU, in bytes."""

    total: int
    free: int
    used: int


class Nvml:
    """A session with the driver. Use as a context manager.

    `load` is for tests, which plant modules.
    """

    def __init__(self, load: Callable[[str], Any] = import_module) -> None:
        self._load = load
        self._api: Any = None
        self._handles: dict[str, Any] = {}

    def __enter__(self) -> Nvml:
        try:
            self._api = self._load(MODULE)
        except ImportError as error:
            raise NvmlFault(f"{error}; pip install nvidia-ml-py") from error
        self._must("nvmlInit")
        return self

    def __exit__(self, *_: object) -> None:
        self._optional("nvmlShutdown")
        self._handles.clear()

    def gpus(self) -> list[Gpu]:
        """Every GPU that the driver shows to this process; a divided one by its MIG devices."""
        found: list[Gpu] = []
        for number in range(min(self._must("nvmlDeviceGetCount"), GPUS_MAX)):
            whole = self._must("nvmlDeviceGetHandleByIndex", number)
            name = _text(self._must("nvmlDeviceGetName", whole))
            parts = list(self._mig_devices(whole))
            found += [
                Gpu(_text(self._must("nvmlDeviceGetUUID", handle)), name, number)
                for handle in parts or [whole]
            ]
        return found[:GPUS_MAX]

    def _mig_devices(self, whole: Any) -> Iterator[Any]:
        mode = self._optional("nvmlDeviceGetMigMode", whole)
        if mode is None or mode[0] != _MIG_ENABLED:
            return
        for index in range(self._optional("nvmlDeviceGetMaxMigDeviceCount", whole) or 0):
            handle = self._optional("nvmlDeviceGetMigDeviceHandleByIndex", whole, index)
            if handle is not None:  # numbers of devices that were destroyed stay free
                yield handle

    # --- Figures of one GPU --------------------------------------------------------------------

    def memory(self, uuid: str) -> Memory | None:
        found = self._of(uuid, "nvmlDeviceGetMemoryInfo")
        return None if found is None else Memory(found.total, found.free, found.used)

    def utilization(self, uuid: str) -> float | None:
        """Share of the last sampling period in which something ran, 0 to 1."""
        found = self._of(uuid, "nvmlDeviceGetUtilizationRates")
        return None if found is None else found.gpu / 100

    def power_watts(self, uuid: str) -> float | None:
        return _thousandth(self._of(uuid, "nvmlDeviceGetPowerUsage"))

    def power_limit_watts(self, uuid: str) -> float | None:
        return _thousandth(self._of(uuid, "nvmlDeviceGetEnforcedPowerLimit"))

    def energy_joules(self, uuid: str) -> float | None:
        """Since the driver was loaded."""
        return _thousandth(self._of(uuid, "nvmlDeviceGetTotalEnergyConsumption"))

    def process_bytes(self, uuid: str) -> dict[int, int]:
        """GPU memory of each process that computes there, by its pid as the driver knows it.

        Pids are those of the machine, not of a container; without a figure a process is left out.
        """
        found = self._of(uuid, "nvmlDeviceGetComputeRunningProcesses") or []
        return {
            one.pid: one.usedGpuMemory
            for one in found[:PROCESSES_MAX]
            if one.usedGpuMemory is not None
        }

    # --- Calls ---------------------------------------------------------------------------------

    def _of(self, uuid: str, name: str) -> Any:
        handle = self._handles.get(uuid)
        if handle is None:
            handle = self._optional("nvmlDeviceGetHandleByUUID", uuid)
            if handle is None:
                return None
            self._handles[uuid] = handle
        return self._optional(name, handle)

    def _must(self, name: str, *arguments: Any) -> Any:
        try:
            return getattr(self._api, name)(*arguments)
        except self._api.NVMLError as error:
            raise NvmlFault(f"{name}: {error}") from error

    def _optional(self, name: str, *arguments: Any) -> Any:
        """None where this driver, or this GPU, does not have it."""
        function = getattr(self._api, name, None)
        if function is None:
            return None
        try:
            return function(*arguments)
        except self._api.NVMLError:
            return None


def knows_pids() -> bool:
    """Whether the pids of `process_bytes` are those of this process's world; not in a container."""
    try:
        return os.readlink("/proc/self/ns/pid") == MACHINES_PIDS
    except OSError:
        return False


def _text(value: str | bytes) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else value


def _thousandth(value: int | None) -> float | None:
    return None if value is None else value / 1000
