"""When a running batch is expected to end."""

from __future__ import annotations

from random import Random

from naiad.broker.core.prediction import Prediction


def test_prediction_follows_each_batch_size_by_itself() -> None:
    prediction = Prediction()
    assert prediction.busy_ns(1) is None
    prediction.observe(1, 100, None)
    prediction.observe(8, 400, None)
    assert (prediction.busy_ns(1), prediction.busy_ns(8)) == (100, 400)
    for _ in range(50):
        prediction.observe(1, 200, None)
    assert prediction.busy_ns(1) in (199, 200)


def test_the_hand_over_is_above_most_of_what_was_seen() -> None:
    prediction = Prediction()
    random = Random(1)
    seen = [100_000 + random.randrange(100_000) for _ in range(500)]
    for handover_ns in seen:
        prediction.observe(1, 1, handover_ns)
    expected = prediction.handover_ns()
    assert 0.8 < sum(one <= expected for one in seen) / len(seen) < 1
    before = prediction.handover_ns()
    prediction.observe(1, 1, None)
    prediction.observe(1, 1, -5)
    assert prediction.handover_ns() == before


def test_the_batch_sizes_remembered_are_bounded() -> None:
    prediction = Prediction()
    for rows in range(10_000):
        prediction.observe(rows, 1, None)
    assert sum(prediction.busy_ns(rows) is not None for rows in range(10_000)) == 128


def test_what_inputs_take_to_their_device_is_part_of_the_lead() -> None:
    prediction = Prediction()
    for _ in range(50):
        prediction.observe(1, 1000, 100, 400)
    assert prediction.busy_ns(1) == 1000
    assert prediction.lead_ns() - prediction.handover_ns() in (399, 400)
    before = prediction.lead_ns()
    prediction.observe(1, 1000, None, 0)
    assert prediction.lead_ns() == before, "sent ahead, its inputs took nothing"
