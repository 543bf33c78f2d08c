"""gRPC messages that ask for too much at once, and the status of each."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from functools import cache
from typing import Any, Final
from urllib.parse import urlsplit

from naiad.gateway.grpc_codec.wire import varint
from naiad.gateway.proto import inference_pb2 as pb
from support.hostile_frames import enveloped
from support.hostile_grpc import Channel

MOST_BYTES: Final = 8 * 2**20 - 1000
"""Of typed contents that are read at all."""
FEWER_BYTES: Final = MOST_BYTES // 16
"""They take a sixteenth of the time."""
BOMB_TIMES: Final = 32
"""What comes of a bomb is so many times as large as the others."""
MANY: Final = 20_000

Message = tuple[str, bytes]
"""A method's name and what is sent to it, with the five bytes in front."""


def _contents(datatype: bytes, contents: bytes) -> Message:
    tensor = b"\x0a\x06INPUT0\x12" + bytes((len(datatype),)) + datatype + b"\x1a\x02\x01\x10"
    tensor += b"\x2a" + varint(len(contents)) + contents
    return "ModelInfer", enveloped(b"\x0a\x04echo\x2a" + varint(len(tensor)) + tensor)


def _infer(**fields: Any) -> Message:
    return "ModelInfer", enveloped(
        pb.ModelInferRequest(model_name="echo", **fields).SerializeToString()
    )


def _load(**parameters: pb.ModelRepositoryParameter) -> Message:
    request = pb.RepositoryModelLoadRequest(model_name="victim", parameters=parameters)
    return "RepositoryModelLoad", enveloped(request.SerializeToString())


def _settings(count: int) -> Message:
    one = pb.LogSettingsRequest.SettingValue(uint32_param=1)
    request = pb.LogSettingsRequest(settings={f"setting {number}": one for number in range(count)})
    return "LogSettings", enveloped(request.SerializeToString())


def numbers(size: int) -> Message:
    return _contents(b"INT8", b"\x12" + varint(size) + b"\x01" * size)


def numbers_one_by_one(size: int) -> Message:
    return _contents(b"INT32", b"\x10\x05" * (size // 2))


def floats(size: int) -> Message:
    size &= ~3
    return _contents(b"FP32", b"\x32" + varint(size) + b"abcd" * (size // 4))


def empty_strings(size: int) -> Message:
    return _contents(b"BYTES", b"\x42\x00" * (size // 2))


def empty_strings_in_a_stream(size: int) -> Message:
    return "ModelStreamInfer", empty_strings(size)[1]


def unknown_fields(size: int) -> Message:
    return _contents(b"FP32", b"\xf8\x07\x05" * (size // 3))


def unknown_fields_outside(size: int) -> Message:
    return "ModelInfer", enveloped(b"\x0a\x04echo" + b"\xf8\x07\x05" * (size // 3))


def tensor_parameters(_: int) -> Message:
    one = pb.InferParameter(int64_param=1)
    parameters = {f"parameter {number}": one for number in range(MANY)}
    return _infer(inputs=[{"name": "INPUT0", "datatype": "FP32", "parameters": parameters}])


def parameters(_: int) -> Message:
    one = pb.InferParameter(int64_param=1)
    return _infer(parameters={f"parameter {number}": one for number in range(MANY)})


def inputs(_: int) -> Message:
    one = {"name": "INPUT0", "datatype": "FP32", "shape": [1, 16]}
    return _infer(inputs=[one] * MANY)


def most_inputs(_: int) -> Message:
    """As many as are looked at."""
    contents = pb.InferTensorContents(fp32_contents=[1.0] * 16)
    one = pb.ModelInferRequest.InferInputTensor(name="INPUT0", datatype="FP32", shape=[1, 16])
    one.contents.CopyFrom(contents)
    return _infer(inputs=[one] * 1024)


def outputs(_: int) -> Message:
    return _infer(outputs=[{"name": "OUTPUT0"}] * MANY)


def settings(_: int) -> Message:
    return _settings(MANY)


def most_settings(_: int) -> Message:
    """Below 64 KiB."""
    return _settings(2_000)


def large_file(size: int) -> Message:
    return _load(
        config=pb.ModelRepositoryParameter(string_param="{}"),
        **{"file:1/a": pb.ModelRepositoryParameter(bytes_param=bytes(2 * size))},
    )


def many_files(_: int) -> Message:
    one = pb.ModelRepositoryParameter(bytes_param=bytes(5000))
    return _load(**{f"file:1/{number}": one for number in range(1000)})


def _bomb(method: str, size: int) -> Message:
    body = gzip.compress(b" " * (BOMB_TIMES * size), 6)
    return method, b"\1" + len(body).to_bytes(4, "big") + body


def bomb(size: int) -> Message:
    """At most a quarter of a gigabyte, within what a message may have: of too many fields."""
    return _bomb("ModelInfer", size)


def bomb_of_settings(size: int) -> Message:
    return _bomb("LogSettings", size)


_MAKE: Final[dict[str, Callable[[int], Message]]] = {
    one.__name__: one
    for one in (
        numbers, numbers_one_by_one, floats, empty_strings, empty_strings_in_a_stream,
        unknown_fields, unknown_fields_outside, tensor_parameters, parameters, inputs, most_inputs,
        outputs, settings, most_settings, large_file, many_files, bomb, bomb_of_settings,
    )
}  # fmt: skip
HEAVY: Final = dict.fromkeys(_MAKE, "3") | {
    "empty_strings_in_a_stream": "0",  # an answer says what is wrong
    "settings": "8",
    "bomb_of_settings": "8",
    "large_file": "12",  # switched off here
}
"""The status of each."""


@cache
def made(name: str, size: int) -> Message:
    """Making some takes longer than sending them, and would be measured as well."""
    return _MAKE[name](size)


def heavy(target: str, name: str, size: int) -> str:
    """Send this one, of about so many bytes if they are many; the status of its call."""
    method, message = made(name, size)
    place = urlsplit(f"//{target}")
    channel = Channel((str(place.hostname), place.port or 0))
    try:
        coding = ((b"grpc-encoding", b"gzip"),) if message[0] else ()
        return channel.ask_one(method, message, *coding)
    finally:
        channel.close()
