"""Requests that no decent client would send, for every route of the HTTP port. Pure but for chance.

`request` is well framed, whatever its body holds; `wire` may be anything at all.
"""

from __future__ import annotations

import gzip
import json
import random
import zlib
from typing import Any, Final, NamedTuple

from support.mutations import mutated

MODEL: Final = "echo"
VICTIM: Final = "victim"
"""May be loaded and unloaded by anybody."""
VERBS: Final = ("GET", "POST", "PUT", "DELETE", "PATCH", "HEAD", "OPTIONS", "TRACE")
PLACES: Final = ("{name}", "{version}", "{region}")
ROUTES: Final = (
    "/v2",
    "/v2/health/live",
    "/v2/health/ready",
    "/v2/health/startup",
    "/v2/models/stats",
    *(
        f"/v2/models/{{name}}{version}{tail}"
        for version in ("", "/versions/{version}")
        for tail in ("", "/ready", "/config", "/stats", "/infer", "/generate", "/generate_stream")
    ),
    "/v2/models/{name}/trace/setting",
    "/v2/trace/setting",
    "/v2/logging",
    "/v2/repository/index",
    "/v2/repository/{region}/index",
    "/v2/repository/models/{name}/load",
    "/v2/repository/models/{name}/unload",
    *(
        f"/v2/{kind}sharedmemory{tail}"
        for kind in ("system", "cuda")
        for tail in (
            "/status",
            "/unregister",
            "/region/{region}/status",
            "/region/{region}/register",
            "/region/{region}/unregister",
        )
    ),
)
TEXTS: Final = (
    "", ".", "..", "%2e%2e%2f", "%00", "%ff", "%", "a" * 300, "%F0%9F%98%80", "1", "-1", "0x1",
    "9" * 30, "null", "a b", "é", "~", "%25%25", ";", "'", '"', "<script>", "${x}", "{}", "*", "\\",
)  # fmt: skip
VALUES: Final[tuple[Any, ...]] = (
    None, True, False, 0, -1, 1, 2**31, 2**63 - 1, 2**63, 2**64, -(2**63), 10**400, 1.5, 1e308,
    -0.0, float("inf"), float("nan"), "", "x", "é\ud83d", "\0", "😀", "n" * 5000, [], {}, [[]],
    [None], {"": ""}, [1, "a"], {"binary_data_size": 2**62}, "FP32", "BYTES", "INPUT0", [1, 16],
    [0], [2**62] * 4,
)  # fmt: skip
CODINGS: Final = ("gzip", "deflate", "br", "identity", "gzip, gzip", "")
PIECES: Final = (
    b"\r\n", b"\n", b"\r", b" ", b"\0", b":", b"\r\n\r\n", b"\xff",
    b"Transfer-Encoding: chunked\r\n",
    b"Content-Length: 3\r\n", b"Content-Length: 99999999999999999999\r\n", b"Upgrade: h2c\r\n",
    b"Expect: 100-continue\r\n", b"Expect: x\r\n", b"HTTP/0.9", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    b"ffffffffffffffff\r\n", b"0\r\n\r\n", b"x: " + b"y" * 70_000 + b"\r\n", b"a: b\r\n" * 200,
)  # fmt: skip
WIRE_REACH_BYTES: Final = 400
"""Where heads are: so far into the bytes of a connection they are changed."""


class Hostile(NamedTuple):
    verb: str
    path: str
    headers: dict[str, str]
    body: bytes


def bodies() -> list[dict[str, Any]]:
    """Right ones, which are spoiled then."""
    tensor = {"name": "INPUT0", "shape": [1, 16], "datatype": "FP32"}
    binary = {**tensor, "parameters": {"binary_data_size": 64}}
    region = {"shared_memory_region": "r", "shared_memory_byte_size": 64, "shared_memory_offset": 0}
    return [
        {"inputs": [{**tensor, "data": list(range(16))}], "id": "7"},
        {
            "inputs": [binary],
            "outputs": [{"name": "OUTPUT0", "parameters": {"binary_data": True}}],
            "parameters": {"priority": 1, "timeout": 10_000_000, "mine": "x"},
        },
        {
            "inputs": [binary],
            "outputs": [{"name": "OUTPUT0", "parameters": {"classification": 3}}],
            "parameters": {"sequence_id": 3, "sequence_start": True, "binary_data_output": True},
        },
        {"inputs": [{**tensor, "parameters": region}], "outputs": [{"name": "OUTPUT0"}]},
        {"key": "/nothing", "offset": 0, "byte_size": 64},
        {"raw_handle": {"b64": "aGk="}, "device_id": 0, "byte_size": 64},
        {"ready": True},
        {"parameters": {"config": '{"backend":"identity"}', "unload_dependents": True}},
    ]


def spoiled(chance: random.Random, found: Any) -> Any:
    """The same with one place of it exchanged, removed or doubled."""
    if isinstance(found, dict) and found and chance.random() < 0.85:
        key = chance.choice(list(found))
        out = dict(found)
        if chance.random() < 0.1:
            del out[key]
        elif chance.random() < 0.1:
            out[chance.choice(("", "x", "é", "n" * 2000, "shared_memory_region"))] = out[key]
        else:
            out[key] = spoiled(chance, found[key])
        return out
    if isinstance(found, list) and found and chance.random() < 0.8:
        items = list(found)
        if chance.random() < 0.2:
            return items * chance.choice((0, 2, 3))
        index = chance.randrange(len(items))
        items[index] = spoiled(chance, items[index])
        return items
    return chance.choice(VALUES)


def path(chance: random.Random, route: str, share_of_nonsense: float = 0.2) -> str:
    """The route with names, right ones or strings of any kind."""
    right = {"{name}": MODEL, "{version}": "1", "{region}": "r"}
    if "load" in route:  # nobody's work depends on it
        right["{name}"] = VICTIM
    for place in PLACES:
        nonsense = chance.random() < share_of_nonsense
        route = route.replace(place, chance.choice(TEXTS) if nonsense else right[place])
    return route


def nonsense(chance: random.Random) -> str:
    """Bytes that a request line can hold."""
    return "".join(chr(chance.randrange(33, 127)) for _ in range(chance.randint(1, 40)))


def _body(chance: random.Random) -> bytes:
    found = chance.choice(bodies())
    for _ in range(chance.randint(0, 3)):
        found = spoiled(chance, found)
    text = json.dumps(found, ensure_ascii=chance.random() < 0.5)
    return text.encode("utf-8", "surrogatepass")


def request(chance: random.Random) -> Hostile:
    """Well framed: its length is right, its content is not."""
    is_infer = chance.random() < 0.7
    route = "/v2/models/{name}/infer" if is_infer else chance.choice(ROUTES)
    verb = "POST" if is_infer or chance.random() < 0.7 else chance.choice(VERBS)
    headers: dict[str, str] = {}
    body = b"" if verb in ("GET", "HEAD") else _body(chance)
    if is_infer and chance.random() < 0.6:
        length = len(body)
        body += bytes(chance.choice((64, 64, 64, 0, 1, 63, 65)))
        if chance.random() < 0.2:
            length = chance.choice((0, 1, -1, length - 1, length + 1, 2**31, 2**63, 10**30))
        headers["Inference-Header-Content-Length"] = str(length)
    if body and chance.random() < 0.3:
        data = bytearray(body)
        for _ in range(chance.randint(1, 4)):
            data[chance.randrange(len(data))] = chance.randrange(256)
        body = bytes(data[: chance.choice((len(data), chance.randrange(len(data)) + 1))])
    if body and chance.random() < 0.1:
        coding = chance.choice(CODINGS)
        headers["Content-Encoding"] = coding
        if coding == "gzip":
            body = gzip.compress(body, 1)
        elif coding == "deflate":
            body = zlib.compress(body, 1)
        if chance.random() < 0.3:
            body = body[: chance.randrange(len(body)) + 1]
    if chance.random() < 0.05:
        headers["Accept-Encoding"] = chance.choice(CODINGS)
    if chance.random() < 0.02:
        headers["Origin"] = "http://evil"
    target = path(chance, route, 0.05 if is_infer else 0.2)
    return Hostile(verb, target, headers, body)


def written(given: Hostile) -> bytes:
    """As it travels."""
    verb, target, headers, body = given
    lines = [f"{verb} {target.encode().decode('latin-1').replace(' ', '+')} HTTP/1.1", "Host: x"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    if body or verb == "POST":
        lines.append(f"Content-Length: {len(body)}")
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + body


def wire(chance: random.Random) -> bytes:
    """Bytes of one or more requests, cut, doubled and overwritten anywhere."""
    data = b"".join(written(request(chance)) for _ in range(chance.randint(1, 2)))
    return mutated(chance, data, PIECES, count=chance.randint(1, 5), reach=WIRE_REACH_BYTES)
