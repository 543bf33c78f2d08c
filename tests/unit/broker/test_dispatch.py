"""Batches out and results in: order, packing of bytes, the late second batch, statistics."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from naiad.broker.core import events as e
from naiad.broker.core.answers import ANSWERS_PER_MESSAGE_MAX
from naiad.protocol import messages as m
from naiad.protocol.codec import decode, encode
from naiad.protocol.errors import Code
from support.simulated_bench import (
    CLIENT,
    MS,
    OTHER,
    Bench,
    batching,
    config,
    instances,
    parameters,
)


def infer(
    bench: Bench, *places: tuple[int, int, int, int], frames: list[bytes], **fields: Any
) -> None:
    """One message; each request is (id, frame, offset, size) of a model with rows of 4 bytes."""
    requests = tuple(
        bench.request(
            ident,
            inputs=(
                m.Tensor("X", "UINT8", (size // 4, 4), int(m.Place.INLINE), frame, offset, size),
            ),
            **fields,
        )
        for ident, frame, offset, size in places
    )
    bench.client()
    bench.do(e.RequestsArrived(CLIENT, requests, frames))


def received(bench: Bench, slot: int) -> dict[int, bytes]:
    """The input bytes of each request of all batches that the slot has."""
    found = {}
    for batch, frames in zip(bench.batches[slot], bench.frames[slot], strict=True):
        for request in batch.requests:
            (tensor,) = request.inputs
            end = tensor.offset + tensor.size
            found[request.id] = bytes(frames[tensor.region][tensor.offset : end])
    return found


# --- bytes ---------------------------------------------------------------------------------------


def test_each_request_of_a_batch_keeps_its_own_bytes() -> None:
    bench = Bench()
    (slot,) = bench.served(config(**batching(20_000)))
    large = b"L" * 40_000
    infer(bench, (1, 0, 0, 4), (2, 0, 4, 8), (3, 1, 0, 40_000), frames=[b"aaaabbbbbbbb", large])
    assert received(bench, slot) == {1: b"aaaa", 2: b"bbbbbbbb", 3: large}


@pytest.mark.parametrize("outputs", [(), (m.OutputRequest("Y"),)])
def test_frames_of_one_message_are_passed_on_as_they_came(outputs: Any) -> None:
    bench = Bench()
    (slot,) = bench.served(config(**batching(8)))
    frames = [b"aaaabbbb"]
    infer(bench, (1, 0, 0, 4), (2, 0, 4, 4), frames=frames, outputs=outputs)
    assert received(bench, slot) == {1: b"aaaa", 2: b"bbbb"}
    assert bench.frames[slot][0] is frames


def test_requests_of_several_messages_are_packed_together() -> None:
    bench = Bench()
    (slot,) = bench.served(config(**batching(20_000)))
    infer(bench, (1, 0, 0, 4), frames=[b"aaaa"])
    infer(bench, (2, 0, 4, 4), (3, 1, 0, 20_000), frames=[b"....bbbb", b"L" * 20_000])
    infer(bench, (4, 0, 0, 4), frames=[b"cccc"])
    bench.finish(slot)
    bench.frames[slot].pop(0)
    assert received(bench, slot) == {2: b"bbbb", 3: b"L" * 20_000, 4: b"cccc"}
    (frames,) = bench.frames[slot]
    assert [len(frame) for frame in frames] == [8, 20_000]


def test_a_few_bytes_of_a_large_frame_do_not_keep_it_alive() -> None:
    bench = Bench()
    (slot,) = bench.served(config(**batching(4)))
    infer(bench, (1, 0, 8, 4), frames=[b"." * 8 + b"mine" + b"." * 1_000_000])
    assert received(bench, slot) == {1: b"mine"}
    assert sum(len(frame) for frame in bench.frames[slot][0]) == 4


def results(batch: m.Batch, *outputs: tuple[int, int, int]) -> m.Results:
    """Each output is (frame, offset, size)."""
    tensors = [
        m.Tensor("Y", "UINT8", (size // 4, 4), int(m.Place.INLINE), frame, offset, size)
        for frame, offset, size in outputs
    ]
    some = tuple(m.BatchResult(None, (tensor,)) for tensor in tensors)
    return m.Results(batch.id, some, m.Durations(1, 2, 3), 0, ())


def answered(bench: Bench, ident: int, client: int = CLIENT) -> bytes:
    (answer,) = bench.answers[client, ident]
    (tensor,) = answer.outputs
    frame = bench.answer_frames[client, ident][tensor.region]
    return bytes(frame[tensor.offset : tensor.offset + tensor.size])


@pytest.mark.parametrize("clients", [(CLIENT, CLIENT, CLIENT), (CLIENT, OTHER, CLIENT)])
def test_each_client_gets_exactly_its_own_rows(clients: tuple[int, ...]) -> None:
    """Whatever the clients of a batch, no row goes to another one."""
    bench = Bench()
    (slot,) = bench.served(config(**batching(20_000)))
    bench.ask(0, rows=1)
    for ident, client in enumerate(clients, start=1):
        bench.ask(ident, client=client, rows=1)
    bench.finish(slot)
    (batch,) = bench.batches[slot]
    large = b"L" * 20_000
    message = results(batch, (0, 4, 4), (1, 0, 20_000), (0, 0, 4))
    bench.do(e.BatchFinished(slot, message, [b"bbbbaaaa", large]))
    assert answered(bench, 1, clients[0]) == b"aaaa"
    assert answered(bench, 2, clients[1]) == large
    assert answered(bench, 3, clients[2]) == b"bbbb"


def test_two_workers_results_in_one_turn_share_one_message() -> None:
    bench = Bench()
    slots = bench.served(config(**batching(1), **instances(2)))
    bench.ask(1, 2, rows=1)
    events = [
        e.BatchFinished(slot, results(bench.batches[slot][0], (0, 0, 4)), [f"{slot}".encode()[-4:]])
        for slot in slots
    ]
    sent = {bench.batches[slot][0].requests[0].id: f"{slot}".encode()[-4:] for slot in slots}
    actions = bench.do(*events)
    assert len([one for one in actions if type(one) is e.SendAnswers]) == 1
    assert {ident: answered(bench, ident) for ident in (1, 2)} == sent


def test_many_answers_make_several_messages_each_within_the_limits() -> None:
    bench = Bench()
    (slot,) = bench.served(config(**parameters(crash_budget=1)))
    count = 3 * ANSWERS_PER_MESSAGE_MAX
    bench.ask(*range(count), label="L" * 900)
    actions = bench.do(e.SlotDied(slot, "R" * 5_000, 0, False))
    sent = [one for one in actions if type(one) is e.SendAnswers]
    assert sum(len(one.answers) for one in sent) == count
    for one in sent:
        assert len(one.answers) <= ANSWERS_PER_MESSAGE_MAX
        header = encode(m.Answers(1, tuple(one.answers), one.regions))
        decode(header, [len(frame) for frame in one.frames])


# --- errors --------------------------------------------------------------------------------------


def test_only_the_guilty_request_of_a_batch_fails() -> None:
    """The worker says which; the model's own text stays as it is."""
    bench = Bench()
    (slot,) = bench.served(config(**batching(8)))
    bench.ask(1, 2, 3, rows=1, label="mine")
    (batch,) = bench.batches[slot]
    good = m.Tensor("Y", "UINT8", (1, 4), int(m.Place.INLINE), 0, 0, 4)
    bad = m.BatchResult((str(Code.MODEL_ERROR), "model.py:3: no", False), ())
    some = (m.BatchResult(None, (good,)), bad, m.BatchResult(None, (good,)))
    bench.do(
        e.BatchFinished(slot, m.Results(batch.id, some, m.Durations(0, 1, 0), 0, ()), [bytes(4)])
    )
    assert bench.error(2) == (Code.MODEL_ERROR, "model.py:3: no")
    assert bench.is_answered(1)
    assert bench.is_answered(3)


def test_large_response_parameters_fill_no_message_beyond_what_a_client_takes() -> None:
    bench = Bench()
    slots = bench.served(config(**batching(32), **instances(6)))
    bench.ask(*range(1, 193), rows=1)
    result = m.BatchResult(None, (), 0, True, {"note": "漢" * 2700})
    events = [
        e.BatchFinished(
            slot,
            m.Results(batch.id, (result,) * len(batch.requests), m.Durations(0, 1, 0), 0, ()),
            [],
        )
        for slot in slots
        for batch in bench.batches[slot]
    ]
    actions = [one for one in bench.do(*events) if isinstance(one, e.SendAnswers)]
    assert sum(len(action.answers) for action in actions) == 192
    for action in actions:
        header = encode(m.Answers(1, tuple(action.answers), ()))
        assert len(header) <= m.WORKER_HEADER_BYTES_MAX


# --- statistics ----------------------------------------------------------------------------------


def test_statistics_count_as_tritons_do() -> None:
    bench = Bench()
    (slot,) = bench.served(config(**batching(8)))
    bench.ask(1, rows=2)
    bench.ask(2, rows=1)
    bench.ask(3, rows=1)
    bench.wait(3 * MS)
    bench.finish(slot, took_ns=2 * MS)
    bench.finish(slot, took_ns=4 * MS)
    (found,) = bench.control("statistics", model="m")["model_stats"]
    assert (found["inference_count"], found["execution_count"]) == (4, 2)
    stats = found["inference_stats"]
    assert stats["success"]["count"] == 3
    assert stats["compute_infer"] == {"count": 3, "ns": 2 * MS + 2 * 4 * MS}
    assert stats["queue"] == {"count": 3, "ns": 2 * 3 * MS}
    assert [(one["batch_size"], one["compute_infer"]["count"]) for one in found["batch_stats"]] == [
        (2, 2)
    ]  # fmt: skip


@pytest.mark.parametrize(
    "fields",
    [
        {"parameters": {f"p{n}": "x" * 15_000 for n in range(4)}},
        {"parameters": {f"p{n}": "ä" * 7_000 for n in range(4)}},
        {"label": "L" * 1_000, "traceparent": "t" * 1_000},
    ],
    ids=["long parameters", "long parameters beyond ASCII", "long labels"],
)
def test_no_batch_is_too_large_for_its_workers_header(fields: dict[str, Any]) -> None:
    """A worker that refuses a message reconnects, and would be sent the same again for ever."""
    bench = Bench()
    (slot,) = bench.served(config(**batching(1024)))
    bench.ask(0, rows=1)
    for start in range(1, 1000, 100):
        bench.ask(*range(start, start + 100), rows=1, **fields)
    seen = 0
    while bench.batches[slot]:
        batch = bench.batches[slot][0]
        assert len(encode(batch)) <= m.WORKER_HEADER_BYTES_MAX
        seen += len(batch.requests)
        bench.finish(slot)
    assert seen == 1001


@pytest.mark.parametrize(
    ("count", "guilty", "chars"), [(600, (530,), 9), (40, range(5, 38), 4_000)]
)
def test_an_error_in_a_large_batch_costs_nobody_else_his_bytes(
    count: int, guilty: Sequence[int], chars: int
) -> None:
    """Many answers, or much text, make a message full before its frames are in it."""
    bench = Bench()
    (slot,) = bench.served(config(max_batch_size=count, dynamic_batching={}))
    bench.ask(1, rows=1)
    bench.ask(*range(2, 2 + count), rows=1)
    bench.finish(slot)
    (batch,) = bench.batches[slot]
    assert len(batch.requests) == count
    good = [m.Tensor("Y", "UINT8", (1, 4), 0, 0, 4 * place, 4) for place in range(count)]
    results = tuple(
        m.BatchResult(("model_error", "x" * chars, False), ())
        if place in guilty
        else m.BatchResult(None, (good[place],))
        for place in range(count)
    )
    frame = b"".join(place.to_bytes(4, "little") for place in range(count))
    message = m.Results(batch.id, results, m.Durations(1, 1, 1), 0, ())
    bench.do(e.BatchFinished(slot, message, [frame]))
    for place, request in enumerate(batch.requests):
        (answer,) = bench.answers[CLIENT, request.id]
        if place in guilty:
            assert answer.error is not None
            continue
        (tensor,) = answer.outputs
        frames = bench.answer_frames[CLIENT, request.id]
        data = frames[tensor.region][tensor.offset : tensor.offset + tensor.size]
        assert data == place.to_bytes(4, "little")
