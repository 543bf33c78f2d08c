"""Generated from health.proto by scripts/generate_protos; do not edit.

These messages share the pool of ModelConfig, which only naiad uses, so that packages with the same
message names (tritonclient) can be imported in the same process.
"""

from __future__ import annotations

from typing import Any

from google.protobuf import message_factory

from naiad.config.proto.model_config_pb2 import POOL

DESCRIPTOR_BYTES = (
    b'\n naiad/gateway/proto/health.proto\x12\x0egrpc.health.v1".\n\x12HealthChec'
    b'kRequest\x12\x18\n\x07service\x18\x01 \x01(\tR\x07service"\xb1\x01\n\x13HealthCheckResponse\x12I\n\x06st'
    b'atus\x18\x01 \x01(\x0e21.grpc.health.v1.HealthCheckResponse.ServingStatusR\x06s'
    b'tatus"O\n\rServingStatus\x12\x0b\n\x07UNKNOWN\x10\x00\x12\x0b\n\x07SERVING\x10\x01\x12\x0f\n\x0bNOT_SERVING\x10'
    b'\x02\x12\x13\n\x0fSERVICE_UNKNOWN\x10\x03"\x13\n\x11HealthListRequest"\xc4\x01\n\x12HealthListRespon'
    b'se\x12L\n\x08statuses\x18\x01 \x03(\x0b20.grpc.health.v1.HealthListResponse.Statuse'
    b'sEntryR\x08statuses\x1a`\n\rStatusesEntry\x12\x10\n\x03key\x18\x01 \x01(\tR\x03key\x129\n\x05value\x18\x02 \x01'
    b'(\x0b2#.grpc.health.v1.HealthCheckResponseR\x05value:\x028\x012\xfd\x01\n\x06Health\x12P\n'
    b'\x05Check\x12".grpc.health.v1.HealthCheckRequest\x1a#.grpc.health.v1.Heal'
    b'thCheckResponse\x12M\n\x04List\x12!.grpc.health.v1.HealthListRequest\x1a".grp'
    b'c.health.v1.HealthListResponse\x12R\n\x05Watch\x12".grpc.health.v1.HealthC'
    b'heckRequest\x1a#.grpc.health.v1.HealthCheckResponse0\x01b\x06proto3'
)

POOL.AddSerializedFile(DESCRIPTOR_BYTES)

HealthCheckRequest: Any = message_factory.GetMessageClass(
    POOL.FindMessageTypeByName("grpc.health.v1.HealthCheckRequest")
)

HealthCheckResponse: Any = message_factory.GetMessageClass(
    POOL.FindMessageTypeByName("grpc.health.v1.HealthCheckResponse")
)

HealthListRequest: Any = message_factory.GetMessageClass(
    POOL.FindMessageTypeByName("grpc.health.v1.HealthListRequest")
)

HealthListResponse: Any = message_factory.GetMessageClass(
    POOL.FindMessageTypeByName("grpc.health.v1.HealthListResponse")
)
