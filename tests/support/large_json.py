"""Bodies with large JSON, and both ways to read them: at once and in slices."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest

from naiad.gateway.calls import InferCall
from naiad.gateway.http_request import infer_call
from naiad.gateway.json_slices import Cut, Slice, cut_out
from naiad.gateway.json_tensors import from_json
from naiad.gateway.large_json import LargeJson
from naiad.gateway.long_work import LongWork
from naiad.protocol.errors import RequestError
from support.steps import ended

LIMIT = 1 << 26
FLOATS = [number / 8 for number in range(40_000)]
STRINGS = ['"', "\\", '","', "],[", "\\\\", "é", "", '\\"', "[1,2]", ', "', "plain", "x" * 300]
ONES = ",".join(["1"] * 40_000)


def body(data: str, datatype: str = "FP32", count: int = 40_000, more: str = "") -> bytes:
    tensor = f'{{"name":"I","datatype":"{datatype}","shape":[{count}],"data":{data}}}'
    return f'{{"id":"5","inputs":[{tensor}]{more}}}'.encode()


def at_once(text: bytes, behind: bytes = b"") -> InferCall:
    return infer_call("m", 1, text + behind, len(text), from_json, LIMIT)


def in_slices(text: bytes, behind: bytes = b"") -> InferCall:
    whole = memoryview(text + behind)
    return asyncio.run(LargeJson(LongWork()).call("m", 1, whole, len(text), LIMIT, None))


def cut(text: bytes) -> Cut[list[Slice]]:
    return ended(cut_out(memoryview(text), "mark"))[0]


def noted_sizes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Of all texts that the parser is given from now on."""
    sizes: list[int] = []
    parse = json.loads

    def parsing(text: str) -> Any:
        sizes.append(len(text))
        return parse(text)

    monkeypatch.setattr(json, "loads", parsing)
    return sizes


def said(read: Callable[[bytes], Any], text: bytes) -> str:
    with pytest.raises(RequestError) as found:
        read(text)
    return found.value.message
