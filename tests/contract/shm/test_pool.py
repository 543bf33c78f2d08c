"""One pool over two kinds of memory: POSIX segments and the heap."""

from __future__ import annotations

import itertools
import logging
import threading
from collections.abc import Callable, Iterator

import numpy as np
import pytest

from naiad.protocol.errors import Code, InternalError, Unavailable
from naiad.protocol.messages import BatchRequest, Region
from naiad.shm.janitor import Janitor
from naiad.shm.mappings import Mappings
from naiad.shm.objects import is_same
from naiad.shm.output_arena import OutputArena, worker_region_id
from naiad.shm.pool import TRIM_SECONDS, CreateMemory, Loan, Pool
from naiad.shm.segment import Mapping, Segment
from naiad.shm.tensor import array_over
from support.heap_segment import HeapOf

MIB = 1 << 20
WHOLE_DIRECTORY = 1 << 20
MakePool = Callable[..., Pool]


@pytest.fixture(params=["posix", "heap"])
def create(request: pytest.FixtureRequest) -> CreateMemory:
    return Segment.create if request.param == "posix" else HeapOf(64 * MIB)


@pytest.fixture
def make_pool(server: str, create: CreateMemory) -> Iterator[MakePool]:
    pools: list[Pool] = []

    def make(limit_bytes: int = 64 * MIB) -> Pool:
        next_id = itertools.count(1).__next__
        pools.append(Pool(server, "client", next_id, limit_bytes=limit_bytes, create=create))
        return pools[-1]

    yield make
    for pool in pools:
        pool.check_invariants()
        pool.close()


def taken(pool: Pool, size: int) -> Loan:
    loan = pool.allocate(size)
    assert loan is not None
    return loan


def test_loans_are_writable_apart_and_of_the_asked_size(make_pool: MakePool) -> None:
    pool = make_pool()
    loans = [taken(pool, size) for size in (1, 100, 5000, 600_000, 0)]
    for index, loan in enumerate(loans):
        assert loan.view.nbytes == loan.size == loan.range.size
        loan.view[:] = bytes([index]) * loan.size
    for index, loan in enumerate(loans):
        assert bytes(loan.view) == bytes([index]) * loan.size
    assert {loan.region for loan in loans} == {1}


def test_a_loan_says_where_it_is(make_pool: MakePool) -> None:
    pool = make_pool()
    first, second = taken(pool, 100), taken(pool, 100)
    second.view[:] = b"x" * 100
    assert (second.region, second.size) == (first.region, 100)
    assert second.offset >= first.offset + 100
    (region,) = pool.regions()
    if is_same(region):  # the heap has nothing to map
        with Mapping.open(region, writable=False) as mapping:
            assert bytes(mapping.slice(second.offset, second.size)) == b"x" * 100


def test_segments_are_announced_once_and_all_to_a_new_broker(make_pool: MakePool) -> None:
    pool = make_pool()
    assert pool.new_regions() == ()
    held = [taken(pool, MIB), taken(pool, MIB)]
    assert [region.id for region in pool.new_regions()] == [1, 2]
    assert pool.new_regions() == ()
    held.append(taken(pool, 2 * MIB))
    regions = pool.regions()
    assert [(region.id, region.size) for region in regions] == [(1, MIB), (2, MIB), (3, 2 * MIB)]
    assert pool.new_regions() == (), "regions() named it already"


def test_released_bytes_are_reused(make_pool: MakePool) -> None:
    pool = make_pool()
    for _ in range(1000):
        taken(pool, 600_000).release()
    counters = pool.counters()
    assert counters.segments_created == 1
    assert counters.total_bytes == MIB
    assert counters.used_bytes == 0
    assert counters.allocations == 1000


def test_releasing_twice_is_an_error(make_pool: MakePool) -> None:
    pool = make_pool()
    loan = taken(pool, 10)
    loan.release()
    other = taken(pool, 10)
    with pytest.raises(InternalError, match="twice"):
        loan.release()
    assert len(loan.view) == 0
    other.view[:] = b"0123456789"
    assert pool.counters().used_bytes == 64


def test_the_limit_means_inline_with_one_warning(
    make_pool: MakePool, caplog: pytest.LogCaptureFixture
) -> None:
    pool = make_pool(2 * MIB)
    loans = [taken(pool, MIB), taken(pool, MIB)]
    with caplog.at_level(logging.WARNING):
        assert [pool.allocate(1000) for _ in range(5)] == [None] * 5
        assert pool.allocate(1 << 40) is None
    assert [record.getMessage() for record in caplog.records] == [
        "no room in shared memory, so tensors travel inside messages, which is slower: "
        "the arena's limit of 2097152 bytes is reached"
    ]
    assert pool.counters().refusals == 6
    loans.pop().release()
    assert taken(pool, 1000).size == 1000


def test_trimming_keeps_what_was_used_lately(make_pool: MakePool) -> None:
    pool = make_pool()
    loans = [taken(pool, 3 * MIB) for _ in range(4)]
    total = pool.counters().total_bytes
    while loans:
        loans.pop().release()
    assert pool.trim() == (), "just used"
    assert pool.counters().total_bytes == total
    regions = {region.id: region for region in pool.regions()}
    gone = pool.trim()
    assert gone
    assert not any(is_same(regions[ident]) for ident in gone)
    assert pool.counters().total_bytes < total
    assert {region.id for region in pool.regions()} == regions.keys() - set(gone)
    taken(pool, MIB)
    assert not {region.id for region in pool.new_regions()} & regions.keys(), "ids are never reused"


def test_trimming_never_takes_what_is_lent(make_pool: MakePool) -> None:
    pool = make_pool()
    loan = taken(pool, 10 * MIB)
    loan.view[-1] = 7
    for _ in range(3):
        assert pool.trim(0) == ()
    assert loan.view[-1] == 7


def test_a_view_outlives_the_pool(make_pool: MakePool) -> None:
    pool = make_pool()
    loan = taken(pool, 5)
    loan.view[:] = b"alive"
    pool.close()
    assert bytes(loan.view) == b"alive"
    loan.release()
    assert pool.allocate(5) is None, "a closed pool lends nothing"
    assert pool.counters().total_bytes == 0


def test_threads_and_finalizers_share_a_pool(make_pool: MakePool) -> None:
    """Each writes its own pattern: a range lent twice at a time would show another's."""
    pool = make_pool(8 * MIB)
    faults: list[str] = []

    class Dropped:
        """Releases when it is collected, in whatever thread and moment that happens."""

        def __init__(self, loan: Loan) -> None:
            self.loan = loan
            self.cycle = self

        def __del__(self) -> None:
            self.loan.release()

    def work(pattern: int) -> None:
        for round_ in range(300):
            loan = pool.allocate(1000 + 37 * round_)
            if loan is None:
                continue
            loan.view[:] = bytes([pattern]) * loan.size
            if bytes(loan.view) != bytes([pattern]) * loan.size:
                faults.append(f"{loan.range} of {pattern}")
            Dropped(loan) if round_ % 2 else loan.release()

    threads = [threading.Thread(target=work, args=(pattern,)) for pattern in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert faults == []
    pool.check_invariants()


# --- the worker's ----------------------------------------------------------------------------


@pytest.fixture
def arena(server: str) -> Iterator[OutputArena]:
    arena = OutputArena(server, limit_bytes=8 * MIB)
    yield arena
    arena.pool.check_invariants()
    for session, request in arena.leases():
        assert arena.end(session, request)
    assert arena.counters().used_bytes == 0
    arena.close()


def test_worker_region_ids_are_their_own() -> None:
    found = {worker_region_id() for _ in range(100)}
    assert len(found) == 100
    assert all(2**61 <= ident < 2**62 for ident in found)


def test_leases_end_once_and_with_the_session(arena: OutputArena) -> None:
    for session, request, size in [(1, 1, 100), (1, 1, 200), (1, 2, 300), (2, 1, 400)]:
        loan = arena.lease(session, request, size)
        assert loan is not None
        assert loan.size == size
    assert sorted(arena.leases()) == [(1, 1), (1, 2), (2, 1)]
    assert arena.counters().used_bytes == 128 + 256 + 320 + 448
    assert arena.end(1, 1)
    assert not arena.end(1, 1)
    assert not arena.end(9, 9)
    assert arena.counters().used_bytes == 320 + 448
    assert arena.end_session(1)
    assert not arena.end_session(1)
    assert arena.leases() == ((2, 1),)


def test_a_lease_is_not_lent_again_before_it_ends(arena: OutputArena) -> None:
    whole = [arena.lease(1, request, 2 * MIB) for request in range(4)]
    places = {(loan.region, loan.offset) for loan in whole if loan}
    assert arena.lease(1, 9, 2 * MIB) is None
    arena.end(1, 2)
    again = arena.lease(1, 9, 2 * MIB)
    assert again is not None
    assert (again.region, again.offset) in places
    assert arena.lease(1, 10, 2 * MIB) is None


def test_arenas_are_announced_with_results_and_hello(arena: OutputArena) -> None:
    assert arena.lease(1, 1, 100) is not None
    new = arena.new_arenas()
    assert [type(region) for region in new] == [Region]
    assert arena.new_arenas() == ()
    assert arena.arenas() == new


def test_outputs_are_lent_as_copies_and_inline_when_there_is_no_room(server: str) -> None:
    arena = OutputArena(server, limit_bytes=MIB, leases_max=1)
    request = BatchRequest(5, 6, "", (), ())
    content = np.arange(1000, dtype=np.float32)
    place = arena.lend(request, content.data)
    assert place is not None
    content[:] = 0
    with Mappings(writable=False) as client:
        client.define(arena.new_arenas())
        found = array_over(client.view(*place, 4000), "FP32", (1000,))
        assert found.tolist() == list(range(1000))
        del found
    assert arena.lend(request, b"of the same request") is not None
    assert arena.lend(request, bytes(2 * MIB)) is None, "no room"
    assert arena.lend(request._replace(id=7), b"x") is None, "too many leases"
    assert arena.leases() == ((5, 6),)
    assert arena.end(5, 6)
    arena.close()


def test_hello_may_be_said_while_results_are_leased(arena: OutputArena) -> None:
    is_over = threading.Event()
    faults: list[BaseException] = []

    def say_hello() -> None:
        try:
            while not is_over.is_set():
                assert len(arena.leases()) <= 51
                arena.arenas()
        except BaseException as fault:
            faults.append(fault)

    thread = threading.Thread(target=say_hello)
    thread.start()
    for round_ in range(2000):
        arena.lease(round_ % 7, round_, 1000)
        if round_ >= 50:
            assert arena.end((round_ - 50) % 7, round_ - 50)
    is_over.set()
    thread.join()
    assert faults == []


def test_a_workers_end_leaves_what_is_leased(
    server: str, segments: Callable[[], list[str]]
) -> None:
    arena = OutputArena(server)
    read, other = arena.lease(1, 1, MIB), arena.lease(1, 2, MIB)
    assert read is not None
    assert other is not None
    assert read.region != other.region
    read.view[:4] = b"kept"
    regions = {region.id: region for region in arena.arenas()}
    arena.end(1, 2)
    arena.close()
    kept = regions[read.region]
    assert segments() == [kept.key]
    with Mapping.open(kept, writable=False) as late_client:
        assert bytes(late_client.slice(read.offset, 4)) == b"kept"
    swept = Janitor(server, min_age_s=0).sweep(entries_max=WHOLE_DIRECTORY)
    assert swept.removed == (kept.key,), "unlocked, although this process still has a view of it"


def test_idle_memory_is_given_back_in_time(make_pool: MakePool) -> None:
    pool = make_pool()
    for loan in [taken(pool, 3 * MIB) for _ in range(4)]:
        loan.release()
    second = 1_000_000_000
    assert pool.trim_when_due(second) == (), "used since the last look"
    assert pool.trim_when_due((TRIM_SECONDS + 1) * second - 1) == (), "not due"
    assert pool.trim_when_due((TRIM_SECONDS + 1) * second) != ()


def test_too_many_leases_are_refused_and_leave_no_range(server: str) -> None:
    arena = OutputArena(server, leases_max=1)
    assert arena.lease(1, 1, 100) is not None
    used = arena.counters().used_bytes
    with pytest.raises(Unavailable) as caught:
        arena.lease(1, 2, 100)
    assert caught.value.code is Code.BUDGET_EXCEEDED
    assert arena.counters().used_bytes == used
    arena.end(1, 1)
    arena.close()
