"""What the broker tells as JSON, as messages: metadata, configuration, statistics, index. Pure.

The JSON has the names of the messages' fields. Keys that a message does not have are left out:
they are the HTTP form's own.
"""

from __future__ import annotations

from typing import Any

from google.protobuf import json_format

from naiad.config.proto_json import json_to_message
from naiad.gateway.proto import inference_pb2 as pb

Json = dict[str, Any]


def server_metadata(document: Json) -> bytes:
    return _serialised(document, pb.ServerMetadataResponse())


def model_metadata(document: Json) -> bytes:
    return _serialised(document, pb.ModelMetadataResponse())


def model_config(document: Json) -> bytes:
    """Raises RequestError when the JSON is no ModelConfig."""
    serialised: bytes = pb.ModelConfigResponse(config=json_to_message(document)).SerializeToString()
    return serialised


def statistics(document: Json) -> bytes:
    return _serialised(document, pb.ModelStatisticsResponse())


def index(rows: list[Json]) -> bytes:
    """A model that was never loaded has only its name."""
    return _serialised({"models": rows}, pb.RepositoryIndexResponse())


def system_regions(rows: list[Json]) -> bytes:
    regions = {row["name"]: row for row in rows}
    return _serialised({"regions": regions}, pb.SystemSharedMemoryStatusResponse())


def cuda_regions(rows: list[Json]) -> bytes:
    regions = {row["name"]: row for row in rows}
    return _serialised({"regions": regions}, pb.CudaSharedMemoryStatusResponse())


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


def _serialised(document: Json, message: Any) -> bytes:
    json_format.ParseDict(document, message, ignore_unknown_fields=True)
    serialised: bytes = message.SerializeToString()
    return serialised
