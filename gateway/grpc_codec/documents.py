"""What the broker tells as JSON, as messages: metadata, configuration, statistics, index. Pure.

The JSON has the names of the messages' fields. Keys that a message does not have are left out:
they are the HTTP form's own. What may be long is written in steps, of a message a few values at a
time, as parts of one message may be concatenated.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any, Final

from google.protobuf import json_format
from google.protobuf.message_factory import GetMessageClass

from naiad.config.proto.model_config_pb2 import ModelConfig
from naiad.config.proto_json import json_to_message
from naiad.gateway.grpc_codec.wire import BYTES, delimited, varint
from naiad.gateway.json_documents import runs
from naiad.gateway.proto import inference_pb2 as pb

VALUES_PER_STEP: Final = 256
"""Written at once: 1 to 2 ms."""
_CONFIG_TAG: Final = 1 << 3 | BYTES

Json = dict[str, Any]
Steps = Generator[None, None, bytes]
Kind = Any
"""A class of messages."""
Write = Callable[[Json, Kind], bytes]


def server_metadata(document: Json) -> bytes:
    return _serialised(document, pb.ServerMetadataResponse)


def model_metadata(document: Json) -> Steps:
    return _in_steps(document, pb.ModelMetadataResponse, _serialised)


def model_config(document: Json) -> Steps:
    """Raises RequestError when the JSON is no ModelConfig."""
    config = yield from _in_steps(document, ModelConfig, _config_part)
    return delimited(_CONFIG_TAG, config)


def statistics(document: Json) -> Steps:
    return _in_steps(document, pb.ModelStatisticsResponse, _serialised)


def index(rows: list[Json]) -> Steps:
    """A model that was never loaded has only its name."""
    return _in_steps({"models": rows}, pb.RepositoryIndexResponse, _serialised)


def system_regions(rows: list[Json]) -> Steps:
    return _in_steps(_by_name(rows), pb.SystemSharedMemoryStatusResponse, _serialised)


def cuda_regions(rows: list[Json]) -> Steps:
    return _in_steps(_by_name(rows), pb.CudaSharedMemoryStatusResponse, _serialised)


def _by_name(rows: list[Json]) -> Json:
    return {"regions": {row["name"]: row for row in rows}}


def log_settings(settings: Json) -> bytes:
    """Each as what it is: a switch, a level, a text."""
    message = pb.LogSettingsResponse()
    for name, value in settings.items():
        if type(value) is bool:
            message.settings[name].bool_param = value
        elif type(value) is int:
            message.settings[name].uint32_param = value
        else:
            message.settings[name].string_param = value
    serialised: bytes = message.SerializeToString()
    return serialised


def _in_steps(document: Json, kind: Kind, write: Write) -> Steps:
    """The bytes of a message with this document."""
    fields = kind.DESCRIPTOR.fields_by_name
    found: list[bytes] = []
    for some, is_long in runs(document.items(), VALUES_PER_STEP):
        key, value = some[0]
        if is_long and key in fields:
            found.append((yield from _field_in_steps(value, fields[key], kind, write)))
        else:
            found.append(write(dict(some), kind))
            yield
    return b"".join(found)


def _field_in_steps(value: Any, field: Any, kind: Kind, write: Write) -> Steps:
    """The bytes of one field of a message, of which there are many or which is long itself."""
    inner = field.message_type
    is_map = inner is not None and inner.GetOptions().map_entry
    items = value.items() if is_map else value if isinstance(value, list) else [value]
    found: list[bytes] = []
    for some, is_long in runs(items, VALUES_PER_STEP):
        if is_long and inner is not None and isinstance(some[0], dict):
            content = yield from _in_steps(some[0], GetMessageClass(inner), write)
            found += (varint(field.number << 3 | BYTES), varint(len(content)), content)
            continue
        part = dict(some) if is_map else some if isinstance(value, list) else value
        found.append(write({field.name: part}, kind))
        yield
    return b"".join(found)


def _config_part(document: Json, kind: Kind) -> bytes:
    serialised: bytes = json_to_message(document, kind).SerializeToString()
    return serialised


def _serialised(document: Json, kind: Kind) -> bytes:
    message = kind()
    json_format.ParseDict(document, message, ignore_unknown_fields=True)
    serialised: bytes = message.SerializeToString()
    return serialised
