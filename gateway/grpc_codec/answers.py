"""An answer to the bytes of a ModelInferResponse, alone or as an item of a stream. Pure."""

from __future__ import annotations

from functools import lru_cache
from typing import Final

from naiad.gateway.calls import InferAnswer
from naiad.gateway.grpc_codec.parameters import FINAL, set_parameters
from naiad.gateway.grpc_codec.wire import Parts, delimited, varint, with_raw_outputs
from naiad.gateway.proto.inference_pb2 import ModelInferResponse
from naiad.protocol.messages import Parameters

HEADS_MAX: Final = 256
"""Beginnings of answers kept: the answers of one model mostly differ in tensors and id alone."""

_ID_TAG: Final = 3 << 3 | 2
_ERROR_TAG: Final = 1 << 3 | 2
_RESPONSE_TAG: Final = 2 << 3 | 2


def encoded_answer(answer: InferAnswer) -> Parts:
    """A serialised ModelInferResponse, always with raw contents; large ones are not copied.

    As in Triton there is one raw entry per output, empty where the output was written to shared
    memory: clients find an output's entry by its index.
    """
    return _response(answer, answer.parameters)


def encoded_part(answer: InferAnswer, *, is_final: bool) -> Parts:
    """A serialised ModelStreamInferResponse with an answer, marked as the request's last or not."""
    marked: Parameters = {**answer.parameters, FINAL: is_final}
    parts = _response(answer, marked)
    if len(parts) == 1:
        return [delimited(_RESPONSE_TAG, bytes(parts[0]))]
    return [bytes((_RESPONSE_TAG,)) + varint(sum(map(len, parts))), *parts]


def encoded_fault(message: str, ident: str, model: str = "") -> bytes:
    """A stream's item that says why the request of this id failed; the stream goes on.

    `model`: which one was given the request before it failed; that was its final answer then.
    """
    response = ModelInferResponse(id=ident)
    if model:
        response.model_name = model
        set_parameters(response.parameters, {FINAL: True})
    # An empty text would read as success.
    text = (message or "unknown error").encode(errors="replace")
    return delimited(_ERROR_TAG, text) + delimited(_RESPONSE_TAG, response.SerializeToString())


def _response(answer: InferAnswer, parameters: Parameters) -> Parts:
    tensors: list[tuple[str, str, tuple[int, ...]]] = []
    contents: Parts = []
    for name, datatype, shape, data in answer.outputs:
        tensors.append((name, datatype, shape))
        contents.append(b"" if data is None else data)
    structure = _head(answer.model, answer.version, tuple(tensors))
    if answer.id:
        structure += delimited(_ID_TAG, answer.id.encode(errors="replace"))
    if parameters:
        message = ModelInferResponse()
        set_parameters(message.parameters, parameters)
        structure += message.SerializeToString()
    return with_raw_outputs(structure, contents)


@lru_cache(maxsize=HEADS_MAX)
def _head(model: str, version: int, tensors: tuple[tuple[str, str, tuple[int, ...]], ...]) -> bytes:
    message = ModelInferResponse(model_name=model, model_version=str(version))
    for name, datatype, shape in tensors:
        message.outputs.add(name=name, datatype=datatype, shape=shape)
    serialised: bytes = message.SerializeToString()
    return serialised
