"""HTTP/2 and gRPC of clients that mean no good, as bytes. Pure but for chance."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator
from typing import Final

from naiad.gateway.http2 import frames as f
from naiad.gateway.http2.frames import Why
from naiad.gateway.http2.hpack import encoded
from naiad.gateway.proto import inference_pb2 as pb

SERVICE: Final = "/inference.GRPCInferenceService/"
METHODS: Final = (
    *["ModelInfer"] * 20, *["ModelStreamInfer"] * 8,
    "ServerLive", "ServerReady", "ModelReady", "ServerMetadata", "ModelMetadata", "ModelConfig",
    "ModelStatistics", "RepositoryIndex", "RepositoryModelLoad", "RepositoryModelUnload",
    "SystemSharedMemoryStatus", "SystemSharedMemoryRegister", "SystemSharedMemoryUnregister",
    "CudaSharedMemoryStatus", "CudaSharedMemoryRegister", "CudaSharedMemoryUnregister",
    "TraceSetting", "LogSettings", "NoSuchMethod",
)  # fmt: skip
VICTIM: Final = "victim"


def head(method: str, *more: tuple[bytes, bytes]) -> bytes:
    """A request's header block."""
    fields = [
        (b":method", b"POST"),
        (b":scheme", b"http"),
        (b":path", (SERVICE + method).encode()),
        (b":authority", b"x"),
        (b"content-type", b"application/grpc"),
        (b"te", b"trailers"),
    ]
    return encoded([*fields, *more])


def enveloped(message: bytes) -> bytes:
    return b"\0" + len(message).to_bytes(4, "big") + message


def infer_message(model: str = "echo", values: int = 16) -> bytes:
    """A right one."""
    found = pb.ModelInferRequest(model_name=model, id="i")
    found.inputs.add(name="INPUT0", datatype="FP32", shape=[1, values])
    found.raw_input_contents.append(bytes(4 * values))
    out: bytes = found.SerializeToString()
    return out


def _infer(chance: random.Random) -> bytes:
    found = pb.ModelInferRequest(model_name=chance.choice(["echo"] * 8 + ["", "no"]), id="i")
    shape = chance.choice([[1, 16]] * 4 + [[2], [0], [-1], [2**62] * 3, [-(2**63)], [1] * 200])
    one = found.inputs.add(name="INPUT0", datatype=chance.choice(["FP32", "BYTES", "", "INT64"]))
    one.shape.extend(shape)
    match chance.randrange(4):
        case 0:
            found.raw_input_contents.append(bytes(chance.choice([0, 4, 63, 64, 65])))
        case 1:
            one.contents.fp32_contents.extend([1.0] * chance.choice([0, 15, 16, 17]))
        case 2:
            one.contents.bytes_contents.append(b"\xff" * chance.choice([0, 1, 5000]))
        case _:
            one.parameters["shared_memory_region"].string_param = "r"
            one.parameters["shared_memory_byte_size"].int64_param = chance.choice([8, 2**63 - 1])
    if chance.random() < 0.5:
        out = found.outputs.add(name=chance.choice(["OUTPUT0", "", "x"]))
        out.parameters["classification"].int64_param = chance.choice([0, 1, 2**40, -1])
    name = chance.choice(["priority", "sequence_id", "timeout", "mine", "triton_x", ""])
    found.parameters[name].int64_param = chance.choice([0, 1, -1, 2**63 - 1])
    whole: bytes = found.SerializeToString()
    return whole


def message(chance: random.Random, method: str) -> bytes:
    """A message of this method, right or nearly so; bytes of it may be exchanged."""
    match method:
        case "ModelInfer" | "ModelStreamInfer":
            data = _infer(chance)
        case "RepositoryModelLoad":
            load = pb.RepositoryModelLoadRequest(model_name=VICTIM)
            load.parameters["config"].string_param = chance.choice(["", "{", "{}", "[]", "null"])
            data = load.SerializeToString()
        case "RepositoryModelUnload":
            data = pb.RepositoryModelUnloadRequest(model_name=VICTIM).SerializeToString()
        case "SystemSharedMemoryRegister":
            data = pb.SystemSharedMemoryRegisterRequest(
                name="r", key=chance.choice(["", "/x", "../x"]), byte_size=chance.choice([0, 2**63])
            ).SerializeToString()
        case "SystemSharedMemoryUnregister":
            data = pb.SystemSharedMemoryUnregisterRequest(name="r").SerializeToString()
        case _:
            data = pb.ModelMetadataRequest(name="echo", version="1").SerializeToString()
    changed = bytearray(data)
    # What was loaded must stay: the victim's name is never changed to another model's.
    for _ in range(0 if "Repository" in method else chance.randrange(4)):
        if changed:
            changed[chance.randrange(len(changed))] = chance.randrange(256)
    return bytes(changed)


def call(chance: random.Random, stream: int) -> bytes:
    """Frames of one call with such a message; streams have up to three."""
    method = chance.choice(METHODS)
    count = chance.randint(0, 3) if method == "ModelStreamInfer" else 1
    body = b"".join(enveloped(message(chance, method)) for _ in range(count))
    if chance.random() < 0.05:
        body = bytes((chance.randrange(256),)) + body[1:]
    if chance.random() < 0.05:
        body = body[: chance.randrange(len(body) + 1)]
    more = []
    if chance.random() < 0.05:
        coding = chance.choice([b"gzip", b"deflate", b"snappy", b"identity"])
        more.append((b"grpc-encoding", coding))
    if chance.random() < 0.05:
        timeout = chance.choice([b"10S", b"1n", b"0S", b"99999999H", b"-1S", b"x"])
        more.append((b"grpc-timeout", timeout))
    return b"".join(
        (
            f.frame(f.HEADERS, f.END_HEADERS, stream, head(method, *more)),
            f.frame(f.DATA, f.END_STREAM, stream, body),
        )
    )


def conversation(chance: random.Random) -> bytes:
    """A connection's bytes from the first on, with some of them exchanged, cut or doubled."""
    block = head("ModelInfer")
    body = enveloped(infer_message())
    parts = [
        f.settings({f.INITIAL_WINDOW_SIZE: chance.choice([0, 1, 65_535, 2**31 - 1])}),
        f.frame(f.HEADERS, f.END_HEADERS, 1, block),
        f.frame(f.DATA, f.END_STREAM, 1, body),
        f.frame(f.HEADERS, 0, 3, block[:9]),
        f.frame(f.CONTINUATION, 0, 3, block[9:20]),
        f.frame(f.CONTINUATION, f.END_HEADERS, 3, block[20:]),
        f.frame(f.DATA, f.PADDED, 3, b"\3" + body[:20] + bytes(3)),
        f.window_update(3, chance.choice([1, 2**31 - 1])),
        f.frame(f.DATA, f.END_STREAM, 3, body[20:]),
        f.frame(f.PING, 0, 0, b"12345678"),
        f.window_update(0, 100),
        f.reset(3, Why.CANCEL),
        f.frame(chance.randrange(256), chance.randrange(256), chance.randrange(6), b"abcd"),
        f.goaway(0, Why.NO_ERROR),
    ]
    for _ in range(chance.randrange(4)):
        index = chance.randrange(len(parts))
        match chance.randrange(4):
            case 0:
                del parts[index]
            case 1:
                parts.insert(index, chance.choice(parts))
            case 2:
                chance.shuffle(parts)
            case _:
                data = bytearray(parts[index])
                data[chance.randrange(len(data))] = chance.randrange(256)
                parts[index] = bytes(data)
        if not parts:
            break
    return f.PREFACE + b"".join(parts)


# --- floods --------------------------------------------------------------------------------------

BLOCK: Final = head("ServerLive")
OPENED: Final = f.PREFACE + f.settings({})


def _whole(stream: int, block: bytes = BLOCK) -> bytes:
    return f.frame(f.HEADERS, f.END_HEADERS, stream, block)


def _streams() -> Iterator[int]:
    return itertools.count(1, 2)


def continuations() -> Iterator[bytes]:
    yield OPENED + f.frame(f.HEADERS, 0, 1, BLOCK)
    yield from itertools.repeat(f.frame(f.CONTINUATION, 0, 1, bytes(16_000)))


def empty_continuations() -> Iterator[bytes]:
    yield OPENED + f.frame(f.HEADERS, 0, 1, BLOCK)
    yield from itertools.repeat(f.frame(f.CONTINUATION, 0, 1) * 1000)


def settings() -> Iterator[bytes]:
    yield OPENED
    yield from itertools.repeat(f.settings({f.INITIAL_WINDOW_SIZE: 1}) * 1000)


def windows_of_many_streams() -> Iterator[bytes]:
    """Each setting would be applied to every open stream: 4000 times 10,000 times, and again."""
    yield OPENED + b"".join(_whole(stream) for stream in itertools.islice(_streams(), 4000))
    pair = f.settings({f.INITIAL_WINDOW_SIZE: 0})[9:] + f.settings({f.INITIAL_WINDOW_SIZE: 9})[9:]
    many = f.frame(f.SETTINGS, 0, 0, pair * 1300)
    for _ in range(200):
        yield many + f.frame(f.DATA, 0, 1, b"\0")  # so that it is not idle


def pings() -> Iterator[bytes]:
    yield OPENED
    yield from itertools.repeat(f.frame(f.PING, 0, 0, bytes(8)) * 1000)


def priorities() -> Iterator[bytes]:
    yield OPENED
    yield from itertools.repeat(f.frame(f.PRIORITY, 0, 1, bytes(5)) * 1000)


def unknown_frames() -> Iterator[bytes]:
    yield OPENED
    yield from itertools.repeat(f.frame(99, 0, 0, bytes(16_000)))


def empty_data() -> Iterator[bytes]:
    yield OPENED + _whole(1)
    yield from itertools.repeat(f.frame(f.DATA, 0, 1) * 1000)


def single_bytes() -> Iterator[bytes]:
    """70,000 of one body, which is never whole."""
    block = head("ModelInfer")
    yield OPENED + _whole(1, block) + f.frame(f.DATA, 0, 1, b"\0" + (2**20).to_bytes(4, "big"))
    for _ in range(70):
        yield f.frame(f.DATA, 0, 1, b"x") * 1000


def rapid_resets() -> Iterator[bytes]:
    yield OPENED
    streams = _streams()
    block = head("ModelInfer")
    while True:
        some = itertools.islice(streams, 500)
        yield b"".join(_whole(one, block) + f.reset(one, Why.CANCEL) for one in some)


def header_bomb() -> Iterator[bytes]:
    """A field of 4000 bytes, put into the table once and named 60,000 times."""
    value = bytes([0x7F, 4000 - 127 & 0x7F | 0x80, 4000 - 127 >> 7]) + b"v" * 4000
    first = BLOCK + b"\x40\x01x" + value
    yield OPENED + _whole(1, first)
    bomb = BLOCK + b"\xbe" * 60_000
    parts = [bomb[at : at + 16_000] for at in range(0, len(bomb), 16_000)]
    for stream in itertools.islice(itertools.count(3, 2), 50):
        frames = [f.frame(f.HEADERS, 0, stream, parts[0])]
        frames += [f.frame(f.CONTINUATION, 0, stream, part) for part in parts[1:-1]]
        yield b"".join([*frames, f.frame(f.CONTINUATION, f.END_HEADERS, stream, parts[-1])])


def huge_header_list() -> Iterator[bytes]:
    fields = [(b"x-%d" % number, b"v" * 400) for number in range(120)]
    block = BLOCK + encoded(fields)
    parts = [block[at : at + 16_000] for at in range(0, len(block), 16_000)]
    yield OPENED
    for stream in itertools.islice(_streams(), 200):
        frames = [f.frame(f.HEADERS, 0, stream, parts[0])]
        frames += [f.frame(f.CONTINUATION, 0, stream, part) for part in parts[1:-1]]
        yield b"".join([*frames, f.frame(f.CONTINUATION, f.END_HEADERS, stream, parts[-1])])


def many_streams() -> Iterator[bytes]:
    """More than a connection may have, none of which ends."""
    yield OPENED
    streams = _streams()
    for _ in range(20):
        yield b"".join(
            _whole(one, head("ModelStreamInfer")) for one in itertools.islice(streams, 500)
        )


def tiny_windows() -> Iterator[bytes]:
    """Answers are asked for and let through byte by byte."""
    yield f.PREFACE + f.settings({f.INITIAL_WINDOW_SIZE: 0})
    body = enveloped(infer_message())
    block = head("ModelInfer")
    ids = list(itertools.islice(_streams(), 500))
    for one in ids:
        yield _whole(one, block) + f.frame(f.DATA, f.END_STREAM, one, body)
    for _ in range(40):
        yield b"".join(f.window_update(one, 1) for one in ids)


FLOODS: Final[tuple[Callable[[], Iterator[bytes]], ...]] = (
    continuations, empty_continuations, settings, windows_of_many_streams, pings, priorities,
    unknown_frames, empty_data, single_bytes, rapid_resets, header_bomb, huge_header_list,
    many_streams, tiny_windows,
)  # fmt: skip
