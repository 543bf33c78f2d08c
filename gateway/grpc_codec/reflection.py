"""Answers to server reflection: the schemas of the served services, from our own pool. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from google.protobuf.message import DecodeError

from naiad.config.proto.model_config_pb2 import POOL
from naiad.gateway.grpc_codec.status import Status
from naiad.gateway.proto import reflection_pb2 as pb
from naiad.protocol.errors import RequestError

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
