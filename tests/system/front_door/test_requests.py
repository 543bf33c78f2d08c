"""Requests that no client library would make: wrong sizes, numbers, JSON, paths."""

from __future__ import annotations

import json
import os
import socket
import string
import struct
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest

from naiad.testing.server import Server
from support.front_door import (
    LENGTH,
    Door,
    Given,
    GrpcDoor,
    HttpDoor,
    Refused,
    binary_request,
    grpc_request,
)
from support.waiting import wait_until

SIXTEEN = np.arange(16, dtype="<f4").tobytes()
PAIR = [Given(name, "FP32", [16], SIXTEEN) for name in ("INPUT0", "INPUT1")]
ONE = Given("INPUT0", "FP32", [1], struct.pack("<f", 1))
INFER = "/v2/models/fp32/infer"
LARGE_JSON_BYTES = 8_000_000
GROWTH_BYTES_MAX = 64 * 2**20


def as_json(datatype: str, data: list[Any], shape: object = None) -> dict[str, Any]:
    shape = [len(data)] if shape is None else shape
    return {"inputs": [{"name": "INPUT0", "datatype": datatype, "shape": shape, "data": data}]}


def still_answers(door: Door) -> None:
    assert door.infer("fp32", [ONE])["OUTPUT0"].data == ONE.data


# --- JSON ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "request_",
    [
        as_json("STRING", [{"b64": "aGVsbG8="}], "-1"),
        as_json("FP32", [{"b64": "aGVsbG8="}], [1]),
        as_json("FP32", [1], ["1"]),
        as_json("FP32", [1], [1.0]),
        as_json("FP32", [1], [None]),
        as_json("FP32", [1], {"0": 1}),
        as_json("STRING", [1]),
        {"inputs": {"name": "INPUT0"}},
        {"inputs": ["INPUT0"]},
        {"inputs": [{"name": 1}]},
        {"inputs": [{}]},
        {},
    ],
    ids=json.dumps,
)
def test_json_of_another_form_is_refused(http: HttpDoor, request_: dict[str, Any]) -> None:
    reply = http.call("POST", INFER, request_)
    assert (reply.status, bool(reply.error)) == (400, True)
    still_answers(http)


@pytest.mark.parametrize("kind", ["", "text/plain", "application/octet-stream"])
def test_large_json_without_its_content_type_is_read_and_its_memory_returned(
    http: HttpDoor, server: Server, kind: str
) -> None:
    rows = ["[" + ",".join(["[1.25]"] * 10) + "]"] * (LARGE_JSON_BYTES // 1000)
    count = 10 * len(rows)
    text = json.dumps(as_json("FP32", [], [count])).replace("[]", f"[{','.join(rows)}]")
    headers = {"Content-Type": kind} if kind else {}
    assert http.call("POST", INFER, text.encode(), headers).json["outputs"][0]["shape"] == [count]
    before = resident_bytes(server)
    for _ in range(3):
        assert http.call("POST", INFER, text.encode(), headers).status == 200
    wait_until(
        lambda: resident_bytes(server) < before + GROWTH_BYTES_MAX, "the gateway's memory returned"
    )


def resident_bytes(server: Server) -> int:
    pages = Path(f"/proc/{server.pids['gateway-0']}/statm").read_text().split()[1]
    return int(pages) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.parametrize("what", ["arrays", "bytes"])
def test_json_beyond_its_limits_is_refused_by_name(http: HttpDoor, what: str) -> None:
    if what == "arrays":
        body = b'{"inputs":[{"name":"INPUT0","data":' + b"[" * 2_000_000
    else:
        body = b'{"inputs":' + b" " * (64 * 2**20 + 1)
    reply = http.call("POST", INFER, body)
    assert reply.status == 400
    assert ("--http-max-input-size" in reply.error) == (what == "bytes")
    still_answers(http)


# --- numbers ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("datatype", "value"),
    [
        ("UINT8", 300),
        ("UINT8", -1),
        ("INT32", 2**31),
        ("INT32", -(2**31) - 1),
        ("INT32", 1.0),
        ("INT32", True),
        ("BOOL", 0),
        ("BOOL", 1),
        ("FP32", "1"),
        ("FP32", True),
    ],
)
def test_a_json_value_that_is_none_of_its_datatype_is_refused(
    http: HttpDoor, datatype: str, value: object
) -> None:
    reply = http.call("POST", f"/v2/models/{datatype.lower()}/infer", as_json(datatype, [value]))
    assert reply.status == 400
    assert "'INPUT0'" in reply.error


@pytest.mark.parametrize(("datatype", "value"), [("UINT8", 300), ("UINT8", 256)])
def test_a_typed_value_that_is_none_of_its_datatype_is_refused(
    grpc_door: GrpcDoor, datatype: str, value: int
) -> None:
    message = grpc_request(datatype.lower(), [Given("INPUT0", datatype, [1], b"")])
    del message.raw_input_contents[:]
    message.inputs[0].contents.uint_contents.append(value)
    with pytest.raises(Refused, match=datatype) as caught:
        grpc_door.ask("ModelInfer", message)
    assert caught.value.code == "INVALID_ARGUMENT"


def test_half_precision_is_only_for_binary_data_and_the_refusal_says_so(
    http: HttpDoor, grpc_door: GrpcDoor
) -> None:
    reply = http.call("POST", "/v2/models/fp16/infer", as_json("FP16", [1.0]))
    assert (reply.status, "binary data" in reply.error) == (400, True)
    message = grpc_request("fp16", [Given("INPUT0", "FP16", [1], b"")])
    del message.raw_input_contents[:]
    message.inputs[0].contents.fp32_contents.append(1)
    with pytest.raises(Refused, match="raw_input_contents"):
        grpc_door.ask("ModelInfer", message)


# --- sizes --------------------------------------------------------------------------------------


@pytest.mark.parametrize("length", ["99999999999", "-1", "abc", "1.5", "", "+5", "100000"])
def test_a_json_length_that_cannot_be_is_refused(http: HttpDoor, length: str) -> None:
    text, blobs = binary_request([ONE])
    reply = http.call("POST", INFER, text + blobs, {LENGTH: length})
    assert reply.status == 400
    assert LENGTH in reply.error
    still_answers(http)


def test_a_body_without_json_needs_a_model_of_one_input(http: HttpDoor) -> None:
    reply = http.call("POST", "/v2/models/add_sub/infer", SIXTEEN, {LENGTH: "0"})
    assert reply.status == 400
    assert "1 input" in reply.error


@pytest.mark.parametrize("size", [60, 68, 0])
def test_bytes_that_are_not_the_tensors_are_refused_with_both_sizes(door: Door, size: int) -> None:
    with pytest.raises(Refused) as caught:
        door.infer("add_sub", [PAIR[0], Given("INPUT1", "FP32", [16], bytes(size))])
    assert caught.value.code == "INVALID_ARGUMENT"
    assert {"64", str(size)} <= set(caught.value.text.replace(",", " ").split()) | {""}


def test_a_body_beyond_the_limit_is_refused_before_it_is_sent(http: HttpDoor) -> None:
    with socket.create_connection(http.address, timeout=20) as one:
        one.sendall(f"POST {INFER} HTTP/1.1\r\nHost: h\r\nContent-Length: {2**40}\r\n\r\n".encode())
        said = one.recv(65_536).decode()
    assert said.startswith("HTTP/1.1 413 ")
    assert str(512 * 2**20) in said
    still_answers(http)


def test_bytes_behind_the_last_tensor_are_refused(http: HttpDoor) -> None:
    text, blobs = binary_request(PAIR)
    headers = {LENGTH: str(len(text))}
    reply = http.call("POST", "/v2/models/add_sub/infer", text + blobs + b"abc", headers)
    assert reply.status == 400
    assert "unexpected additional input data for model 'add_sub': 3 bytes" in reply.error


def test_a_tensor_whose_bytes_are_missing_is_refused(http: HttpDoor, grpc_door: GrpcDoor) -> None:
    text, blobs = binary_request(PAIR)
    headers = {LENGTH: str(len(text))}
    reply = http.call("POST", "/v2/models/add_sub/infer", text + blobs[:64], headers)
    assert reply.status == 400
    assert "unexpected size for input 'INPUT1', expecting 64 additional bytes" in reply.error
    message = grpc_request("add_sub", PAIR)
    del message.raw_input_contents[1]
    with pytest.raises(Refused, match="unable to find data for input tensor 'INPUT1'") as caught:
        grpc_door.ask("ModelInfer", message)
    assert caught.value.code == "INVALID_ARGUMENT"


# --- paths and versions -------------------------------------------------------------------------


@pytest.mark.parametrize("version", ["abc", "-1", "1p0", "1.0", " 1", "99999999999999999999"])
def test_a_version_that_is_no_number_is_refused(
    http: HttpDoor, grpc_door: GrpcDoor, version: str
) -> None:
    for rest in ("infer", "ready", "config", "stats", ""):
        verb = "POST" if rest == "infer" else "GET"
        path = f"/v2/models/fp32/versions/{version.replace(' ', '%20')}/{rest}".rstrip("/")
        reply = http.call(verb, path, as_json("FP32", [1]) if rest == "infer" else None)
        assert reply.status == 400, path
    for method in ("ModelReady", "ModelMetadata", "ModelConfig", "ModelStatistics"):
        with pytest.raises(Refused) as caught:
            grpc_door.ask(method, name="fp32", version=version)
        assert caught.value.code == "INVALID_ARGUMENT"
    with pytest.raises(Refused) as caught:
        grpc_door.infer("fp32", [ONE], version=version)
    assert caught.value.code == "INVALID_ARGUMENT"


def test_a_version_with_a_leading_zero_is_that_number(door: Door) -> None:
    assert door.infer("fp32", [ONE], version="01")["OUTPUT0"].data == ONE.data


VERBS = ("GET", "POST", "PUT", "DELETE", "PATCH", "HEAD", "OPTIONS", "TRACE")
ROUTES = (
    "/v2",
    "/v2/health/live",
    "/v2/health/ready",
    "/v2/models/{}",
    "/v2/models/{}/ready",
    "/v2/models/{}/config",
    "/v2/models/{}/stats",
    "/v2/models/{}/infer",
    "/v2/models/{}/generate",
    "/v2/models/{}/generate_stream",
    "/v2/models/{}/trace/setting",
    "/v2/models/fp32/versions/{}",
    "/v2/models/fp32/versions/{}/infer",
    "/v2/models/stats",
    "/v2/{}",
    "/{}",
    "/v2/repository/{}/index",
    "/v2/repository/models/{}/load",
    "/v2/systemsharedmemory/region/{}/register",
    "/v2/systemsharedmemory/region/{}/status",
    "/v2/cudasharedmemory/region/{}/register",
    "/v2/trace/setting/{}",
    "/v2/logging/{}",
)
NAMES = (
    *("%00", "a%00b", "..", "%2e%2e", "%2F", "a%2Fb", "%", "%zz", "%ff", "%C3%A9", "\\", "~", "*"),
    *("<script>", "{}", "%7B0%7D", "null", "-1", "fp32/", "fp32//", "fp32?x", "x" * 5000),
)


def test_any_verb_on_any_path_is_the_clients_own_fault(http: HttpDoor) -> None:
    """The only other answers are right ones and "not in this release"."""
    random = Random(7)
    names = [*NAMES, *("".join(random.choices(string.printable[:94], k=9)) for _ in range(6))]
    names = [name.replace(" ", "").replace("#", "").replace("?", "") or "n" for name in names]
    seen = set()
    for route in ROUTES:
        for index, name in enumerate(names):
            path = route.format(name)
            if index % 4 == 0:
                path += "/"
            elif index % 4 == 1:
                path = path.replace("/v2", "//v2", 1)
            verb = VERBS[(index + len(route)) % len(VERBS)]
            status = http.call(verb, path, b"" if verb == "POST" else None).status
            assert status in (200, 501) or 400 <= status < 500, f"{verb} {path}: {status}"
            seen.add(status)
    assert {400, 404, 405} <= seen
    still_answers(http)
