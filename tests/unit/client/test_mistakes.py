"""A caller's mistake is told as one: what was expected, what came, what to do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from naiad.client import Client, ClientRegion, InferInput, RequestError, prepare
from naiad.client.tensors import packed_array

VALUES = np.ones(4, np.float32)
GOOD = {"x": VALUES}
LONG = "n" * 1025
BAD: Any = None
RAW = InferInput("x", "FP32", (4,), bytes(16))


class Reluctant:
    """Refuses to become an array in a way of its own, as arrays of a GPU may."""

    def __array__(self, *_: Any, **__: Any) -> Any:
        raise RuntimeError("call .cpu() first")


def objects(*items: Any) -> Any:
    out = np.empty(len(items), object)
    out[:] = items
    return out


@pytest.mark.parametrize("model", [5, None, b"m", True, 2**70])
def test_in_the_name_of_a_model(model: Any) -> None:
    with pytest.raises(RequestError, match="expected a model's name, a version and a label"):
        prepare(model, GOOD)
    with pytest.raises(RequestError, match="expected a model's name, a version and a label"):
        prepare(model, GOOD, label="with an option")


@pytest.mark.parametrize("given", [None, "1", 0.5, True, -(2**70), 2**70, [], b""])
@pytest.mark.parametrize("option", ["version", "priority", "timeout_us", "sequence", "label"])
def test_in_an_option(option: str, given: Any) -> None:
    if (option, given) in (("sequence", None), ("label", "1")):
        prepare("m", GOOD, **{option: given})
        return
    with pytest.raises(RequestError):
        prepare("m", GOOD, **{option: given})


@pytest.mark.parametrize("given", [None, "1", 0.5, np.int64(4), -(2**70), 2**70])
@pytest.mark.parametrize("field", ["place", "region", "offset", "size", "shape"])
def test_in_a_raw_input(field: str, given: Any) -> None:
    raw = InferInput("x", "FP32", (4,), None, 1, 1, 0, 16)
    changed: dict[str, Any] = {field: (given,) if field == "shape" else given}
    with pytest.raises(RequestError, match="input 'x'"):
        prepare("m", [raw._replace(**changed)])


@pytest.mark.parametrize(
    ("inputs", "options", "said"),
    [
        (GOOD, {"parameters": "x"}, "parameters as a dict .*'x'"),
        (GOOD, {"parameters": ["a"]}, "parameters as a dict"),
        (GOOD, {"parameters": {"a": 2**63}}, r"64-bit integer \(-2\*\*63 to 2\*\*63-1\)"),
        (GOOD, {"parameters": {LONG: 1}}, "name as a string of at most 1024 .* one of 1025"),
        (GOOD, {"accounting_key": LONG}, "accounting_key as a string of at most 1024 .*1025"),
        (GOOD, {"fairness_key": 5}, "fairness_key as a string .*got 5"),
        (GOOD, {"label": LONG}, "a label as a string of at most 1024"),
        (GOOD, {"sequence": 5}, r"a sequence \(id, start, end\).*got 5"),
        (GOOD, {"sequence": (1, True)}, r"a sequence \(id, start, end\)"),
        (GOOD, {"timeout_us": 2**60}, r"microseconds, from 0 \(none\) to \d+ \(a year\)"),
        (GOOD, {"timeout_us": 0.5}, "whole number of microseconds.*got 0.5"),
        (None, {}, r"inputs as arrays by name.*NoneType"),
        (5, {}, "inputs as arrays by name"),
        ("abc", {}, "inputs as arrays by name"),
        (VALUES, {}, "inputs as arrays by name.*ndarray"),
        ([VALUES], {}, "list of InferInput, got one with ndarray; .*by name"),
        ([("x", "FP32")], {}, "list of InferInput"),
        ([InferInput("x", "FP32", BAD, b"")], {}, "shape as a tuple"),
        ([InferInput("x", BAD, (4,), b"")], {}, "unknown datatype"),
        ({5: VALUES}, {}, "an input's name as a string"),
        (GOOD, {"outputs": 5}, "list of output names, got 5"),
        (GOOD, {"outputs": {"y": 5}}, "expected an OutputPlace .*got 5"),
        (GOOD, {"outputs": [LONG]}, "an output's name as a string of at most 1024"),
        ({"x": np.ma.masked_array([1, 2], [True, False])}, {}, r"masked array.*filled"),
        ({"x": objects(None)}, {}, "bytes or str elements, got NoneType"),
        ({"x": objects(b"a", 5)}, {}, "bytes or str elements, got int 5"),
        ({"x": objects(np.float32(1), b"")}, {}, "bytes or str elements, got float32"),
        ({"x": objects([1], "a")}, {}, "bytes or str elements, got list"),
        ({"x": None}, {}, "bytes or str elements, got NoneType"),
        ({"x": ["a", 5]}, {}, "strings and other things"),
        ({"x": [[1], [2, 3]]}, {}, "not an array"),
        ({"x": "\ud800"}, {}, "surrogates not allowed; encode it to bytes"),
        ({"x": objects("\ud800")}, {}, "surrogates not allowed; encode it to bytes"),
        ({"x": Reluctant()}, {}, r"not an array: call .cpu\(\) first"),
        ({"x": np.zeros(2, "c8")}, {}, "no datatype for NumPy's complex64"),
        ({"x": np.zeros(2, "i4,f4")}, {}, "no datatype for NumPy's"),
    ],
)
def test_in_a_request(inputs: Any, options: dict[str, Any], said: str) -> None:
    with pytest.raises(RequestError, match=said) as raised:
        prepare("m", inputs, **options)
    assert not raised.value.retryable


def test_an_unknown_option_is_named() -> None:
    with pytest.raises(TypeError, match="timeout"):
        prepare("m", GOOD, timeout=5)  # type: ignore[call-arg]


def test_what_looks_odd_but_is_good() -> None:
    prepare("m", GOOD, parameters={"least": -(2**63), "most": 2**63 - 1}, sequence=[1, True, False])  # type: ignore[arg-type]
    prepare("m", (RAW,), np.array(["y"]).tolist())
    packed = packed_array("x", objects(b"a", "b", bytearray(b"c")))
    assert packed[7] == b"\1\0\0\0a\1\0\0\0b\1\0\0\0c"
    if hasattr(np.dtypes, "StringDType"):
        texts = np.array(["ab", "ü"], dtype=np.dtypes.StringDType())
        assert packed_array("x", texts)[1:3] == ("BYTES", (2,))
        assert packed_array("x", texts)[7] == b"\2\0\0\0ab\2\0\0\0\xc3\xbc"


def test_in_making_a_client(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="on_full: expected wait or raise, got 'drop'"):
        Client(tmp_path, on_full="drop")  # type: ignore[arg-type]
    with pytest.raises(RequestError, match="role as a string of at most 1024"):
        Client(tmp_path, role=LONG)
    with pytest.raises(RequestError, match="role as a string of at most 1024"):
        Client(tmp_path, role=5)  # type: ignore[arg-type]
    with pytest.raises(RequestError, match="on_full: expected wait or raise, got 5"):
        Client(tmp_path, on_full=5)  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        Client(5)  # type: ignore[arg-type]
    assert "run/clients.sock" in repr(Client(str(tmp_path / "run").encode()))  # type: ignore[arg-type]


@pytest.mark.parametrize("size", ["5", 0, -1, 1.5, True, None, 2**63])
def test_in_the_size_of_a_region(tmp_path: Path, size: Any) -> None:
    with pytest.raises(RequestError, match="number of bytes, from 1") as raised:
        Client(tmp_path, connect_timeout_s=0).region(size)
    assert not raised.value.retryable


def test_in_the_use_of_a_region(tmp_path: Path) -> None:
    region = ClientRegion(1, 0, memoryview(bytearray(64)), lambda: None)
    for attempt in (
        lambda: region.place("a"),  # type: ignore[arg-type]
        lambda: region.place(0, None),  # type: ignore[arg-type]
        lambda: region.place(0, -2),
        lambda: region.array("FP32", 5),  # type: ignore[arg-type]
        lambda: region.array("FP32", (-1,)),
        lambda: region.array("float32", (4,)),
        lambda: region.array("FP32", (4,), 64),
        lambda: region.input("x", "BYTES", (4,)),
        lambda: Client(tmp_path).attach(5),  # type: ignore[arg-type]
        lambda: Client(tmp_path).detach("/name"),  # type: ignore[arg-type]
    ):
        with pytest.raises(RequestError):
            attempt()


def test_in_what_is_submitted(tmp_path: Path) -> None:
    client = Client(tmp_path, connect_timeout_s=0)
    with pytest.raises(RequestError, match="sent as it was prepared"):
        client.infer(prepare("m", GOOD), GOOD)
    with pytest.raises(RequestError, match="sent as it was prepared"):
        client.submit(prepare("m", GOOD), timeout_us=5)
    with pytest.raises(TypeError, match="callback: expected a function, got 5"):
        client.submit("m", GOOD, callback=5)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"expected an Operation .*'live'"):
        client.call("live")  # type: ignore[arg-type]
    for transport in ("auto", "shm"):
        with pytest.raises(RequestError, match="inputs as arrays by name"):
            Client(tmp_path, transport=transport).infer("m", 5)  # type: ignore[arg-type]
