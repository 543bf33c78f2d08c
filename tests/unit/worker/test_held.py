"""What a worker holds for its broker, and what it forgets."""

from naiad.protocol.messages import HeldBatch
from naiad.worker.batch import ReceivedBatch
from naiad.worker.held import FINISHED_BATCHES_MAX, FinishedBatch, HeldBatches
from support.worker_parts import batch_of, request_of


def received(ident: int) -> ReceivedBatch:
    return batch_of([request_of(ident=10 * ident), request_of(ident=10 * ident + 1)])._replace(
        id=ident
    )


def run_one(held: HeldBatches) -> None:
    batch = held.take()
    assert batch is not None
    held.finish(FinishedBatch(batch.id, batch.requests, b"", []))


def test_hello_lists_finished_executing_and_waiting_batches() -> None:
    held = HeldBatches()
    held.waiting.extend([received(1), received(2), received(3)])
    run_one(held)
    held.take()
    assert held.describe() == (
        HeldBatch(1, ((1, 10), (1, 11)), True),
        HeldBatch(2, ((1, 20), (1, 21)), False),
        HeldBatch(3, ((1, 30), (1, 31)), False),
    )


def test_finished_batches_are_kept_until_acknowledged_newest_first() -> None:
    held = HeldBatches()
    for ident in range(1, FINISHED_BATCHES_MAX + 3):
        held.waiting.append(received(ident))
        run_one(held)
    newest = FINISHED_BATCHES_MAX + 2
    assert list(held.finished) == [*range(3, newest + 1)]
    held.acknowledge(newest - 2)
    assert list(held.finished) == [newest - 1, newest]
    held.acknowledge(99)
    assert not held.finished


def test_only_requests_that_are_here_can_be_abandoned_and_only_until_they_end() -> None:
    held = HeldBatches()
    held.waiting.extend([received(1), received(2)])
    held.take()
    held.abandon(((1, 10), (1, 20), (1, 99), (2, 10)))
    assert held.abandoned == {(1, 10), (1, 20)}
    held.finish(FinishedBatch(1, received(1).requests, b"", []))
    assert held.abandoned == {(1, 20)}


def test_what_its_device_has_begun_is_not_given_back() -> None:
    held = HeldBatches()
    first, second, third = batches = [received(number) for number in (1, 2, 3)]
    held.waiting.extend(batches)
    held.take()
    assert held.begin_ahead(second)
    assert held.not_begun() == [third]
    held.give_back()
    assert list(held.waiting) == [second]
    assert not held.begin_ahead(third), "it is another worker's"
    held.finish(FinishedBatch(1, first.requests, b"", []))
    assert held.take() is second
    held.waiting.append(third)
    assert held.not_begun() == [third]


def test_nothing_to_take() -> None:
    held = HeldBatches()
    assert held.take() is None
    assert held.describe() == ()
