"""An InferAnswer to the parts of an HTTP response's body. Pure.

Binary outputs are passed on as they are, never copied. What is inside a tensor only the given
converter knows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from json import dumps
from json.encoder import encode_basestring
from typing import Final, NamedTuple

from naiad.client.requests import Buffer
from naiad.gateway.calls import InferAnswer, InferCall

ToJson = Callable[[str, str, tuple[int, ...], memoryview], bytes]
"""(output's name, datatype, shape, bytes) to a flat JSON array; see naiad.gateway.json_tensors."""

APART_BYTES_MIN: Final = 64 * 1024
"""Of an array as JSON, from which on copying it once more costs too much."""

INLINE_BYTES_MAX: Final = 4 * 1024
"""Of one that was written in parts and yet is no part of its own: a thousand of them are 4 MiB."""

NOTHING: Final[Mapping[str, Sequence[bytes]]] = {}

JSON_TYPE: Final = "application/json"
BINARY_TYPE: Final = "application/octet-stream"


class Body(NamedTuple):
    """A response's body in parts. `json_length` is None when there is nothing behind the JSON."""

    parts: list[Buffer]
    json_length: int | None


def answer_body(
    call: InferCall,
    answer: InferAnswer,
    to_json: ToJson,
    written: Mapping[str, Sequence[bytes]] = NOTHING,
) -> Body:
    """The body for an answer, its outputs as the call asked for them.

    `written`: the arrays of some outputs, by name, in parts.

    Raises RequestError when an output that was asked for as JSON cannot be written so.
    """
    wishes = {one.name: one.is_binary for one in call.outputs}
    binary: list[Buffer] = []
    texts: list[str] = []
    large: dict[int, Sequence[bytes]] = {}
    """Arrays that follow a text, and are not copied into it."""
    for name, datatype, shape, data in answer.outputs:
        head = (
            f'{{"name":{encode_basestring(name)},"datatype":"{datatype}",'
            f'"shape":[{",".join(map(str, shape))}]'
        )
        if data is None:  # in the shared memory that was asked for
            texts.append(f"{head}}}")
        elif wishes.get(name, call.is_binary_by_default):
            texts.append(f'{head},"parameters":{{"binary_data_size":{len(data)}}}}}')
            if len(data):
                binary.append(data)
        elif name in written and sum(map(len, written[name])) < INLINE_BYTES_MAX:
            texts.append(f'{head},"data":{b"".join(written[name]).decode()}}}')
        elif name in written:
            large[len(texts)] = written[name]
            texts.append(f'{head},"data":')
        else:
            array = to_json(name, datatype, shape, data)
            if len(array) < APART_BYTES_MIN:
                texts.append(f'{head},"data":{array.decode()}}}')
            else:
                large[len(texts)] = (array,)
                texts.append(f'{head},"data":')
    label = f'"id":{encode_basestring(answer.id)},' if answer.id else ""
    parameters = ""
    if answer.parameters:
        others = dumps(answer.parameters, ensure_ascii=False, separators=(",", ":"))
        parameters = f'"parameters":{others},'
    begin = (
        f'{{{label}"model_name":{encode_basestring(answer.model)},"model_version":"{answer.version}",'
        f'{parameters}"outputs":['
    )
    if large:
        json = _interleaved(begin, texts, large)
    else:
        json = [f"{begin}{','.join(texts)}]}}".encode("utf-8", "backslashreplace")]
    if not binary:
        return Body(json, None)
    return Body([*json, *binary], sum(map(len, json)))


def _interleaved(
    begin: str, texts: list[str], large: Mapping[int, Sequence[bytes]]
) -> list[Buffer]:
    """The JSON in parts, large arrays as they are."""
    parts: list[Buffer] = []
    for index, text in enumerate(texts):
        begin += f",{text}" if index else text
        if index in large:
            parts += (begin.encode("utf-8", "backslashreplace"), *large[index])
            begin = "}"
    return [*parts, f"{begin}]}}".encode("utf-8", "backslashreplace")]
