"""The repository helper: `python -m naiad.config.helper`, a child of the broker.

It scans, hashes and parses so that the broker never waits for a disk and never loads protobuf.
Requests come on stdin, replies leave on stdout (frames.py), in order; it ends when stdin closes.

    {"id": 1, "op": "scan", "repositories": [...], "names": [...] | None}
    {"id": 2, "op": "override", "repositories": [...], "name": "...", "config_json": "{...}"}
    {"id": 3, "op": "names", "repositories": [...]}

Each may say what the server has: "backends": [...] | None, "devices": ["cpu", ...],
"on_missing_gpu": "fail" | "cpu", "auto_complete": bool, "config_name": str (surroundings.py has the
defaults). Which backends have no use for a GPU it sees by itself.

A reply is {"id", "result"} with a Scan's JSON, or {"id", "error"} with the wire form of an error.
What is wrong in a repository is part of the result, never an error; an override that is no config
is one.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import traceback
from collections.abc import Callable, Mapping
from typing import Any, Final

from naiad.config.engines import cpu_backends
from naiad.config.frames import FRAME_BYTES_MAX, FrameReader, pack_frame
from naiad.config.model import Json
from naiad.config.repository import names_in, scan
from naiad.config.surroundings import CPU_ONLY, Surroundings, gpu_devices
from naiad.protocol.errors import InternalError, NaiadError, ProtocolError

READ_BYTES: Final = 2**16
EXIT_OK: Final = 0
EXIT_BROKEN_STREAM: Final = 1
_PR_SET_PDEATHSIG: Final = 1


def answer(request: Mapping[str, Any]) -> Json:
    """The reply to one request. Never raises: a fault of our own is an error in the reply."""
    reply: Json = {"id": request.get("id")}
    try:
        operation = _OPERATIONS.get(request.get("op", ""))
        if operation is None:
            known = ", ".join(_OPERATIONS)
            raise ProtocolError(f"unknown op {request.get('op')!r}; known are {known}")
        reply["result"] = operation(request)
    except NaiadError as error:
        reply["error"] = error.wire()
    except Exception as error:  # one bad directory must not end the service for all others
        traceback.print_exc(file=sys.stderr)
        reply["error"] = InternalError(f"{type(error).__name__}: {error}").wire()
    return reply


def serve(read_fd: int, write_fd: int) -> int:
    """Answer requests until the other end closes; the exit code."""
    reader = FrameReader()
    while data := os.read(read_fd, READ_BYTES):
        try:
            requests = reader.feed(data)
        except ProtocolError as error:
            print(f"repository helper: {error}", file=sys.stderr)
            return EXIT_BROKEN_STREAM
        for request in requests:
            _write(write_fd, _frame(answer(request)))
    return EXIT_OK if reader.is_empty else EXIT_BROKEN_STREAM


def _frame(reply: Json) -> bytes:
    try:
        return pack_frame(reply)
    except (ProtocolError, ValueError, OverflowError) as error:
        text = f"{error}; a reply holds at most {FRAME_BYTES_MAX} bytes: scan fewer models at once"
        return pack_frame({"id": reply["id"], "error": InternalError(text).wire()})


def _write(fd: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(fd, rest) :]


def _field(request: Mapping[str, Any], key: str, kind: type, default: object = None) -> Any:
    value = request.get(key, default)
    if type(value) is not kind:
        raise ProtocolError(f"{key}: expected {kind.__name__}, got {type(value).__name__}")
    return value


def _surroundings(request: Mapping[str, Any]) -> Surroundings:
    backends = request.get("backends")
    on_missing_gpu = _field(request, "on_missing_gpu", str, CPU_ONLY.on_missing_gpu)
    if on_missing_gpu not in ("fail", "cpu"):
        raise ProtocolError(f"on_missing_gpu: expected fail or cpu, got {on_missing_gpu!r}")
    devices = tuple(_field(request, "devices", list, list(CPU_ONLY.devices)))
    return Surroundings(
        backends=None if backends is None else tuple(_field(request, "backends", list)),
        devices=devices,
        cpu_backends=cpu_backends() if gpu_devices(devices) else CPU_ONLY.cpu_backends,
        on_missing_gpu=on_missing_gpu,
        auto_complete=_field(request, "auto_complete", bool, CPU_ONLY.auto_complete),
        config_name=_field(request, "config_name", str, CPU_ONLY.config_name),
    )


def _scan(request: Mapping[str, Any]) -> Json:
    names = None if request.get("names") is None else _field(request, "names", list)
    return scan(_field(request, "repositories", list), names, _surroundings(request)).to_json()


def _override(request: Mapping[str, Any]) -> Json:
    return scan(
        _field(request, "repositories", list),
        [_field(request, "name", str)],
        _surroundings(request),
        override=_field(request, "config_json", str),
    ).to_json()


def _names(request: Mapping[str, Any]) -> Json:
    return {"names": names_in(_field(request, "repositories", list))}


_OPERATIONS: Final[dict[str, Callable[[Mapping[str, Any]], Json]]] = {
    "scan": _scan,
    "override": _override,
    "names": _names,
}


def main() -> int:
    """Run until stdin closes. Ctrl-C is the broker's to handle: it closes stdin."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        return serve(sys.stdin.fileno(), sys.stdout.fileno())
    except BrokenPipeError:  # the broker is gone, and so is our work
        return EXIT_OK


if __name__ == "__main__":
    sys.exit(main())
