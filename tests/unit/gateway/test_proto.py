"""The schemas against those that stock clients and tools were generated from: the same wire."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import descriptor_pb2, descriptor_pool
from grpc_health.v1 import health_pb2 as public_health
from grpc_reflection.v1alpha import reflection_pb2 as public_reflection
from tritonclient.grpc import model_config_pb2 as public_model_config
from tritonclient.grpc import service_pb2 as public_inference

from naiad.config.proto import model_config_pb2
from naiad.gateway.proto import health_pb2, inference_pb2, reflection_pb2

ROOT = Path(__file__).resolve().parents[3]


def test_the_committed_files_are_what_the_schemas_compile_to() -> None:
    command = [sys.executable, str(ROOT / "scripts" / "generate_protos"), "--check"]

    assert subprocess.run(command, check=False).returncode == 0


def schema(descriptor_bytes: bytes, *, package: str | None = None) -> str:
    """Everything that decides about bytes, and every name; not the order in which it is written."""
    file = descriptor_pb2.FileDescriptorProto.FromString(descriptor_bytes)
    for irrelevant in ("name", "dependency", "options", "source_code_info"):
        file.ClearField(irrelevant)
    _sort(file.message_type)
    _sort(file.enum_type)
    _sort(file.service)
    for service in file.service:
        _sort(service.method)
        for method in service.method:
            method.ClearField("options")
    text = str(file)
    return text if package is None else text.replace(file.package, package)


def _sort(items: Any) -> None:
    items.sort(key=lambda one: one.name)
    for item in items:
        if isinstance(item, descriptor_pb2.DescriptorProto):
            item.field.sort(key=lambda field: field.number)
            for field in item.field:
                field.ClearField("json_name")
            _sort(item.nested_type)
            _sort(item.enum_type)


@pytest.mark.parametrize(
    ("ours", "public"),
    [
        (inference_pb2, public_inference),
        (model_config_pb2, public_model_config),
        (health_pb2, public_health),
    ],
    ids=["inference", "model_config", "health"],
)
def test_every_message_field_and_method_is_the_public_one(ours: Any, public: Any) -> None:
    assert schema(ours.DESCRIPTOR_BYTES) == schema(public.DESCRIPTOR.serialized_pb)


def test_reflection_has_the_messages_of_both_its_packages() -> None:
    older = schema(public_reflection.DESCRIPTOR.serialized_pb, package="grpc.reflection.v1")

    assert schema(reflection_pb2.DESCRIPTOR_BYTES) == older


def test_all_twenty_methods_are_there() -> None:
    service = model_config_pb2.POOL.FindServiceByName("inference.GRPCInferenceService")

    assert len(service.methods) == 20


def test_the_default_pool_knows_nothing_of_them() -> None:
    for name in ("inference", "health", "reflection"):
        with pytest.raises(KeyError):
            descriptor_pool.Default().FindFileByName(f"naiad/gateway/proto/{name}.proto")
