"""The control calls of both clients: what is asked, and how the JSON that comes is read. Pure."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from naiad.client.calls import Calls
from naiad.client.texts import fits_text
from naiad.protocol import messages as m
from naiad.protocol.checks import NAME_BYTES_MAX
from naiad.protocol.errors import ProtocolError, RequestError
from naiad.shm.cuda.key import HANDLE_BYTES

CALL_TIMEOUT_S: Final = 30.0
LOAD_TIMEOUT_S: Final = 660.0
"""A model may take 600 s to load (the server's own limit) before it is given up."""

Json = dict[str, Any]


class Operation(NamedTuple):
    """One call: see docs/protocol.md for the operations and their results."""

    name: str
    arguments: m.Parameters = {}  # noqa: RUF012 - never written to
    payload: bytes | None = None
    timeout_s: float = CALL_TIMEOUT_S

    def ask(self, calls: Calls, token: Any, deadline_ns: int) -> int:
        """Queue it."""
        return calls.control(self.name, self.arguments, token, deadline_ns, self.payload)


LIVE: Final = Operation("live")
READY: Final = Operation("ready")
SERVER_METADATA: Final = Operation("server_metadata")
STATUS: Final = Operation("status")
KNOWN: Final = Operation("index", {"known": True})
"""The index without what was never loaded: nobody looks into the repository."""


def of_model(operation: str, model: str, version: int) -> Operation:
    """model_ready, model_metadata, model_config, statistics; version -1 means any."""
    arguments: m.Parameters = {}
    if model:
        arguments["model"] = _text("model", model)
    if version != m.ANY_VERSION:
        if type(version) is not int or not 0 <= version < 2**63:
            raise RequestError(f"expected a version number, got {version!r:.80}")
        arguments["version"] = version
    return Operation(operation, arguments)


def class_labels(model: str, version: int, known: str) -> Operation:
    """`known`: the mark of an answer whose labels need not be told again."""
    asked = of_model("class_labels", model, version)
    return asked._replace(arguments={**asked.arguments, "known": known})


def index(ready: bool) -> Operation:
    return Operation("index", {"ready": True} if ready else {})


def counters(after: str | None, timeout_s: float) -> Operation:
    """The server's raw counters (None), or those of some models after this name."""
    return Operation("counters", {} if after is None else {"after": after}, None, timeout_s)


def load(model: str, config: str | Json | None, upload: str = "") -> Operation:
    """`config`: a configuration that replaces the one in the repository, as JSON or a dict.

    `upload`: the folder in the server's run directory whose files replace the repository's.
    """
    payload = None
    if config is not None:
        try:
            payload = (config if isinstance(config, str) else json.dumps(config)).encode()
        except (TypeError, ValueError, RecursionError) as fault:
            raise RequestError(
                f"expected a configuration as JSON, or what becomes JSON: {fault}"
            ) from fault
    arguments: m.Parameters = {"model": _text("model", model)}
    if upload:
        arguments["upload"] = upload
    return Operation("load", arguments, payload, LOAD_TIMEOUT_S)


def unload(model: str, unload_dependents: bool) -> Operation:
    arguments: m.Parameters = {"model": _text("model", model)}
    if unload_dependents:
        arguments["unload_dependents"] = True
    return Operation("unload", arguments, None, LOAD_TIMEOUT_S)


def region_register(name: str, key: str, byte_size: int, offset: int) -> Operation:
    for what, number in (("byte_size", byte_size), ("offset", offset)):
        if type(number) is not int or not 0 <= number < 2**63:
            raise RequestError(f"expected {what} as a number of bytes, got {number!r:.80}")
    arguments: m.Parameters = {
        "name": _text("name", name),
        "key": _text("key", key),
        "byte_size": byte_size,
        "offset": offset,
    }
    return Operation("region_register", arguments)


def cuda_region_register(name: str, raw_handle: bytes, byte_size: int, device_id: int) -> Operation:
    """`raw_handle`: a cudaIpcMemHandle_t."""
    for what, number in (("byte_size", byte_size), ("device_id", device_id)):
        if type(number) is not int or not 0 <= number < 2**63:
            raise RequestError(f"expected {what} as a number from 0, got {number!r:.80}")
    if not isinstance(raw_handle, bytes) or len(raw_handle) != HANDLE_BYTES:
        raise RequestError(f"expected raw_handle as {HANDLE_BYTES} bytes (a cudaIpcMemHandle_t)")
    arguments: m.Parameters = {
        "name": _text("name", name),
        "raw_handle": raw_handle.hex(),
        "byte_size": byte_size,
        "device_id": device_id,
    }
    return Operation("region_register_cuda", arguments)


def log_settings(
    changes: m.Parameters, after: int | None = None, timeout_s: float = CALL_TIMEOUT_S
) -> Operation:
    """The log settings after these changes; with `after`, once they are not that revision."""
    arguments = dict(changes)
    if after is not None:
        arguments["after"] = after
    return Operation("log_settings", arguments, None, timeout_s)


def of_region(operation: str, name: str, kind: str = "") -> Operation:
    """region_status and region_unregister; no name means all, no kind both."""
    arguments: m.Parameters = {"name": _text("name", name)} if name else {}
    if kind:
        arguments["kind"] = _text("kind", kind)
    return Operation(operation, arguments)


def _text(what: str, given: str) -> str:
    if not given or not fits_text(given):
        raise RequestError(
            f"expected {what} as a string of 1 to {NAME_BYTES_MAX} characters, got {given!r:.80}"
        )
    return given


def parsed_reply(frames: Sequence[Any]) -> Any:
    """The JSON in payload frame 0; what cannot be parsed becomes the ProtocolError returned."""
    if not frames:
        return None
    try:
        return json.loads(bytes(memoryview(frames[0])))
    except ValueError as fault:
        return ProtocolError(f"the server's reply is not JSON: {fault}")
