"""naiad and a real Triton, given the same models and asked the same over HTTP.

What differs on purpose names its row in docs/compatibility.md, and must differ; the rest must not.
Needs --triton-command.
"""

from __future__ import annotations

import http.client
import json
import re
import struct
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest

from support.exposition import Series, parsed
from support.stock_server import Stock

Json = dict[str, Any]
ROWS: Final = (Path(__file__).parents[2] / "docs" / "compatibility.md").read_text()
PATIENCE_S: Final = 30
PREFIX: Final = re.compile(r"^\[request id: [^\]]*\] ")


class Answer(NamedTuple):
    status: int
    body: Any
    """Parsed if it is JSON."""
    binary: bytes = b""


def ask(server: Stock, verb: str, path: str, body: Any = None, json_bytes: int = -1) -> Answer:
    connection = http.client.HTTPConnection(server.http, timeout=PATIENCE_S)
    headers = {"Inference-Header-Content-Length": str(json_bytes)} if json_bytes >= 0 else {}
    data = body if isinstance(body, bytes | None) else json.dumps(body).encode()
    try:
        connection.request(verb, path, data, headers)
        response = connection.getresponse()
        content = response.read()
    finally:
        connection.close()
    size = int(response.headers.get("Inference-Header-Content-Length") or len(content))
    text = content[:size]
    return Answer(response.status, json.loads(text) if text else None, content[size:])


def difference(ours: Answer, theirs: Answer) -> str:
    """ "" if they say the same: errors may say more behind Triton's text."""
    if ours.status != theirs.status:
        return f"status {ours.status}, Triton {theirs.status}: {ours.body} {theirs.body}"
    if ours.status >= 400 and theirs.body and "error" in theirs.body:
        mine, text = (PREFIX.sub("", one.body["error"]) for one in (ours, theirs))
        beginning = text.rstrip(" .")
        return "" if mine.startswith(beginning) else f"{mine!r}, Triton {text!r}"
    if ours[1:] != theirs[1:]:
        return f"{ours[1:]}, Triton {theirs[1:]}"
    return ""


# --- what there is -------------------------------------------------------------------------------

MODELS: Final = (
    "identity", "text", "adder", "tuned", "tuned/versions/3", "labelled", "by_four", "echo_bf16",
    "nobody", "tuned/versions/2", "identity/versions/9",
)  # fmt: skip


@pytest.mark.parametrize("what", ["", "/config", "/ready"])
@pytest.mark.parametrize("model", MODELS)
def test_documents(naiad: Stock, triton: Stock, model: str, what: str) -> None:
    path = f"/v2/models/{model}{what}"
    assert difference(ask(naiad, "GET", path), ask(triton, "GET", path)) == ""


def test_extensions(naiad: Stock, triton: Stock) -> None:
    """Those that are not here yet are not named."""
    ours, theirs = (ask(one, "GET", "/v2").body["extensions"] for one in (naiad, triton))
    assert ours == [one for one in theirs if one in ours]
    assert set(theirs) - set(ours) <= {"sequence", "cuda_shared_memory", "trace"}


# --- inference -----------------------------------------------------------------------------------


def given(shape: Any = (1, 16), datatype: Any = "FP32", data: Any = None, **more: Any) -> Json:
    count = 1
    for dim in shape if isinstance(shape, tuple) else ():
        count *= dim
    data = [1] * max(0, count) if data is None else data
    return {"name": "INPUT0", "shape": shape, "datatype": datatype, "data": data, **more}


def asked(*inputs: Any, **more: Any) -> Json:
    return {"inputs": list(inputs) or [given()], **more}


def output(**parameters: Any) -> Json:
    return {"name": "OUTPUT0", "parameters": parameters}


WRONG: Final = "wrong JSON, wrong type, wrong count"
REQUESTS: Final[dict[str, tuple[str, Any, str]]] = {
    "plain": ("identity", asked(), ""),
    "id": ("identity", asked(id="mine"), ""),
    "empty id": ("identity", asked(id=""), ""),
    "number as id": ("identity", asked(id=5), WRONG),
    "nested": ("identity", asked(given(data=[[[1] * 8, [2] * 8]])), ""),
    "output": ("identity", asked(outputs=[output()]), ""),
    "no outputs": ("identity", asked(outputs=[]), ""),
    "unknown output": ("identity", asked(outputs=[{"name": "X"}], id="r"), ""),
    "unnamed output": ("identity", asked(outputs=[{}]), WRONG),
    "output twice": ("identity", asked(outputs=[output(), output()]), "output asked for twice"),
    "unknown input": ("identity", asked({**given(), "name": "X"}, id="r"), ""),
    "input twice": ("identity", asked(given(), given()), ""),
    "no inputs": ("identity", {"inputs": []}, ""),
    "nothing": ("identity", {}, WRONG),
    "no JSON": ("identity", b"{", WRONG),
    "too large a batch": ("identity", asked(given((9, 16))), ""),
    "batch of none": ("identity", asked(given((0, 16))), "batch dimension of 0"),
    "wrong dimension": ("identity", asked(given((1, 15))), ""),
    "wrong rank": ("identity", asked(given((1, 16, 1))), ""),
    "negative dimension": ("identity", asked(given((-1, 16))), WRONG),
    "wrong datatype": ("identity", asked(given(datatype="INT32")), ""),
    "no datatype": ("identity", asked(given(datatype="FLOAT")), ""),
    "too few values": ("identity", asked(given(data=[1])), WRONG),
    "text as number": ("identity", asked(given(data=["a"] * 16)), WRONG),
    "no data": ("identity", asked({"name": "INPUT0", "shape": [1, 16], "datatype": "FP32"}), ""),
    "priority and timeout": (
        "identity", asked(parameters={"priority": 1, "timeout": 1_000_000}), "",
    ),
    "parameters of any kind": ("identity", asked(parameters={"a": 1.5, "b": True, "c": "x"}), ""),
    "reserved parameter": ("identity", asked(parameters={"triton_x": 1}), ""),
    "array as parameter": ("identity", asked(parameters={"a": [1]}), "a parameter of a wrong type"),
    "sequence": ("identity", asked(parameters={"sequence_id": 5}), "`sequence_id`"),
    "model's error": ("identity", asked(parameters={"raise": "as asked"}, id="q"), ""),
    "binary by default": ("identity", asked(parameters={"binary_data_output": True}), ""),
    "binary output": ("identity", asked(outputs=[output(binary_data=True)]), ""),
    "listed output stays JSON": (
        "identity", asked(outputs=[output()], parameters={"binary_data_output": True}), "",
    ),
    "unknown region": (
        "identity",
        asked(outputs=[output(shared_memory_region="r", shared_memory_byte_size=64)]), "",
    ),
    "classes": ("identity", asked(outputs=[output(classification=2)]), ""),
    "no classes": ("identity", asked(outputs=[output(classification=0)]), ""),
    "labels": (
        "labelled", asked(given((2, 4), data=[1, 7, 2, 5] * 2), outputs=[output(classification=3)]),
        "",
    ),
    "all labels, binary": (
        "labelled",
        asked(given((1, 4), data=[1, 7, 2, 5]), outputs=[
            output(classification=9, binary_data=True)
        ]), "",
    ),
    "strings": ("text", asked(given((2, 1), "BYTES", ["grün", "a\0b"])), ""),
    "strings, binary": (
        "text", asked(given((1, 1), "BYTES", ["a"]), outputs=[output(binary_data=True)]), "",
    ),
    "number as string": ("text", asked(given((1, 1), "BYTES", [5])), WRONG),
    "empty tensor": ("echo_fp32", asked(given((0,), data=[])), ""),
    "large and small": ("echo_fp32", asked(given((3,), data=[1e39, 1e-50, 0.25])), ""),
    "bool": ("echo_bool", asked(given((2,), "BOOL", [True, False])), ""),
    "integers as bool": ("echo_bool", asked(given((2,), "BOOL", [1, 0])), WRONG),
    "integer out of range": ("echo_uint8", asked(given((1,), "UINT8", [300])), "integer out of"),
    "largest integers": ("echo_int64", asked(given((2,), "INT64", [2**63 - 1, -(2**63)])), ""),
    "FP16 as JSON": ("echo_fp16", asked(given((1,), "FP16", [1.0])), ""),
    "two inputs": ("adder", asked(given(), {**given(), "name": "INPUT1"}), ""),
    "one of two outputs": (
        "adder", asked(given(), {**given(), "name": "INPUT1"}, outputs=[{"name": "OUTPUT1"}]), "",
    ),
    "an input missing": ("adder", asked(id="i"), ""),
    "unknown model": ("nobody", asked(id="z"), ""),
    "unknown version": ("tuned/versions/2", asked(given((1, 4)), id="z"), ""),
    "newest version": ("tuned", asked(given((1, 4))), ""),
}  # fmt: skip


@pytest.mark.parametrize("name", REQUESTS)
def test_inference(naiad: Stock, triton: Stock, name: str) -> None:
    model, body, row = REQUESTS[name]
    path = f"/v2/models/{model}/infer"
    ours, theirs = (ask(one, "POST", path, body) for one in (naiad, triton))
    found = difference(ours, theirs)
    assert bool(found) is bool(row), found
    assert row in ROWS
    if row == WRONG:
        # Another status alone: the text begins as Triton's does, up to its own words.
        assert (ours.status, theirs.status) == (400, 500)


RAW: Final = struct.pack("<4f", 0.1, 0.7, 0.2, 0.7)


@pytest.mark.parametrize(
    ("blob", "length"), [(RAW, None), (RAW[:-1], None), (RAW + b"x", None), (RAW, 0), (b"", 9999)]
)
def test_binary_bodies(naiad: Stock, triton: Stock, blob: bytes, length: int | None) -> None:
    one = {"name": "INPUT0", "shape": [1, 4], "datatype": "FP32"}
    head = json.dumps(asked({**one, "parameters": {"binary_data_size": 16}})).encode()
    body = blob if length == 0 else head + blob
    sent = len(head) if length is None else length
    ours, theirs = (
        ask(server, "POST", "/v2/models/labelled/infer", body, sent) for server in (naiad, triton)
    )
    assert difference(ours, theirs) == ""


# --- statistics and metrics ----------------------------------------------------------------------

COUNTERS: Final = (
    "nv_inference_request_success", "nv_inference_request_failure", "nv_inference_count",
    "nv_inference_exec_count",
)  # fmt: skip
ELSEWHERE: Final = re.compile("nv_(gpu|energy|pinned)_|nv_inference_pending_request_count$")
"""Families of a server with GPUs, and one whose value is of the moment."""
NEWER: Final = frozenset({"nv_model_load_duration_secs"})
"""Families of newer releases than 2.51."""


class Counted(NamedTuple):
    """What a server says of a model: its statistics, and the samples with its name."""

    stats: Json
    series: Series
    types: dict[str, str]

    def since(self, before: Counted) -> dict[Any, float]:
        names = {key for key in self.series if key[0] in COUNTERS}
        return {key: self.series[key] - before.series[key] for key in names}

    def batches(self, before: Counted) -> dict[int, int]:
        known = before._batches()
        return {rows: count - known.get(rows, 0) for rows, count in self._batches().items()}

    def _batches(self) -> dict[int, int]:
        return {
            one["batch_size"]: one["compute_infer"]["count"] for one in self.stats["batch_stats"]
        }


def counted(server: Stock, model: str) -> Counted:
    (stats,) = ask(server, "GET", f"/v2/models/{model}/stats").body["model_stats"]
    connection = http.client.HTTPConnection(server.metrics, timeout=PATIENCE_S)
    try:
        connection.request("GET", "/metrics")
        page = connection.getresponse().read()
    finally:
        connection.close()
    lines = [line.split() for line in page.decode().splitlines() if line.startswith("# TYPE ")]
    mine = {key: value for key, value in parsed(page).items() if ("model", model) in key[1]}
    return Counted(stats, mine, {line[2]: line[3] for line in lines})


def traffic(server: Stock) -> None:
    """Successes one by one and as one batch, and what is refused before it is queued."""

    def infer(model: str, *shape: int, **more: Any) -> int:
        body = asked(given(shape), **more)
        return ask(server, "POST", f"/v2/models/{model}/infer", body).status

    assert [infer("batched", rows, 4) for rows in (1, 2, 2)] == [200, 200, 200]
    assert infer("batched", 1, 5) == 400
    assert infer("batched", 9, 4) == 400
    assert infer("batched", 1, 4, outputs=[{"name": "X"}]) == 400
    with ThreadPoolExecutor(4) as pool:
        assert set(pool.map(lambda _: infer("by_four", 1, 4), range(4))) == {200}


@pytest.fixture(scope="module")
def told(naiad: Stock, triton: Stock) -> dict[str, tuple[Counted, Counted, Counted, Counted]]:
    """By the model: naiad before and after the same traffic, Triton before and after."""
    servers = (naiad, triton)
    models = ("batched", "by_four")
    before = {model: [counted(server, model) for server in servers] for model in models}
    for server in servers:
        traffic(server)
    return {
        model: (
            before[model][0], counted(naiad, model), before[model][1], counted(triton, model)
        )
        for model in models
    }  # fmt: skip


Told = dict[str, tuple[Counted, Counted, Counted, Counted]]


@pytest.mark.parametrize("model", ["batched", "by_four"])
def test_metrics(told: Told, model: str) -> None:
    """Names, types, labels and what the counters count."""
    our_before, ours, their_before, theirs = told[model]
    wanted = {key for key in theirs.series if not ELSEWHERE.match(key[0])}
    assert wanted - set(ours.series) == set()
    names = {name for name, _ in ours.series if name.startswith("nv_")} - NEWER
    assert {key for key in ours.series if key[0] in names} == {
        key for key in theirs.series if key[0] in names
    }
    assert {name: ours.types[name] for name in names} == {
        name: theirs.types[name] for name in names
    }
    assert ours.since(our_before) == theirs.since(their_before)
    times = [key for key in ours.series if key[0].endswith("_duration_us")]
    assert len(times) == 5
    for key in times:
        assert ours.series[key] >= our_before.series[key]


def test_families_of_the_server(told: Told) -> None:
    _, ours, _, theirs = told["batched"]
    lacking = {name for name in theirs.types if name not in ours.types}
    assert all(ELSEWHERE.match(name) for name in lacking), lacking
    beyond = {name for name in ours.types if name.startswith("nv_")} - set(theirs.types)
    assert beyond <= NEWER


@pytest.mark.parametrize("model", ["batched", "by_four"])
def test_statistics(told: Told, model: str) -> None:
    """The same structure, and the same counts of the same traffic."""
    our_before, ours, their_before, theirs = told[model]
    assert shape_of(ours.stats) == shape_of(theirs.stats)
    assert list(ours.stats) == list(theirs.stats)

    def counts(before: Json, after: Json) -> dict[str, Any]:
        leaves = {
            name: one["count"] - before["inference_stats"][name]["count"]
            for name, one in after["inference_stats"].items()
        }
        totals = ("inference_count", "execution_count")
        return leaves | {name: after[name] - before[name] for name in totals}

    assert counts(our_before.stats, ours.stats) == counts(their_before.stats, theirs.stats)
    assert ours.batches(our_before) == theirs.batches(their_before)


def test_a_models_error(naiad: Stock, triton: Stock) -> None:
    """A failure of its backend; the Python backend of 2.51 reports a success."""
    body = asked(given((1, 4)), parameters={"raise": "as asked"})
    found = []
    for server in (naiad, triton):
        before = counted(server, "labelled")
        assert ask(server, "POST", "/v2/models/labelled/infer", body).status == 500
        after = counted(server, "labelled")
        since = {
            (name, dict(labels).get("reason")): value
            for (name, labels), value in after.since(before).items()
            if value
        }
        found.append(since)
    assert found[0] == {("nv_inference_request_failure", "BACKEND"): 1}
    assert found[1] == {
        ("nv_inference_request_success", None): 1,
        ("nv_inference_count", None): 1,
        ("nv_inference_exec_count", None): 1,
    }
    assert "a model's error in the counters" in ROWS


def shape_of(value: Any) -> Any:
    """The same with a type in place of each value: what a tool relies on."""
    if isinstance(value, dict):
        return {key: shape_of(one) for key, one in value.items()}
    return [shape_of(one) for one in value] if isinstance(value, list) else type(value)
