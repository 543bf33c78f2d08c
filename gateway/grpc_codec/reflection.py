"""Answers to server reflection: the schemas of the served services, from our own pool. Pure.

Reflection itself has two packages with the same messages. Tools ask for the older one too, and for
the schema of what they were told of.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from google.protobuf.descriptor_pb2 import FileDescriptorProto
from google.protobuf.message import DecodeError

from naiad.config.proto.model_config_pb2 import POOL
from naiad.gateway.grpc_codec.status import Status
from naiad.gateway.proto import reflection_pb2 as pb
from naiad.protocol.errors import RequestError

PACKAGE: Final = "grpc.reflection.v1"
OLD_PACKAGE: Final = "grpc.reflection.v1alpha"
SERVICE: Final = f"{PACKAGE}.ServerReflection"
OLD_SERVICE: Final = f"{OLD_PACKAGE}.ServerReflection"

_NO_EXTENSIONS: Final = "proto3 messages have no extensions"


def reflected(data: bytes, services: Sequence[str]) -> bytes:
    """The answer to one ServerReflectionRequest; `services` are what is served, by full name."""
    try:
        request = pb.ServerReflectionRequest.FromString(data)
    except DecodeError as fault:
        raise RequestError("the request is not a ServerReflectionRequest") from fault
    response = pb.ServerReflectionResponse(valid_host=request.host, original_request=request)
    asked = request.WhichOneof("message_request")
    if asked == "list_services":
        for name in services:
            response.list_services_response.service.add(name=name)
    elif asked == "file_by_filename":
        _describe(response, lambda: POOL.FindFileByName(request.file_by_filename))
    elif asked == "file_containing_symbol":
        symbol = request.file_containing_symbol
        _describe(response, lambda: POOL.FindFileContainingSymbol(symbol))
    elif asked is None:
        _refuse(response, Status.INVALID_ARGUMENT, "a reflection request that asks for nothing")
    else:
        _refuse(response, Status.NOT_FOUND, _NO_EXTENSIONS)
    serialised: bytes = response.SerializeToString()
    return serialised


def _describe(response: Any, find: Any) -> None:
    try:
        file = find()
    except KeyError as fault:
        _refuse(response, Status.NOT_FOUND, f"not described here: {fault}")
        return
    descriptions = response.file_descriptor_response.file_descriptor_proto
    seen: set[str] = set()
    waiting = [file]
    while waiting:
        one = waiting.pop(0)
        if one.name not in seen:
            seen.add(one.name)
            descriptions.append(one.serialized_pb)
            waiting += one.dependencies


def _refuse(response: Any, status: Status, message: str) -> None:
    response.error_response.error_code = int(status)
    response.error_response.error_message = message


def _old_file() -> bytes:
    """The same schema in the older package."""
    file = FileDescriptorProto.FromString(pb.DESCRIPTOR_BYTES)
    file.name = file.name.replace(".proto", "_v1alpha.proto")
    file.package = OLD_PACKAGE
    for message in file.message_type:
        for field in message.field:
            if field.type_name:  # which is not there, rather than empty, for a number
                field.type_name = _renamed(field.type_name)
    for method in file.service[0].method:
        method.input_type = _renamed(method.input_type)
        method.output_type = _renamed(method.output_type)
    return file.SerializeToString()


def _renamed(name: str) -> str:
    return name.replace(f".{PACKAGE}.", f".{OLD_PACKAGE}.")


POOL.AddSerializedFile(_old_file())
