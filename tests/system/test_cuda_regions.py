"""GPU memory of clients through whole servers, over the fake CUDA: memory that this process
exports, registered by stock clients, opened by real workers."""

from __future__ import annotations

import asyncio
import base64
import ctypes
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tritonclient import grpc, http
from tritonclient.utils import InferenceServerException

from naiad.client import AsyncClient, Client, DeviceArray, RequestError, Unavailable
from naiad.shm.cuda.errors import DRIVER_MODULE, RUNTIME_MODULE
from naiad.testing.server import Server, serve
from support import fake_cuda_driver, fake_cuda_ipc
from support.fake_cupy import Interfaced, values
from support.fake_streams import Threads
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
        self.handle = self.cuda.memory_handle(self.address, 0)

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
    arguments = ["--http-port", "0", "--grpc-port", "0", "--gpus", "GPU-00"]
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
    device = fake_cuda_ipc.reset(Threads())
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
print(cuda.memory_handle(address, 0).hex(), flush=True)
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


# --- naiad's own clients -----------------------------------------------------------------------


@pytest.fixture
def cuda(memory: DeviceMemory, monkeypatch: pytest.MonkeyPatch) -> None:
    """The fake is what this process finds as well."""
    monkeypatch.setitem(sys.modules, RUNTIME_MODULE, fake_cuda_ipc)
    monkeypatch.setitem(sys.modules, DRIVER_MODULE, fake_cuda_driver)


@pytest.fixture
def client(server: Server, cuda: None) -> Iterator[Client]:
    with Client(server.run_dir) as client:
        yield client


def mapped_by(server: Server) -> set[str]:
    """Names of the fake's device memory that processes of the server have open."""
    found = set()
    for pid in server.pids.values():
        with suppress(OSError):
            maps = Path(f"/proc/{pid}/maps").read_text()
            found |= {line.rpartition("/")[2] for line in maps.splitlines() if "/device/" in line}
    return found


def test_arrays_of_other_libraries_are_shared_and_come_back(server: Server, client: Client) -> None:
    array = Interfaced(VALUES, offset=100)
    region = client.attach_cuda(array)
    assert region.array is array
    outputs = client.cuda_region(256)
    result = client.infer("echo", [region.input("INPUT0")], {"OUTPUT0": outputs.place(64)})
    found: Any = result["OUTPUT0"]
    assert isinstance(found, DeviceArray)
    assert (found.shape, found.address - outputs.memory.address) == ((16,), 64)
    np.testing.assert_array_equal(values(found), VALUES)
    np.testing.assert_array_equal(values(outputs.tensor("FP32", (16,), 64)), VALUES)
    with pytest.raises(RequestError, match="lies in GPU memory and has no bytes here"):
        _ = result.outputs
    again = client.infer("echo", [region.input("INPUT0", "FP32", (4,), 16)])
    np.testing.assert_array_equal(again["OUTPUT0"], VALUES[4:8])
    assert len(mapped_by(server)) == 2
    client.detach(region)
    assert len(mapped_by(server)) == 1
    client.detach(outputs)
    assert mapped_by(server) == set()
    with pytest.raises(RequestError, match="is not registered by this client"):
        client.infer("echo", [region.input("INPUT0")])


def test_workers_wait_for_the_event_of_who_writes(server: Server, client: Client) -> None:
    region = client.cuda_region(64, event=True)
    stream = fake_cuda_ipc.cudaStreamCreateWithPriority(1, 0)[1]
    may_write = threading.Event()

    def kernel() -> None:
        assert may_write.wait(30)
        ctypes.memmove(region.memory.address, BYTES, 64)

    stream.add(kernel)
    region.written(int(stream))
    pending = client.submit("echo", [region.input("INPUT0", "FP32", (16,))])
    wait_until(lambda: bool(mapped_by(server)), "the worker at its input")
    assert not pending.done()
    may_write.set()
    np.testing.assert_array_equal(pending.result(30)["OUTPUT0"], VALUES)
    client.detach(region)


def test_without_an_event_written_waits_itself(client: Client) -> None:
    region = client.cuda_region(64)
    stream = fake_cuda_ipc.cudaStreamCreateWithPriority(1, 0)[1]
    stream.add(lambda: ctypes.memmove(region.memory.address, BYTES, 64))
    region.written(int(stream))
    np.testing.assert_array_equal(values(region.tensor("FP32", (16,))), VALUES)


def test_the_asyncio_client_shares_arrays_too(server: Server, cuda: None) -> None:
    async def asked() -> Any:
        async with AsyncClient(server.run_dir) as client:
            region = await client.attach_cuda(Interfaced(VALUES))
            outputs = await client.cuda_region(64, event=True)
            place = {"OUTPUT0": outputs.place()}
            result = await client.infer("echo", [region.input("INPUT0")], place)
            found = values(result["OUTPUT0"])
            await client.detach(region)
            await client.detach(outputs)
            return found

    np.testing.assert_array_equal(asyncio.run(asked()), VALUES)
    assert mapped_by(server) == set()


NATIVE = """
import sys
from naiad.shm.cuda.errors import DRIVER_MODULE, RUNTIME_MODULE
from support import fake_cuda_driver, fake_cuda_ipc
sys.modules[RUNTIME_MODULE], sys.modules[DRIVER_MODULE] = fake_cuda_ipc, fake_cuda_driver
from naiad.client import Client
client = Client(sys.argv[1])
region = client.cuda_region(4096)
client.infer("echo", [region.input("INPUT0", "FP32", (16,))])
print("answered", flush=True)
sys.stdin.read()
"""


def test_memory_of_a_killed_client_is_closed(server: Server, cuda: None) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", NATIVE, str(server.run_dir)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    ) as owner:
        assert owner.stdout is not None
        assert owner.stdout.readline() == b"answered\n"
        assert len(mapped_by(server)) == 1
        owner.kill()
    wait_until(lambda: not mapped_by(server), "its memory closed")


def test_what_there_is_not_is_refused(client: Client) -> None:
    for refused, text in (
        (lambda: client.cuda_region(0), "size of a region"),
        (lambda: client.cuda_region(64, 1), "number of a GPU, 0 to 0"),
        (lambda: client.attach_cuda(VALUES), "ordinary memory are given by name"),
        (lambda: client.attach_cuda(Interfaced(np.empty(0, np.float32))), "no memory to share"),
        (lambda: client.cuda_region(64).place(1, 64), "do not fit a region of 64 bytes"),
        (lambda: client.cuda_region(64).input("x"), "expected a datatype and a shape"),
    ):
        with pytest.raises(RequestError, match=text):
            refused()
    with pytest.raises(Unavailable, match="no GPU memory of"):
        client.cuda_region(1 << 40)
    array = Interfaced(VALUES)
    array.__cuda_array_interface__["data"] = (array.address, True)
    read_only = client.attach_cuda(array)
    with pytest.raises(RequestError, match="this one is read-only"):
        read_only.place()


TELLS_ITS_GPU = """
import os
import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        answer = np.array([os.environ["CUDA_VISIBLE_DEVICES"].encode()], dtype=object)
        return [pb_utils.InferenceResponse([pb_utils.Tensor("y", answer)]) for _ in requests]
"""


def test_a_request_goes_to_the_gpu_where_its_memory_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = tmp_path / "models" / "where"
    (model / "1").mkdir(parents=True)
    (model / "1" / "model.py").write_text(TELLS_ITS_GPU)
    (model / "config.pbtxt").write_text(
        'backend: "python" input { name: "x" data_type: TYPE_FP32 dims: -1 } '
        'output { name: "y" data_type: TYPE_STRING dims: 1 } '
        "instance_group { kind: KIND_GPU gpus: [ 0, 1 ] }"
    )
    gpus = ["GPU-a", "GPU-b"]
    arguments = ["--http-port", "0", "--gpus", ",".join(gpus)]
    environment = plant_cuda(tmp_path / "planted", tmp_path / "device")
    monkeypatch.setenv(fake_cuda_ipc.FOLDER, str(tmp_path / "device"))
    device = fake_cuda_ipc.reset(Threads())
    memory = DeviceMemory()
    with serve(model.parent, arguments=arguments, environment=environment) as server:
        with server.client() as client:
            wait_until(
                lambda: client.status()["models"][0]["instances_ready"] == 2, "both instances"
            )
        with http.InferenceServerClient(server.http_url.removeprefix("http://")) as stock:
            for number, gpu in enumerate([*gpus, *gpus]):
                name = f"on-{number}"
                register(stock, name, memory.handle, device=number % 2)
                source = http.InferInput("x", [16], "FP32")
                source.set_shared_memory(name, len(BYTES))
                answer = stock.infer("where", [source])
                assert answer.as_numpy("y").tolist() == [gpu.encode()]
        # A client whose GPU 0 is the server's GPU 1, and one whose GPU is none of the server's.
        monkeypatch.setitem(sys.modules, RUNTIME_MODULE, fake_cuda_ipc)
        monkeypatch.setitem(sys.modules, DRIVER_MODULE, fake_cuda_driver)
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-b")
        with server.client() as client:
            region = client.cuda_region(64)
            assert region.device == 0
            answer = client.infer("where", [region.input("x", "FP32", (16,))])
            assert answer["y"].tolist() == [b"GPU-b"]
            monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-c")
            with pytest.raises(RequestError, match="this server's: 0 GPU-a, 1 GPU-b"):
                client.cuda_region(64)
    device.close()
