"""HTTP and gRPC behind one set of calls, so that one test asks both; and each of them bare.

Requests are made by hand, not by a client library: what a library refuses to send is wanted here.
"""

from __future__ import annotations

import http.client
import json
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple, Protocol
from urllib.parse import quote, urlsplit

import grpc
from tritonclient.grpc import service_pb2, service_pb2_grpc

from naiad.testing.server import Server

ANSWER_SECONDS: Final = 20.0
LENGTH: Final = "Inference-Header-Content-Length"
CODE_OF: Final = {
    400: "INVALID_ARGUMENT",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    413: "RESOURCE_EXHAUSTED",
    429: "RESOURCE_EXHAUSTED",
    500: "INTERNAL",
    501: "UNIMPLEMENTED",
    503: "UNAVAILABLE",
}
"""What gRPC calls it."""


class Refused(Exception):
    """An answer that is an error: its code in gRPC's words, and its text."""

    def __init__(self, code: str, text: str) -> None:
        super().__init__(f"{code}: {text}")
        self.code = code
        self.text = text


class Shared(NamedTuple):
    """Where a tensor lies instead of in the message."""

    region: str
    byte_size: int
    offset: int = 0


class Given(NamedTuple):
    """A tensor: bytes as they travel, or a place."""

    name: str
    datatype: str
    shape: Sequence[int]
    data: bytes | Shared


class Got(NamedTuple):
    """A tensor of an answer; no bytes when they were written to a place."""

    datatype: str
    shape: list[int]
    data: bytes


class Door(Protocol):
    """What both do. Everything may raise Refused."""

    name: str

    def infer(
        self,
        model: str,
        inputs: Sequence[Given],
        outputs: Sequence[str | tuple[str, Shared]] = (),
        *,
        version: str = "",
        parameters: Mapping[str, int | str] | None = None,
    ) -> dict[str, Got]: ...

    def is_live(self) -> bool: ...
    def is_ready(self) -> bool: ...
    def is_model_ready(self, model: str) -> bool: ...
    def index(self) -> dict[str, dict[str, str]]: ...
    def load(self, model: str, parameters: Mapping[str, str | bytes] | None = None) -> None: ...
    def unload(self, model: str) -> None: ...
    def register(self, region: str, key: str, byte_size: int, offset: int = 0) -> None: ...
    def unregister(self, region: str = "") -> None: ...
    def regions(self) -> set[str]: ...


class Reply(NamedTuple):
    """An HTTP answer as it came; `json` is None when it is none."""

    status: int
    body: bytes
    headers: dict[str, str]

    @property
    def json(self) -> Any:
        try:
            return json.loads(self.body)
        except ValueError:
            return None

    @property
    def error(self) -> str:
        return str(self.json["error"])


class HttpDoor:
    """Over HTTP, a connection for each request; `call` sends anything."""

    name = "http"

    def __init__(self, server: Server) -> None:
        place = urlsplit(server.http_url)
        self.address = (str(place.hostname), int(place.port or 80))

    def call(
        self,
        verb: str,
        path: str,
        body: bytes | dict[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Reply:
        if isinstance(body, dict):
            body = json.dumps(body).encode()
        connection = http.client.HTTPConnection(*self.address, timeout=ANSWER_SECONDS)
        try:
            connection.request(verb, path, body, dict(headers or {}))
            answer = connection.getresponse()
            found = {name.lower(): value for name, value in answer.getheaders()}
            return Reply(answer.status, answer.read(), found)
        finally:
            connection.close()

    def ask(self, verb: str, path: str, body: dict[str, Any] | None = None) -> Any:
        """The JSON of an answer that is no error."""
        return checked(self.call(verb, path, body)).json

    def infer(
        self,
        model: str,
        inputs: Sequence[Given],
        outputs: Sequence[str | tuple[str, Shared]] = (),
        *,
        version: str = "",
        parameters: Mapping[str, int | str] | None = None,
    ) -> dict[str, Got]:
        text, blobs = binary_request(inputs, outputs, parameters)
        middle = f"/versions/{version}" if version else ""
        path = f"/v2/models/{quote(model, safe='')}{middle}/infer"
        return tensors_of(self.call("POST", path, text + blobs, {LENGTH: str(len(text))}))

    def is_live(self) -> bool:
        return self.call("GET", "/v2/health/live").status == 200

    def is_ready(self) -> bool:
        return self.call("GET", "/v2/health/ready").status == 200

    def is_model_ready(self, model: str) -> bool:
        return self.call("GET", f"/v2/models/{quote(model, safe='')}/ready").status == 200

    def index(self) -> dict[str, dict[str, str]]:
        rows = self.ask("POST", "/v2/repository/index")
        return {row["name"]: row for row in rows}

    def load(self, model: str, parameters: Mapping[str, str | bytes] | None = None) -> None:
        texts = {
            key: value if isinstance(value, str) else value.decode()
            for key, value in (parameters or {}).items()
        }
        path = f"/v2/repository/models/{quote(model, safe='')}/load"
        self.ask("POST", path, {"parameters": texts})

    def unload(self, model: str) -> None:
        self.ask("POST", f"/v2/repository/models/{quote(model, safe='')}/unload")

    def register(self, region: str, key: str, byte_size: int, offset: int = 0) -> None:
        body = {"key": key, "byte_size": byte_size, "offset": offset}
        self.ask("POST", f"/v2/systemsharedmemory/region/{region}/register", body)

    def unregister(self, region: str = "") -> None:
        middle = f"region/{region}/" if region else ""
        self.ask("POST", f"/v2/systemsharedmemory/{middle}unregister")

    def regions(self) -> set[str]:
        return {row["name"] for row in self.ask("GET", "/v2/systemsharedmemory/status")}


def checked(reply: Reply) -> Reply:
    if reply.status != 200:
        raise Refused(CODE_OF.get(reply.status, str(reply.status)), reply.error)
    return reply


def binary_request(
    inputs: Sequence[Given],
    outputs: Sequence[str | tuple[str, Shared]] = (),
    parameters: Mapping[str, int | str] | None = None,
) -> tuple[bytes, bytes]:
    """The JSON, and the tensors that follow it."""
    request: dict[str, Any] = {"inputs": [_http_input(one) for one in inputs]}
    request["parameters"] = {"binary_data_output": True, **(parameters or {})}
    if outputs:
        request["outputs"] = [_http_output(one) for one in outputs]
    blobs = b"".join(one.data for one in inputs if isinstance(one.data, bytes))
    return json.dumps(request).encode(), blobs


def _http_input(one: Given) -> dict[str, Any]:
    if isinstance(one.data, Shared):
        parameters = _shared(one.data)
    else:
        parameters = {"binary_data_size": len(one.data)}
    named = {"name": one.name, "datatype": one.datatype, "shape": list(one.shape)}
    return {**named, "parameters": parameters}


def _http_output(one: str | tuple[str, Shared]) -> dict[str, Any]:
    if isinstance(one, str):
        return {"name": one, "parameters": {"binary_data": True}}
    return {"name": one[0], "parameters": _shared(one[1])}


def _shared(place: Shared) -> dict[str, Any]:
    return {
        "shared_memory_region": place.region,
        "shared_memory_byte_size": place.byte_size,
        "shared_memory_offset": place.offset,
    }


def tensors_of(reply: Reply) -> dict[str, Got]:
    """The outputs of an answer with binary tensors behind its JSON."""
    checked(reply)
    end = int(reply.headers.get(LENGTH.lower(), len(reply.body)))
    found, place = {}, end
    for one in json.loads(reply.body[:end])["outputs"]:
        size = one.get("parameters", {}).get("binary_data_size", 0)
        found[one["name"]] = Got(one["datatype"], one["shape"], reply.body[place : place + size])
        place += size
    assert place == len(reply.body), "bytes behind the last tensor"
    return found


class GrpcDoor:
    """Over gRPC, one channel; `stub` has every method."""

    name = "grpc"

    def __init__(self, server: Server) -> None:
        self.target = server.grpc_target
        unlimited = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
        self.channel = grpc.insecure_channel(self.target, unlimited)
        self.stub: Any = service_pb2_grpc.GRPCInferenceServiceStub(self.channel)

    def close(self) -> None:
        self.channel.close()

    def ask(self, method: str, request: Any = None, **fields: Any) -> Any:
        """The answer to a message, or to one of the method's kind with these fields."""
        message = getattr(service_pb2, f"{method}Request")(**fields) if request is None else request
        try:
            return getattr(self.stub, method)(message, timeout=ANSWER_SECONDS)
        except grpc.RpcError as raised:
            fault: Any = raised
            raise Refused(fault.code().name, fault.details()) from None

    def infer(
        self,
        model: str,
        inputs: Sequence[Given],
        outputs: Sequence[str | tuple[str, Shared]] = (),
        *,
        version: str = "",
        parameters: Mapping[str, int | str] | None = None,
    ) -> dict[str, Got]:
        message = grpc_request(model, inputs, outputs, version=version, parameters=parameters)
        return grpc_tensors(self.ask("ModelInfer", message))

    def is_live(self) -> bool:
        return bool(self.ask("ServerLive").live)

    def is_ready(self) -> bool:
        return bool(self.ask("ServerReady").ready)

    def is_model_ready(self, model: str) -> bool:
        try:
            return bool(self.ask("ModelReady", name=model).ready)
        except Refused as refused:
            if refused.code != "NOT_FOUND":
                raise
            return False

    def index(self) -> dict[str, dict[str, str]]:
        rows = self.ask("RepositoryIndex").models
        return {
            row.name: {"name": row.name, "state": row.state, "reason": row.reason} for row in rows
        }

    def load(self, model: str, parameters: Mapping[str, str | bytes] | None = None) -> None:
        message = service_pb2.RepositoryModelLoadRequest(model_name=model)
        for key, value in (parameters or {}).items():
            if isinstance(value, bytes):
                message.parameters[key].bytes_param = value
            else:
                message.parameters[key].string_param = value
        self.ask("RepositoryModelLoad", message)

    def unload(self, model: str) -> None:
        self.ask("RepositoryModelUnload", model_name=model)

    def register(self, region: str, key: str, byte_size: int, offset: int = 0) -> None:
        fields = {"key": key, "byte_size": byte_size, "offset": offset}
        self.ask("SystemSharedMemoryRegister", name=region, **fields)

    def unregister(self, region: str = "") -> None:
        self.ask("SystemSharedMemoryUnregister", name=region)

    def regions(self) -> set[str]:
        return set(self.ask("SystemSharedMemoryStatus").regions)


def grpc_request(
    model: str,
    inputs: Sequence[Given],
    outputs: Sequence[str | tuple[str, Shared]] = (),
    *,
    version: str = "",
    parameters: Mapping[str, int | str] | None = None,
) -> Any:
    """A message with raw contents."""
    message = service_pb2.ModelInferRequest(model_name=model, model_version=version)
    for one in inputs:
        tensor = message.inputs.add(name=one.name, datatype=one.datatype, shape=one.shape)
        if isinstance(one.data, Shared):
            _place(tensor, one.data)
        else:
            message.raw_input_contents.append(one.data)
    for wanted in outputs:
        if isinstance(wanted, str):
            message.outputs.add(name=wanted)
        else:
            _place(message.outputs.add(name=wanted[0]), wanted[1])
    for key, value in (parameters or {}).items():
        if isinstance(value, str):
            message.parameters[key].string_param = value
        else:
            message.parameters[key].int64_param = value
    return message


def _place(tensor: Any, place: Shared) -> None:
    tensor.parameters["shared_memory_region"].string_param = place.region
    tensor.parameters["shared_memory_byte_size"].int64_param = place.byte_size
    tensor.parameters["shared_memory_offset"].int64_param = place.offset


def grpc_tensors(answer: Any) -> dict[str, Got]:
    return {
        one.name: Got(one.datatype, list(one.shape), raw)
        for one, raw in zip(answer.outputs, answer.raw_output_contents, strict=True)
    }
