"""Both packages of server reflection list every service, and describe it."""

from __future__ import annotations

from typing import Any

import pytest
from google.protobuf.descriptor_pool import DescriptorPool
from grpc_reflection.v1alpha import reflection_pb2 as public

from naiad.config.proto.model_config_pb2 import POOL
from naiad.gateway.grpc_codec.reflection import OLD_SERVICE, SERVICE, reflected
from naiad.gateway.grpc_server import SERVED
from naiad.gateway.proto import reflection_pb2 as pb

METHODS = {
    "inference.GRPCInferenceService": 20,
    "grpc.health.v1.Health": 3,
    SERVICE: 1,
    OLD_SERVICE: 1,
}


def asked(**fields: str) -> Any:
    request = pb.ServerReflectionRequest(**fields).SerializeToString()
    return pb.ServerReflectionResponse.FromString(reflected(request, SERVED))


def test_every_service_is_listed() -> None:
    listed = [one.name for one in asked(list_services="*").list_services_response.service]
    assert sorted(listed) == sorted(METHODS)


@pytest.mark.parametrize("name", METHODS)
def test_what_is_listed_is_described(name: str) -> None:
    files = asked(file_containing_symbol=name).file_descriptor_response.file_descriptor_proto
    pool = DescriptorPool()
    for file in reversed(files):
        pool.AddSerializedFile(file)
    assert len(pool.FindServiceByName(name).methods) == METHODS[name]


def test_the_older_package_is_the_public_one() -> None:
    ours = POOL.FindServiceByName(OLD_SERVICE).methods_by_name["ServerReflectionInfo"]
    theirs = public.DESCRIPTOR.services_by_name["ServerReflection"].methods[0]
    for one in ("input_type", "output_type"):
        assert fields(getattr(ours, one)) == fields(getattr(theirs, one))


def fields(message: Any) -> list[Any]:
    """Those of a message, and of all messages in it, with their full names."""
    found: list[Any] = [message.full_name]
    for field in sorted(message.fields, key=lambda one: one.number):
        found.append((field.name, field.number, field.type, field.is_repeated))
        if field.message_type is not None:
            found += fields(field.message_type)
    return found
