"""What the broker tells as JSON, as messages: metadata, configuration, statistics, index. Pure.

The JSON has the names of the messages' fields. Keys that a message does not have are left out:
they are the HTTP form's own. What may be long is written in steps: what a list of such a document
holds comes a few rows at a time, and parts of one message may be concatenated.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from typing import Any, Final

from google.protobuf import json_format

from naiad.config.proto_json import json_to_message
from naiad.gateway.grpc_codec.wire import BYTES, delimited
from naiad.gateway.proto import inference_pb2 as pb

ROWS_PER_STEP: Final = 4
"""Of a list, that are written at once: 0.3 ms of inputs, 2 ms of statistics."""
_CONFIG_TAG: Final = 1 << 3 | BYTES

Json = dict[str, Any]
Steps = Generator[None, None, bytes]


def server_metadata(document: Json) -> bytes:
    return _serialised(document, pb.ServerMetadataResponse())


def model_metadata(document: Json) -> Steps:
    return _in_steps(document, lambda part: _serialised(part, pb.ModelMetadataResponse()))


def model_config(document: Json) -> Steps:
    """Raises RequestError when the JSON is no ModelConfig."""
    config = yield from _in_steps(document, lambda part: json_to_message(part).SerializeToString())
    return delimited(_CONFIG_TAG, config)


def statistics(document: Json) -> Steps:
    return _in_steps(document, lambda part: _serialised(part, pb.ModelStatisticsResponse()))


def index(rows: list[Json]) -> Steps:
    """A model that was never loaded has only its name."""
    return _in_steps({"models": rows}, lambda part: _serialised(part, pb.RepositoryIndexResponse()))


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


def _in_steps(document: Json, write: Callable[[Json], bytes]) -> Steps:
    found: list[bytes] = []
    for part in _parts(document):
        found.append(write(part))
        yield
    return b"".join(found)


def _parts(document: Json) -> Iterator[Json]:
    """Documents that are this one together: lists grow."""
    long = [
        key
        for key, value in document.items()
        if isinstance(value, list) and len(value) > ROWS_PER_STEP
    ]
    yield {key: value for key, value in document.items() if key not in long}
    for key in long:
        rows = document[key]
        for start in range(0, len(rows), ROWS_PER_STEP):
            yield {key: rows[start : start + ROWS_PER_STEP]}


def _serialised(document: Json, message: Any) -> bytes:
    json_format.ParseDict(document, message, ignore_unknown_fields=True)
    serialised: bytes = message.SerializeToString()
    return serialised
