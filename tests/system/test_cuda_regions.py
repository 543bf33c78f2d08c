"""GPU memory of clients through whole servers, over the fake CUDA: memory that this process
exports, registered by stock clients, opened by real workers."""

from __future__ import annotations

import base64
import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tritonclient import grpc, http
from tritonclient.utils import InferenceServerException

from naiad.testing.server import Server, serve
from support import fake_cuda_ipc
from support.front_door import Door, Given, GrpcDoor, HttpDoor, Refused, Shared
from support.models import add_echo
from support.planted import plant_cuda
from support.waiting import wait_until

SIZE = 4096
VALUES = np.arange(16, dtype="<f4")
BYTES = VALUES.tobytes()


class DeviceMemory:
    """`SIZE` bytes on the fake GPU, exported by this process."""

    def __init__(self) -> None:
        self.cuda = fake_cuda_ipc.loaded()
        self.address = self.cuda.allocate(SIZE, 0)
        self.handle = self.cuda.memory_handle(self.address)

    def write(self, offset: int, content: bytes) -> None:
        ctypes.memmove(self.address + offset, content, len(content))

    def read(self, offset: int, size: int) -> bytes:
        return ctypes.string_at(self.address + offset, size)


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cuda") / "device"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, shared: Path) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("served")
    repository = folder / "models"
    repository.mkdir()
    add_echo(repository, "echo", "FP32 -1")
    arguments = ["--http-port", "0", "--grpc-port", "0", "--gpus", "GPU-fake"]
    environment = plant_cuda(folder / "planted", shared)
    with serve(repository, arguments=arguments, environment=environment) as server:
        yield server


@pytest.fixture(params=[HttpDoor, GrpcDoor])
def door(server: Server, request: pytest.FixtureRequest) -> Iterator[Any]:
    door = request.param(server)
    yield door
    if hasattr(door, "close"):
        door.close()


@pytest.fixture
def stock(server: Server, door: Door) -> Iterator[Any]:
    """Triton's own client, of the same kind as the door."""
    if door.name == "http":
        client: Any = http.InferenceServerClient(server.http_url.removeprefix("http://"))
    else:
        client = grpc.InferenceServerClient(server.grpc_target)
    yield client
    client.unregister_cuda_shared_memory()
    client.close()


@pytest.fixture
def memory(shared: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[DeviceMemory]:
    monkeypatch.setenv(fake_cuda_ipc.FOLDER, str(shared))
    device = fake_cuda_ipc.reset()
    yield DeviceMemory()
    device.close()


def register(stock: Any, name: str, handle: bytes, *, device: int = 0, size: int = SIZE) -> None:
    """As cuda_shared_memory.get_raw_handle gives it: in base64."""
    encoded: Any = base64.b64encode(handle)
    if isinstance(stock, http.InferenceServerClient):
        encoded = encoded.decode()
    stock.register_cuda_shared_memory(name, encoded, device, size)


def regions(stock: Any) -> dict[str, tuple[int, int]]:
    """(device, size) by name."""
    found = stock.get_cuda_shared_memory_status()
    if isinstance(found, list):
        return {one["name"]: (one["device_id"], one["byte_size"]) for one in found}
    return {name: (int(one.device_id), int(one.byte_size)) for name, one in found.regions.items()}


def echo(door: Door, offset: int = 0, to: int | None = None, region: str = "g") -> Any:
    given = [Given("INPUT0", "FP32", [16], Shared(region, 64, offset))]
    wanted = [] if to is None else [("OUTPUT0", Shared(region, 64, to))]
    return door.infer("echo", given, wanted)["OUTPUT0"]


def test_tensors_are_read_and_written_in_gpu_memory(
    door: Door, stock: Any, memory: DeviceMemory
) -> None:
    register(stock, "g", memory.handle)
    assert regions(stock) == {"g": (0, SIZE)}
    memory.write(12, BYTES)
    assert echo(door, 12).data == BYTES
    before = memory.read(0, SIZE)
    assert echo(door, 12, 1001).data == b""
    assert memory.read(1001, 64) == BYTES
    assert memory.read(0, 1001) + memory.read(1065, SIZE - 1065) == before[:1001] + before[1065:]
    stock.unregister_cuda_shared_memory("g")
    assert regions(stock) == {}
    with pytest.raises(Refused, match="Unable to find shared memory region: 'g'"):
        echo(door)


@pytest.mark.parametrize(
    ("offset", "text"),
    [
        (SIZE, "Invalid offset"),
        (SIZE - 63, "Invalid offset . byte size"),
        (2**62, "Invalid offset"),
    ],
)
def test_ranges_outside_are_refused(
    door: Door, stock: Any, memory: DeviceMemory, offset: int, text: str
) -> None:
    register(stock, "g", memory.handle)
    for place in ((offset, None), (0, offset)):
        with pytest.raises(Refused, match=text) as caught:
            echo(door, *place)
        assert caught.value.code == "INVALID_ARGUMENT"


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"handle": bytes(63)}, "cudaIpcMemHandle_t"),
        ({"handle": b""}, "cudaIpcMemHandle_t"),
        ({"device": 1}, "there is no GPU 1"),
        ({"device": -1}, "device_id|invalid args"),
        ({"size": 0}, "invalid args"),
        ({"size": 2**63}, "invalid args"),
    ],
)
def test_wrong_registrations_are_refused(
    stock: Any, memory: DeviceMemory, fields: dict[str, Any], text: str
) -> None:
    with pytest.raises(InferenceServerException, match=text):
        register(stock, "bad", **{"handle": memory.handle, **fields})
    assert regions(stock) == {}


def test_a_name_is_registered_once_and_of_one_kind(stock: Any, memory: DeviceMemory) -> None:
    register(stock, "g", memory.handle)
    with pytest.raises(InferenceServerException, match="'g' already in manager"):
        register(stock, "g", memory.handle)
    with pytest.raises(InferenceServerException, match="'g' is registered as CUDA shared memory"):
        stock.get_system_shared_memory_status("g")
    stock.unregister_system_shared_memory()
    assert set(regions(stock)) == {"g"}


EXPORTER = """
import sys
from support import fake_cuda_ipc
cuda = fake_cuda_ipc.loaded()
address = cuda.allocate(4096, 0)
print(cuda.memory_handle(address).hex(), flush=True)
sys.stdin.read()
"""


def test_a_handle_of_a_dead_process_is_an_error_that_names_the_region(
    door: Door, stock: Any, memory: DeviceMemory
) -> None:
    path = os.pathsep.join(sys.path)
    with subprocess.Popen(
        [sys.executable, "-c", EXPORTER],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": path},
    ) as exporter:
        assert exporter.stdout is not None
        handle = bytes.fromhex(exporter.stdout.readline().decode())
        exporter.kill()
        exporter.wait()
    register(stock, "gone", handle)
    with pytest.raises(
        Refused, match="CUDA shared memory region 'gone' cannot be opened"
    ) as caught:
        echo(door, region="gone")
    assert caught.value.code == "INVALID_ARGUMENT"
    assert handle.hex()[:32] not in caught.value.text
    stock.unregister_cuda_shared_memory("gone")


def test_registrations_survive_gateways_workers_and_brokers(
    server: Server, memory: DeviceMemory
) -> None:
    with http.InferenceServerClient(server.http_url.removeprefix("http://")) as stock:
        register(stock, "g", memory.handle)
    memory.write(0, BYTES)
    for victim in ("cpu-0", "gateway-0", "broker"):
        pids = server.pids
        slot = victim if victim in pids else next(name for name in pids if name.startswith("cpu-"))
        os.kill(pids[slot], signal.SIGKILL)
        gone = partial(is_gone, server, pids[slot])
        wait_until(gone, f"{slot} replaced")
        door = GrpcDoor(server)
        wait_until(partial(answered, door), f"an answer after {slot} died")
        door.close()
    with http.InferenceServerClient(server.http_url.removeprefix("http://")) as stock:
        assert regions(stock) == {"g": (0, SIZE)}
        stock.unregister_cuda_shared_memory()


def is_gone(server: Server, pid: int) -> bool:
    return pid not in server.pids.values()


def answered(door: Door) -> bool:
    try:
        return bool(echo(door, 0).data == BYTES)
    except Refused as refused:
        if refused.code != "UNAVAILABLE":
            raise
        return False
