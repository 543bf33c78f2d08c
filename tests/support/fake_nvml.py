"""NVML without a driver: what pynvml is to config/nvml.py, told by a file.

The file that NAIAD_FAKE_NVML names is read at every call, so that a test can change what a whole
server's processes see. It holds {"gpus": [...], "hangs": [...], "fails": {...}}: GPUs as `gpu`
makes them, names of functions that never return, and errors by name of function. Held to the real
module by tests/contract/backends/test_nvml_api.py.
"""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path
from typing import Any, NamedTuple

VARIABLE = "NAIAD_FAKE_NVML"

NVML_ERROR_NOT_SUPPORTED = 3
NVML_ERROR_NOT_FOUND = 6
NVML_ERROR_DRIVER_NOT_LOADED = 9
NVML_DEVICE_MIG_ENABLE = 1
NVML_DEVICE_MIG_DISABLE = 0

MIB = 2**20


class NVMLError(Exception):
    def __init__(self, value: int) -> None:
        super().__init__(value)
        self.value = value

    def __str__(self) -> str:
        return {3: "Not Supported", 6: "Not Found", 9: "Driver Not Loaded"}[self.value]


class Handle(NamedTuple):
    uuid: str


class Memory(NamedTuple):
    total: int
    free: int
    used: int


class Utilization(NamedTuple):
    gpu: int
    memory: int


class Process(NamedTuple):
    pid: int
    usedGpuMemory: int | None


def gpu(uuid: str, name: str = "Fake GPU", **figures: Any) -> dict[str, Any]:
    """A GPU for the file; of what is not given it has nothing to say. `mig`: UUIDs of its parts."""
    return {"uuid": uuid, "name": name, "mig": None, **figures}


def tell(path: Path, *gpus: dict[str, Any], **more: Any) -> None:
    """Write the file, whole at once."""
    fresh = path.with_suffix(".new")
    fresh.write_text(json.dumps({"gpus": gpus, **more}))
    fresh.rename(path)


def _told(function: str) -> list[dict[str, Any]]:
    told = json.loads(Path(os.environ[VARIABLE]).read_text())
    if function in told.get("hangs", ()):
        threading.Event().wait()
    if function in told.get("fails", {}):
        raise NVMLError(told["fails"][function])
    found: list[dict[str, Any]] = told["gpus"]
    return found


def _of(function: str, handle: Handle) -> dict[str, Any]:
    for one in _told(function):
        if one["uuid"] == handle.uuid:
            return one
        if handle.uuid in (one["mig"] or ()):
            return {**one, "uuid": handle.uuid, "mig": None}
    raise NVMLError(NVML_ERROR_NOT_FOUND)


def _figure(function: str, handle: Handle, key: str) -> Any:
    value = _of(function, handle).get(key)
    if value is None:
        raise NVMLError(NVML_ERROR_NOT_SUPPORTED)
    return value


def nvmlInit() -> None:
    _told("nvmlInit")


def nvmlShutdown() -> None:
    _told("nvmlShutdown")


def nvmlDeviceGetCount() -> int:
    return len(_told("nvmlDeviceGetCount"))


def nvmlDeviceGetHandleByIndex(index: int) -> Handle:
    return Handle(_told("nvmlDeviceGetHandleByIndex")[index]["uuid"])


def nvmlDeviceGetHandleByUUID(uuid: str) -> Handle:
    return Handle(_of("nvmlDeviceGetHandleByUUID", Handle(uuid))["uuid"])


def nvmlDeviceGetUUID(handle: Handle) -> str:
    return handle.uuid


def nvmlDeviceGetName(handle: Handle) -> str:
    return str(_of("nvmlDeviceGetName", handle)["name"])


def nvmlDeviceGetMigMode(device: Handle) -> list[int]:
    mode = int(_of("nvmlDeviceGetMigMode", device)["mig"] is not None)
    return [mode, mode]


def nvmlDeviceGetMaxMigDeviceCount(device: Handle) -> int:
    return 7


def nvmlDeviceGetMigDeviceHandleByIndex(device: Handle, index: int) -> Handle:
    parts = _of("nvmlDeviceGetMigDeviceHandleByIndex", device)["mig"]
    if index >= len(parts) or not parts[index]:
        raise NVMLError(NVML_ERROR_NOT_FOUND)
    return Handle(parts[index])


def nvmlDeviceGetMemoryInfo(handle: Handle, version: int | None = None) -> Memory:
    total = _figure("nvmlDeviceGetMemoryInfo", handle, "total")
    used = _figure("nvmlDeviceGetMemoryInfo", handle, "used")
    return Memory(total, total - used, used)


def nvmlDeviceGetUtilizationRates(handle: Handle) -> Utilization:
    return Utilization(_figure("nvmlDeviceGetUtilizationRates", handle, "utilization"), 0)


def nvmlDeviceGetPowerUsage(handle: Handle) -> int:
    return int(_figure("nvmlDeviceGetPowerUsage", handle, "power"))


def nvmlDeviceGetEnforcedPowerLimit(handle: Handle) -> int:
    return int(_figure("nvmlDeviceGetEnforcedPowerLimit", handle, "power_limit"))


def nvmlDeviceGetTotalEnergyConsumption(handle: Handle) -> int:
    return int(_figure("nvmlDeviceGetTotalEnergyConsumption", handle, "energy"))


def nvmlDeviceGetComputeRunningProcesses(handle: Handle) -> list[Process]:
    found = _figure("nvmlDeviceGetComputeRunningProcesses", handle, "processes")
    return [Process(int(pid), used) for pid, used in found.items()]
