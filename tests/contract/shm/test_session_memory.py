"""A client session's memory against real workers' arenas."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Iterator

import numpy as np
import pytest

from naiad.protocol.errors import Code, RequestError, Unavailable
from naiad.protocol.messages import BatchRequest, Place, Tensor
from naiad.shm.objects import DIRECTORY, is_same
from naiad.shm.output_arena import OutputArena
from naiad.shm.session_memory import SessionMemory
from naiad.shm.tensor import Keeper

MIB = 1 << 20
FLOATS = np.arange(1000, dtype=np.float32)


@pytest.fixture
def memory(server: str) -> Iterator[SessionMemory]:
    """Closed before anybody looks whether `server` has left something."""
    assert server
    memory = SessionMemory()
    yield memory
    memory.close()


@pytest.fixture
def worker(server: str) -> Iterator[OutputArena]:
    worker = OutputArena(server)
    yield worker
    for session, request in worker.leases():
        worker.end(session, request)
    worker.close()


def leased(worker: OutputArena, request: int, name: str = "OUT") -> Tensor:
    place = worker.lend(BatchRequest(1, request, "", (), ()), FLOATS.data)
    assert place is not None
    return Tensor(name, "FP32", (10, 100), Place.LEASE, *place, FLOATS.nbytes)


def test_before_the_server_has_a_name_everything_goes_inline(
    memory: SessionMemory, server: str, segments: Callable[[], list[str]]
) -> None:
    assert memory.allocate(100_000) is None
    assert memory.new_regions() == ()
    assert memory.counters() is None
    memory.start(server)
    memory.start("another: only the first counts")
    loan = memory.allocate(100_000)
    assert loan is not None
    (region,) = memory.new_regions()
    assert region.id == loan.region == 1
    assert segments() == [region.key]
    loan.release()


def test_inline_outputs_need_nothing(memory: SessionMemory) -> None:
    inline = Tensor("OUT", "FP32", (1,), Place.INLINE, 0, 0, 4)
    assert memory.outputs(1, (inline,), ()) is None


def test_a_lease_lasts_as_long_as_any_view_of_any_output(
    memory: SessionMemory, worker: OutputArena
) -> None:
    tensors = (leased(worker, 7, "A"), leased(worker, 7, "B"))
    outputs = memory.outputs(7, tensors, worker.arenas())
    assert outputs is not None
    array, view = outputs.array(tensors[0]), outputs.view(tensors[1])
    assert (array == FLOATS.reshape(10, 100)).all()
    assert not array.flags.writeable
    assert bytes(view) == FLOATS.tobytes()
    row = array[3]
    part = view[400:404].cast("f")
    del array, view, outputs
    gc.collect()
    assert not memory.has_ended
    assert row[0] == 300
    del row
    assert memory.take_ended() == []
    assert part[0] == 100
    del part
    assert memory.has_ended
    assert memory.take_ended() == [(tensors[0].region, 7)]
    assert memory.take_ended() == []


def test_what_is_kept_goes_when_the_end_of_the_lease_is_known(
    memory: SessionMemory, worker: OutputArena
) -> None:
    known: list[bool] = []
    tensor = leased(worker, 7)
    keep = Keeper(lambda: known.append(memory.has_ended))
    outputs = memory.outputs(7, (tensor,), worker.arenas(), keep=keep)
    assert outputs is not None
    array = outputs.array(tensor)
    del keep, outputs
    assert known == []
    del array
    assert known == [True]


def test_results_in_two_arenas_end_together(memory: SessionMemory, worker: OutputArena) -> None:
    """The worker frees everything of a request at the first word."""
    first = leased(worker, 7, "A")
    filler = worker.lease(2, 1, 8 * MIB)
    assert filler is not None
    tensors = (first, Tensor("B", "UINT8", (64,), Place.LEASE, filler.region, filler.offset, 64))
    outputs = memory.outputs(7, tensors, worker.arenas())
    assert outputs is not None
    kept = outputs.array(tensors[1])
    outputs.array(first)
    del outputs
    assert not memory.has_ended
    del kept
    assert sorted(memory.take_ended()) == sorted({(first.region, 7), (filler.region, 7)})


def test_results_outlive_their_worker_and_the_session(memory: SessionMemory, server: str) -> None:
    worker = OutputArena(server)
    tensor = leased(worker, 7)
    outputs = memory.outputs(7, (tensor,), worker.arenas())
    worker.end(1, 7)
    worker.close()
    memory.close()
    assert outputs is not None
    assert outputs.array(tensor)[9, 99] == 999


def test_results_that_are_gone_say_ask_again(memory: SessionMemory, server: str) -> None:
    worker = OutputArena(server)
    tensor, arenas = leased(worker, 7), worker.arenas()
    worker.end(1, 7)
    worker.close()
    with pytest.raises(Unavailable, match="ask again") as caught:
        memory.outputs(7, (tensor,), arenas)
    assert caught.value.code is Code.WORKER_DIED
    assert caught.value.retryable
    del caught
    gc.collect()
    assert memory.take_ended() == [(tensor.region, 7)]


def test_results_written_into_the_arena_keep_their_loan(memory: SessionMemory, server: str) -> None:
    memory.start(server)
    loan = memory.allocate(FLOATS.nbytes)
    assert loan is not None
    loan.view[:] = FLOATS.data.cast("B")
    tensor = Tensor("OUT", "FP32", (1000,), Place.REGION, loan.region, loan.offset, loan.size)
    outputs = memory.outputs(1, (tensor,), (), keep=Keeper(loan.release))
    assert outputs is not None
    array = outputs.array(tensor)
    del outputs
    assert (array == FLOATS).all()
    assert array.flags.writeable
    assert len(loan.view) == FLOATS.nbytes
    del array
    assert len(loan.view) == 0, "released"
    assert not memory.has_ended, "nothing was leased"


def test_a_users_own_segment_is_mapped_writable_and_never_unlinked(
    memory: SessionMemory, foreign_key: str
) -> None:
    with open(DIRECTORY + foreign_key, "wb") as file:
        file.truncate(8192)
    region, view = memory.own(foreign_key)
    assert (region.id, region.size, len(view)) == (1, 8192, 8192)
    tensor = Tensor("OUT", "UINT8", (8,), Place.REGION, region.id, 100, 8)
    outputs = memory.outputs(1, (tensor,), ())
    assert outputs is not None
    view[100:108] = b"in place"
    assert outputs.array(tensor).tobytes() == b"in place"
    memory.forget(region.id)
    memory.forget(region.id)
    assert bytes(view[100:108]) == b"in place"
    assert is_same(region)
    again, _ = memory.own(foreign_key)
    assert again.id == 2, "ids are never reused"
    memory.close()
    assert is_same(region)


def test_naiads_own_segments_are_not_users_own(memory: SessionMemory, worker: OutputArena) -> None:
    leased(worker, 1)
    with pytest.raises(RequestError, match="reserved"):
        memory.own(worker.arenas()[0].key)


def test_outputs_in_regions_registered_by_name_are_read_by_their_creator(
    memory: SessionMemory,
) -> None:
    tensor = Tensor("OUT", "UINT8", (8,), Place.REGION, 2**62, 0, 8)
    outputs = memory.outputs(1, (tensor,), ())
    assert outputs is not None
    with pytest.raises(RequestError, match="read it where you created"):
        outputs.array(tensor)


def test_arenas_that_workers_gave_up_are_unmapped(
    memory: SessionMemory, worker: OutputArena, server: str
) -> None:
    other = OutputArena(server)
    for arena in (worker, other):
        tensor = leased(arena, 7)
        assert memory.outputs(7, (tensor,), arena.arenas()) is not None
    before = len(os.listdir("/proc/self/fd"))
    other.end(1, 7)
    other.close()
    memory.forget_unlinked()
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) < before
