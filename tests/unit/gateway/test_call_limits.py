"""What the messages of each method may be at most, and what is in settings and loads."""

from __future__ import annotations

import asyncio
import re
from typing import Any, cast

import pytest

from naiad.client.aio import AsyncClient
from naiad.gateway.access import Access
from naiad.gateway.grpc_many_requests import ManyRequestsCall
from naiad.gateway.grpc_server import REFLECTIONS_PER_STREAM_MAX, GrpcServer
from naiad.gateway.grpc_service import Caller, Service, any_call_of
from naiad.gateway.limits import Limits
from naiad.gateway.long_work import LongWork, Steps, T
from naiad.gateway.phase import Phase
from naiad.gateway.plane import Plane
from naiad.gateway.proto import inference_pb2 as pb
from naiad.gateway.proto import reflection_pb2
from naiad.protocol.errors import RequestError

LIMITS = Limits(control_bytes_max=1000, body_bytes_max=2000, load_config_bytes_max=50)
ANYBODY = Caller(may_share_memory=True, may_manage=True)
SERVICE = "inference.GRPCInferenceService"
REFLECTIONS = ("grpc.reflection.v1alpha", "grpc.reflection.v1")


class Broker:
    """Answers every call with what log settings are, and keeps the loads."""

    def __init__(self) -> None:
        self.loads: list[str | None] = []
        self.calls = 0

    async def call(self, _: Any) -> dict[str, Any]:
        self.calls += 1
        return {"settings": {}}

    async def load(self, _: str, config: str | None) -> None:
        self.loads.append(config)


@pytest.fixture
def broker() -> Broker:
    return Broker()


@pytest.fixture
def plane(broker: Broker) -> Plane:
    return Plane(cast("AsyncClient", broker), LIMITS)


async def most(plane: Plane) -> dict[str, int]:
    """By path, of every method."""
    server = GrpcServer(plane, Phase(), Access(), [])
    return {path.decode(): one.message_bytes_max for path, one in server._methods.items()}


def test_only_inference_and_loads_have_large_messages(plane: Plane) -> None:
    found = asyncio.run(most(plane))
    large = {
        f"/{SERVICE}/{name}" for name in ("ModelInfer", "ModelStreamInfer", "RepositoryModelLoad")
    }
    assert {path for path, size in found.items() if size == 2000} == large
    assert {size for path, size in found.items() if path not in large} == {1000}
    others = ["/grpc.health.v1.Health/" + name for name in ("Check", "List", "Watch")]
    others += [f"/{package}.ServerReflection/ServerReflectionInfo" for package in REFLECTIONS]
    assert {f"/{SERVICE}/LogSettings", f"/{SERVICE}/ModelConfig", *others} < found.keys()


class Talk:
    """A stream of requests, of which one too many is never asked for."""

    def __init__(self, count: int) -> None:
        self._left = count
        self.answers = 0

    def __aiter__(self) -> Talk:
        return self

    async def __anext__(self) -> bytes:
        if not self._left:
            raise StopAsyncIteration
        self._left -= 1
        request = reflection_pb2.ServerReflectionRequest(list_services="*")
        data: bytes = request.SerializeToString()
        return data

    async def write(self, _: bytes) -> None:
        self.answers += 1


def test_a_stream_of_reflection_ends(plane: Plane) -> None:
    async def talked() -> int:
        server = GrpcServer(plane, Phase(), Access(), [])
        method = server.method(b"/grpc.reflection.v1.ServerReflection/ServerReflectionInfo")
        assert method is not None
        assert method.many is not None
        talk = Talk(REFLECTIONS_PER_STREAM_MAX + 5)
        await method.many(cast("ManyRequestsCall", talk))
        return talk.answers

    assert asyncio.run(talked()) == REFLECTIONS_PER_STREAM_MAX


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({f"s{number}": 1 for number in range(65)}, "65 log settings, expected at most 64"),
        ({"n" * 257: 1}, "at most 256 characters"),
        ({"log_file": "x" * 257}, "at most 256 characters"),
        ({"log_verbose_level": 2**63}, "expected an integer of 64 bits"),
        ({"log_verbose_level": -(2**63) - 1}, "expected an integer of 64 bits"),
        ({"log_info": None}, "expected a boolean, a number or a text"),
    ],
)
def test_log_settings_beyond_a_limit(
    plane: Plane, broker: Broker, changes: dict[str, Any], said: str
) -> None:
    with pytest.raises(RequestError, match=said):
        asyncio.run(plane.log_settings(changes))
    assert broker.calls == 0


def test_log_settings_at_their_limits(plane: Plane, broker: Broker) -> None:
    changes = {f"s{number}": 2**63 - 1 for number in range(62)}
    changes |= {"n" * 256: -(2**63)}
    assert asyncio.run(plane.log_settings({**changes, "log_file": "x" * 256})) == {}
    assert broker.calls == 1


@pytest.mark.parametrize(("count", "is_refused"), [(64, False), (65, True)])
def test_settings_without_values_count_too(
    plane: Plane, broker: Broker, count: int, is_refused: bool
) -> None:
    """Over gRPC one may have none: it changes nothing."""
    request = pb.LogSettingsRequest()
    for number in range(count):
        request.settings[f"s{number}"].SetInParent()
    asked = Service(plane, Phase()).log_settings(request.SerializeToString(), ANYBODY)
    if is_refused:
        with pytest.raises(RequestError, match="65 log settings, expected at most 64"):
            asyncio.run(asked)
    else:
        asyncio.run(asked)
    assert broker.calls == (not is_refused)


def test_the_configuration_of_a_load_has_a_limit(plane: Plane, broker: Broker) -> None:
    said = "Invalid config override: 51 bytes or more, expected at most 50"
    with pytest.raises(RequestError, match=re.escape(said)):
        asyncio.run(plane.load("m", {"config": "x" * 51}))
    asyncio.run(plane.load("m", {"config": "x" * 50}))
    asyncio.run(plane.load("m", {}))
    assert broker.loads == ["x" * 50, None]


class NotedWork(LongWork):
    """How many bytes were said to be worked on."""

    def __init__(self) -> None:
        super().__init__()
        self.sizes: list[int] = []

    async def run(self, size: int, steps: Steps[T]) -> T:
        self.sizes.append(size)
        return await super().run(size, steps)


@pytest.mark.parametrize(
    ("inputs", "raw_bytes", "is_light"),
    [(1, 10_000_000, True), (70, 1000, False), (70, 2**18, False)],
)
def test_what_is_read_in_steps_counts_without_raw_contents(
    inputs: int, raw_bytes: int, is_light: bool
) -> None:
    request = pb.ModelInferRequest(model_name="m")
    for number in range(inputs):
        request.inputs.add(name=f"{number}", datatype="UINT8", shape=[raw_bytes])
        request.raw_input_contents.append(bytes(raw_bytes))
    data = request.SerializeToString()
    del request.raw_input_contents[:]
    structure_bytes = request.ByteSize()
    work = NotedWork()
    call = asyncio.run(any_call_of(data, ANYBODY, work))
    assert len(call.inputs) == inputs
    # What is only looked for, and then what is read.
    assert work.sizes == ([] if is_light else [0, pytest.approx(structure_bytes, rel=0.3)])
