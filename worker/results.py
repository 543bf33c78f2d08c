"""The RESULTS message of a batch, which must leave whatever a model put into it. Pure.

Everything a model returns was checked before it comes here. What still cannot be encoded, or would
be larger than the broker takes, costs the request that it belongs to, and no other. Never sends.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from naiad.protocol import messages as m
from naiad.protocol.codec import decode, encode
from naiad.protocol.errors import Code, ModelError, NaiadError, WireError

RESULTS_HEADER_BYTES_MAX: Final = m.WORKER_HEADER_BYTES_MAX * 3 // 4
"""For one RESULTS message: the broker puts a little more into the ANSWERS it makes of it, and a
client takes no more than the broker does."""

ERROR_CHARS_MAX: Final = 128 * 1024
"""Of all error texts of one RESULTS message together, whose header is bounded."""
Refuse = Callable[[int, ModelError], WireError]
"""Called with the index of a result that is replaced by an error; how the client is told it."""


def results_header(results: m.Results, frame_sizes: Sequence[int], refuse: Refuse) -> bytes:
    """The header frame of a RESULTS message with payload frames of these sizes.

    Results that no message can carry are replaced by a ModelError, after `refuse` was told.
    """
    fault: Exception | None = None
    try:
        header = encode(results)
    except Exception as failed:  # msgpack: a text, a number or a type that no message has
        fault = failed
    else:
        if len(header) <= RESULTS_HEADER_BYTES_MAX:
            return header
    share = RESULTS_HEADER_BYTES_MAX // max(1, len(results.results))
    kept = []
    for index, result in enumerate(results.results):
        error = _fault_of(result, frame_sizes, share)
        if error is not None:
            result = m.BatchResult(refuse(index, error), ())
        kept.append(result)
    assert fault is None or kept != list(results.results), fault
    return encode(results._replace(results=tuple(kept)))


def _fault_of(
    result: m.BatchResult, frame_sizes: Sequence[int], share_bytes: int
) -> ModelError | None:
    """Why this result alone cannot be sent, or not together with the others of its batch."""
    alone = m.Results(0, (result,), m.Durations(0, 0, 0), 0, ())
    try:
        header = encode(alone)
        decode(header, list(frame_sizes))
    except Exception as fault:
        return ModelError(
            f"no message can carry what the model returned: {type(fault).__name__}: {fault}; see "
            "its response parameters and shapes",
            code=Code.MODEL_OUTPUT_INVALID,
        )
    if len(header) > share_bytes:
        return ModelError(
            f"the model returned {len(header)} bytes of response parameters and descriptions, "
            f"expected at most {share_bytes} for each request of its batch; return large texts as "
            "an output",
            code=Code.MODEL_OUTPUT_INVALID,
        )
    return None


def told(request: m.BatchRequest, error: NaiadError, *, is_models: bool = False) -> WireError:
    """An error as its client reads it. A model's own text stays as it is, whatever its code."""
    code, message, is_retryable = error.wire()
    is_models = is_models and error.code != Code.MODEL_OUTPUT_INVALID
    if request.label and not is_models and error.code != Code.MODEL_ERROR:
        message = f"[request id: {request.label}] {message}"
    return (code, message, is_retryable)


def bounded(results: list[m.BatchResult]) -> tuple[m.BatchResult, ...]:
    """The results, their error texts cut so that together they fit into a header."""
    if sum([len(r.error[1]) for r in results if r.error is not None]) <= ERROR_CHARS_MAX:
        return tuple(results)
    limit = ERROR_CHARS_MAX // len(results)
    return tuple(
        result
        if result.error is None
        else result._replace(error=(result.error[0], result.error[1][:limit], result.error[2]))
        for result in results
    )
