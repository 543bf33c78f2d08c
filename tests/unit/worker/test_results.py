"""A RESULTS message leaves, whatever is in it; what cannot be sent costs its request alone."""

from __future__ import annotations

from typing import Any

import pytest

from naiad.protocol import messages as m
from naiad.protocol.codec import decode
from naiad.protocol.errors import Code, ModelError, WireError
from naiad.worker.results import RESULTS_HEADER_BYTES_MAX, results_header

GOOD = m.BatchResult(None, (m.Tensor("Y", "FP32", (1,), 0, 0, 0, 4),), 0, True, {"k": 1})


def results_of(*results: m.BatchResult) -> m.Results:
    return m.Results(9, results, m.Durations(1, 2, 3), 4, (m.Region(1, "/x", 2, 3, 4),))


def sent(results: m.Results) -> tuple[m.Results, dict[int, ModelError]]:
    refused: dict[int, ModelError] = {}

    def refuse(index: int, error: ModelError) -> WireError:
        refused[index] = error
        return error.wire()

    header = results_header(results, [4], refuse)
    found = decode(header, [4], RESULTS_HEADER_BYTES_MAX)
    assert isinstance(found, m.Results)
    return found, refused


def test_what_can_be_sent_is_sent_as_it_is() -> None:
    results = results_of(GOOD, GOOD)
    found, refused = sent(results)
    assert (found, refused) == (results, {})


@pytest.mark.parametrize(
    "bad",
    [
        GOOD._replace(parameters={"k": "\ud800"}),
        GOOD._replace(parameters={"\udc80": 1}),
        GOOD._replace(parameters={"k": 2**64}),
        GOOD._replace(parameters={"k": object()}),  # type: ignore[dict-item]
        GOOD._replace(error=("model_error", "\ud800", False)),
        GOOD._replace(outputs=(GOOD.outputs[0]._replace(shape=(0, 2**70)),)),
        GOOD._replace(outputs=(GOOD.outputs[0]._replace(name="\udcff"),)),
    ],
    ids=lambda bad: ascii(bad)[-60:],
)
def test_a_result_that_cannot_be_encoded_costs_its_request_alone(bad: Any) -> None:
    found, refused = sent(results_of(GOOD, bad, GOOD))
    assert found.results[0] == found.results[2] == GOOD
    assert list(refused) == [1]
    assert found.results[1] == m.BatchResult(refused[1].wire(), ())
    assert refused[1].code is Code.MODEL_OUTPUT_INVALID
    assert (found.batch, found.durations, found.splits) == (9, (1, 2, 3), 4)
    assert found.arenas == (m.Region(1, "/x", 2, 3, 4),)


def test_a_result_too_large_for_its_share_of_the_header_is_refused() -> None:
    large = GOOD._replace(parameters={f"k{n}": "x" * 16_000 for n in range(60)})
    found, refused = sent(results_of(GOOD, large, GOOD))
    assert list(refused) == [1]
    assert "return large texts as an output" in refused[1].message
    assert found.results[0] == found.results[2] == GOOD
