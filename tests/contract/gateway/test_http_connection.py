"""The HTTP connection over real sockets, plain and with TLS, and a door that answers when the test
says so."""

from __future__ import annotations

import asyncio
import gc
import itertools
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from contextvars import ContextVar
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import uvloop

from naiad.config.listening import listening
from naiad.gateway.access import is_local
from naiad.gateway.budget import Budget
from naiad.gateway.calls import BodyPlace
from naiad.gateway.handshakes import Handshakes
from naiad.gateway.http_connection import HttpConnection
from naiad.gateway.http_known_heads import KnownHeads
from naiad.gateway.http_message import Head, HttpRequest, Response
from naiad.gateway.http_reader import Stage
from naiad.gateway.limits import READ_BYTES, Limits
from naiad.gateway.phase import Phase
from naiad.gateway.turns import TURN_SECONDS, Turns
from support.certificates import Certificates, made

DEADLINE_S = 5.0
USED: ContextVar[Certificates | None] = ContextVar("USED", default=None)
"""By the connections of the test that runs; None: they are plain."""
GET = b"GET /%d HTTP/1.1\r\nHost: h\r\n\r\n"


class Job:
    def __init__(self, door: Door, connection: HttpConnection, request: HttpRequest) -> None:
        self._door = door
        self._connection = connection
        self.request = request
        self.is_cancelled = False

    def cancel(self) -> None:
        self.is_cancelled = True
        self._door.changed.set()

    def answer(self, text: bytes, **more: Any) -> None:
        self._connection.reply(Response(200, [text], **more))


class Door:
    """Keeps what arrives; answers paths that begin with "/now" at once."""

    def __init__(self, limits: Limits, tls: Certificates | None) -> None:
        self.limits = limits
        self.tls = tls
        self.budget = Budget(limits.bytes_in_flight_max)
        self.turns = Turns()
        self.read_buffer = bytearray(READ_BYTES)
        self.known_heads = KnownHeads()
        self.connections: set[HttpConnection] = set()
        self.phase = Phase()
        self.jobs: list[Job] = []
        self.changed = asyncio.Event()
        self.port = 0
        self.writers: list[asyncio.StreamWriter] = []

    def place(self, head: Head) -> BodyPlace | None:
        return None

    def handle(self, request: HttpRequest, connection: HttpConnection) -> Job | None:
        if request.head.path.startswith(b"/now"):
            connection.reply(Response(200, [request.head.path]))
            return None
        job = Job(self, connection, request)
        self.jobs.append(job)
        self.changed.set()
        return job

    def has_jobs(self, count: int) -> bool:
        return len(self.jobs) == count

    async def until(self, claim: Callable[[], bool]) -> None:
        async with asyncio.timeout(DEADLINE_S):
            while not claim():
                self.changed.clear()
                await asyncio.wait((asyncio.ensure_future(self.changed.wait()),), timeout=0.01)


@asynccontextmanager
async def opened(tls: Certificates | None = None, **limits: Any) -> AsyncIterator[Door]:
    loop = asyncio.get_running_loop()
    tls = tls or USED.get()
    door = Door(replace(Limits(), **limits), tls)
    one = listening("127.0.0.1", 0, what="port")
    door.port = one.getsockname()[1]
    make = partial(HttpConnection, door, loop)
    server: asyncio.Server | Handshakes
    if tls is None:
        server = await loop.create_server(make, sock=one)
    else:
        server = Handshakes(one, tls.server_context(), make, door.limits)
        server.start()
    try:
        yield door
    finally:
        server.close()
        for writer in door.writers:
            if not writer.transport.is_closing():  # older sslproto fails when it is
                writer.transport.abort()
        for connection in tuple(door.connections):
            connection.abort()
        await door.until(lambda: not door.connections)
        for writer in door.writers:
            with suppress(OSError):
                await asyncio.wait_for(writer.wait_closed(), DEADLINE_S)
        assert door.budget.bytes == 0


Scenario = Callable[[], Awaitable[None]]


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return made(tmp_path_factory.mktemp("tls"))


LoopFactory = Callable[[], asyncio.AbstractEventLoop]


def ran(scenario: Scenario, factory: LoopFactory) -> None:
    with asyncio.Runner(loop_factory=factory) as runner:
        runner.run(asyncio.wait_for(scenario(), 4 * DEADLINE_S))


@pytest.fixture(params=[asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def loop_factory(request: pytest.FixtureRequest) -> LoopFactory:
    factory: LoopFactory = request.param
    return factory


@pytest.fixture(params=[False, True], ids=["plain", "TLS"])
def run(
    request: pytest.FixtureRequest, certificates: Certificates, loop_factory: LoopFactory
) -> Callable[[Scenario], None]:
    def run(scenario: Scenario) -> None:
        async def with_tls() -> None:
            USED.set(certificates if request.param else None)
            await scenario()

        ran(with_tls, loop_factory)

    return run


Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def connected(door: Door, text: bytes) -> Streams:
    context = None if door.tls is None else door.tls.client_context()
    reader, writer = await asyncio.open_connection("127.0.0.1", door.port, ssl=context)
    door.writers.append(writer)
    writer.write(text)
    return reader, writer


async def response(reader: asyncio.StreamReader) -> tuple[int, bytes]:
    head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), DEADLINE_S)
    length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0] or 0)
    return int(head.split()[1]), await reader.readexactly(length)


def test_pipelined_requests_are_answered_in_order(run: Callable[[Scenario], None]) -> None:
    async def scenario() -> None:
        async with opened() as door:
            reader, writer = await connected(door, b"".join(GET % n for n in range(5)))
            for number in range(5):
                await door.until(partial(door.has_jobs, number + 1))
                assert door.jobs[-1].request.head.path == b"/%d" % number
                door.jobs[-1].answer(b"answer %d" % number)
                assert await response(reader) == (200, b"answer %d" % number)
            writer.close()

    run(scenario)


def test_clients_that_go_together_end_a_few_at_a_time(loop_factory: LoopFactory) -> None:
    count = 100

    async def scenario() -> None:
        async with opened() as door:
            door.turns = Turns(itertools.count(step=TURN_SECONDS / 2).__next__)
            for _ in range(count):
                await connected(door, b"")
            await door.until(lambda: len(door.connections) == count)
            for writer in door.writers:
                writer.transport.abort()
            left = [count]
            while left[-1]:
                await asyncio.sleep(0)
                left.append(len(door.connections))
            assert max(before - after for before, after in itertools.pairwise(left)) <= 2

    ran(scenario, loop_factory)


def has_begun(door: Door) -> bool:
    (one,) = door.connections
    return one._stage is not Stage.IDLE or one.is_busy or one._is_deaf


def none_is_left() -> bool:
    """Not asked by a weak reference: one of a compiled class outlives what it is of."""
    return not any(isinstance(one, HttpConnection) for one in gc.get_objects())


def test_a_connection_that_ended_leaves_nothing_to_the_garbage_collector(
    loop_factory: LoopFactory,
) -> None:
    """Thousands may end together."""
    begun = b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 9\r\n\r\nx"

    async def scenario() -> None:
        async with opened() as door:
            for text in (begun, b"nonsense\r\n\r\n", GET % 1):
                _, writer = await connected(door, text)
                await door.until(lambda: len(door.connections) == 1)
                await door.until(partial(has_begun, door))
                writer.transport.abort()
                await door.until(lambda: not door.connections)
                door.jobs.clear()
                await door.until(none_is_left)

    gc.collect()
    gc.disable()
    try:
        ran(scenario, loop_factory)
    finally:
        gc.enable()


def test_many_pipelined_requests_that_are_answered_at_once(
    run: Callable[[Scenario], None],
) -> None:
    async def scenario() -> None:
        async with opened() as door:
            wire = b"".join(
                b"GET /now%d HTTP/1.1\r\nHost: h\r\n\r\n" % number for number in range(100)
            )
            reader, writer = await connected(door, wire)
            for number in range(100):
                assert await response(reader) == (200, b"/now%d" % number)
            writer.close()

    run(scenario)


def test_a_client_that_goes_away_is_noticed_at_once(run: Callable[[Scenario], None]) -> None:
    async def scenario() -> None:
        async with opened() as door:
            for ending in ("close", "abort", "half"):
                _, writer = await connected(door, GET % 1)
                await door.until(lambda: bool(door.jobs))
                if ending == "close":
                    writer.close()
                elif ending == "abort":
                    if not writer.transport.is_closing():  # older sslproto fails when it is
                        writer.transport.abort()
                elif writer.can_write_eof():
                    writer.write_eof()
                else:  # TLS has no half-closed ends
                    writer.close()
                await door.until(lambda: door.jobs[-1].is_cancelled)
                door.jobs.clear()
                writer.close()

    run(scenario)


def test_a_large_body_and_a_large_answer(run: Callable[[Scenario], None]) -> None:
    async def scenario() -> None:
        async with opened() as door:
            body = bytes(range(256)) * 16_384
            head = b"POST /x HTTP/1.1\r\nHost: h\r\nContent-Length: %d\r\n\r\n" % len(body)
            reader, writer = await connected(door, head + body)
            await door.until(lambda: bool(door.jobs))
            assert door.budget.bytes == len(body)
            door.jobs[0].answer(bytes(door.jobs[0].request.body))
            assert await response(reader) == (200, body)
            writer.close()

    run(scenario)


def test_answers_that_nobody_takes_are_in_the_budget(run: Callable[[Scenario], None]) -> None:
    async def scenario() -> None:
        size = 32 * 2**20
        async with opened() as door:
            for is_read in (True, False):
                reader, writer = await connected(door, GET % 1)
                await door.until(lambda: bool(door.jobs))
                door.jobs.pop().answer(bytes(size))
                await door.until(lambda: door.budget.bytes > size // 4)
                if is_read:
                    assert (await response(reader))[0] == 200
                else:
                    if not writer.transport.is_closing():  # older sslproto fails when it is
                        writer.transport.abort()
                await door.until(lambda: door.budget.bytes == 0)
                writer.close()

    run(scenario)


def test_a_client_that_takes_nothing_is_dropped_after_a_while(
    run: Callable[[Scenario], None],
) -> None:
    async def scenario() -> None:
        async with opened(write_seconds=0.0) as door:
            _, writer = await connected(door, (GET % 1) * 2)
            await door.until(lambda: bool(door.jobs))
            door.jobs[0].answer(bytes(64 * 1024 * 1024))
            assert len(door.jobs) == 1, "the next request begins when there is room for its answer"
            (connection,) = door.connections
            later = itertools.count(asyncio.get_running_loop().time(), 3600.0)

            def is_dropped() -> bool:
                connection.check_time(next(later))
                return not door.connections

            await door.until(is_dropped)
            writer.close()

    run(scenario)


def test_expect_continue_waits_for_its_turn(run: Callable[[Scenario], None]) -> None:
    async def scenario() -> None:
        async with opened() as door:
            expecting = (
                b"POST /2 HTTP/1.1\r\nHost: h\r\nContent-Length: 2\r\nExpect: 100-continue\r\n\r\n"
            )
            reader, writer = await connected(door, GET % 1 + expecting)
            await door.until(lambda: bool(door.jobs))
            door.jobs[0].answer(b"one")
            assert await response(reader) == (200, b"one")
            assert await response(reader) == (100, b"")
            writer.write(b"hi")
            await door.until(lambda: len(door.jobs) == 2)
            door.jobs[1].answer(b"two")
            assert await response(reader) == (200, b"two")
            writer.close()

    run(scenario)


def test_a_refusal_comes_after_earlier_answers_and_can_be_read(
    run: Callable[[Scenario], None],
) -> None:
    async def scenario() -> None:
        async with opened(body_bytes_max=1000) as door:
            big = b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 1000000\r\n\r\n"
            reader, writer = await connected(door, GET % 1 + big + bytes(900_000))
            await door.until(lambda: bool(door.jobs))
            door.jobs[0].answer(b"one")
            assert await response(reader) == (200, b"one")
            status, text = await response(reader)
            assert (status, b"at most 1000 bytes" in text) == (413, True)
            if writer.can_write_eof():  # not with TLS: only the header says that it is over
                assert await reader.read() == b""
            writer.close()

    run(scenario)


def test_slow_clients_are_told_and_closed(run: Callable[[Scenario], None]) -> None:
    async def scenario() -> None:
        async with opened() as door:
            for sent, text in (
                (b"GET / HT", b"no whole header within 20 s"),
                (
                    b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 9\r\n\r\n1",
                    b"the body is too slow",
                ),
            ):
                reader, writer = await connected(door, sent)
                await door.until(lambda: bool(door.connections))
                (connection,) = door.connections
                later = asyncio.get_running_loop().time() + 100.0

                def is_told(
                    connection: HttpConnection = connection,
                    reader: asyncio.StreamReader = reader,
                    later: float = later,
                ) -> bool:
                    connection.check_time(later)
                    return reader.at_eof() or bool(reader._buffer)  # type: ignore[attr-defined]

                await door.until(is_told)
                status, body = await response(reader)
                assert status == 408
                assert text in body
                writer.close()
                await door.until(lambda: not door.connections)
            _, writer = await connected(door, b"")
            await door.until(lambda: bool(door.connections))
            (idle,) = door.connections

            def is_closed() -> bool:
                idle.check_time(asyncio.get_running_loop().time() + 3600.0)
                return not door.connections

            await door.until(is_closed)
            writer.close()

    run(scenario)


def test_a_slow_client_may_hang_up_before_it_is_told(loop_factory: LoopFactory) -> None:
    async def scenario() -> None:
        async with opened() as door:
            with socket.create_connection(("127.0.0.1", door.port)) as client:
                client.sendall(b"GET / HT")
                await door.until(lambda: any(one._stage is Stage.HEAD for one in door.connections))
            (connection,) = door.connections
            connection.check_time(asyncio.get_running_loop().time() + 100.0)
            await door.until(lambda: not door.connections)

    ran(scenario, loop_factory)


def test_at_the_end_a_half_received_request_is_told_and_an_idle_client_let_go(
    run: Callable[[Scenario], None],
) -> None:
    async def scenario() -> None:
        async with opened() as door:
            idle, _ = await connected(door, b"GET /now HTTP/1.1\r\nHost: h\r\n\r\n")
            assert await response(idle) == (200, b"/now")
            half, writer = await connected(
                door, GET % 1 + b"POST / HTTP/1.1\r\nHost: h\r\nContent-Le"
            )
            await door.until(lambda: bool(door.jobs))
            door.phase.close()

            def is_let_go() -> bool:
                for connection in tuple(door.connections):
                    connection.leave()
                return idle.at_eof()

            await door.until(is_let_go)
            door.jobs[0].answer(b"one")
            assert await response(half) == (200, b"one")
            writer.write(b"ngth: 5\r\n\r\nhello")
            assert await response(half) == (503, b'{"error":"Server exiting"}')
            for connection in tuple(door.connections):
                connection.close()
            writer.close()
            await door.until(lambda: not door.connections)

    run(scenario)


def test_at_the_end_of_the_time_what_still_runs_is_told_and_cancelled(
    run: Callable[[Scenario], None],
) -> None:
    async def scenario() -> None:
        async with opened() as door:
            reader, _ = await connected(door, GET % 1 + GET % 2)
            await door.until(lambda: bool(door.jobs))
            door.phase.close()
            for connection in tuple(door.connections):
                connection.leave()
                connection.close()
            assert await response(reader) == (503, b'{"error":"Server exiting"}')
            assert await reader.read() == b""
            assert [job.is_cancelled for job in door.jobs] == [True]

    run(scenario)


def test_while_the_server_leaves_a_connection_ends_behind_its_last_answer(
    run: Callable[[Scenario], None],
) -> None:
    async def scenario() -> None:
        async with opened() as door:
            door.phase.leave()
            wire = b"".join(
                b"GET /now%d HTTP/1.1\r\nHost: h\r\n\r\n" % number for number in range(3)
            )
            reader, _ = await connected(door, wire)
            for number in range(3):
                assert await response(reader) == (200, b"/now%d" % number)
            assert await reader.read() == b""

    run(scenario)


def test_handshakes_are_limited_in_time_and_number(
    loop_factory: LoopFactory, certificates: Certificates
) -> None:
    async def scenario() -> None:
        async with opened(certificates, handshake_seconds=0.2, handshakes_max=2) as door:
            silent, first = await asyncio.open_connection("127.0.0.1", door.port)
            assert await asyncio.wait_for(silent.read(), DEADLINE_S) == b""
            first.close()
        async with opened(certificates, handshakes_max=2) as door:
            slow = [await asyncio.open_connection("127.0.0.1", door.port) for _ in range(3)]
            oldest = slow[0][0]
            assert await asyncio.wait_for(oldest.read(), DEADLINE_S) == b""
            for _, writer in slow:
                writer.close()
            reader, writer = await connected(door, b"GET /now HTTP/1.1\r\nHost: h\r\n\r\n")
            assert await response(reader) == (200, b"/now")
            writer.close()

    ran(scenario, loop_factory)


def test_bytes_that_are_no_handshake_end_their_connection_alone(
    loop_factory: LoopFactory, certificates: Certificates
) -> None:
    async def scenario() -> None:
        async with opened(certificates) as door:
            reader, writer = await asyncio.open_connection("127.0.0.1", door.port)
            writer.write(b"GET /now HTTP/1.1\r\nHost: h\r\n\r\n")
            assert b"/now" not in await asyncio.wait_for(reader.read(), DEADLINE_S)
            writer.close()
            reader, writer = await connected(door, b"GET /now HTTP/1.1\r\nHost: h\r\n\r\n")
            assert await response(reader) == (200, b"/now")
            writer.close()

    ran(scenario, loop_factory)


def test_too_many_connections(run: Callable[[Scenario], None]) -> None:
    async def scenario() -> None:
        async with opened(connections_max=1) as door:
            reader, first = await connected(door, b"GET /now HTTP/1.1\r\nHost: h\r\n\r\n")
            assert (await response(reader))[0] == 200
            reader, second = await connected(door, b"GET /now HTTP/1.1\r\nHost: h\r\n\r\n")
            assert (await response(reader))[0] == 503
            first.close()
            second.close()

    run(scenario)


def test_head_has_no_body_and_http_10_closes(run: Callable[[Scenario], None]) -> None:
    async def scenario() -> None:
        async with opened() as door:
            reader, writer = await connected(door, b"HEAD /now HTTP/1.0\r\n\r\n")
            text = await asyncio.wait_for(reader.read(), DEADLINE_S)
            assert text.startswith(b"HTTP/1.1 200 OK\r\n")
            assert text.endswith(b"Content-Length: 4\r\nConnection: close\r\n\r\n")
            writer.close()

    run(scenario)


def test_http_10_is_told_that_its_connection_stays(run: Callable[[Scenario], None]) -> None:
    async def scenario() -> None:
        async with opened() as door:
            asking = b"GET /now HTTP/1.0\r\nConnection: keep-alive\r\n\r\n"
            reader, writer = await connected(door, asking)
            for sent in (asking, asking, b"GET /now HTTP/1.0\r\n\r\n"):  # the second one is known
                head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), DEADLINE_S)
                assert b"\r\nConnection: keep-alive\r\n" in head
                await reader.readexactly(len(b"/now"))
                writer.write(sent)
            last = await asyncio.wait_for(reader.read(), DEADLINE_S)
            assert b"\r\nConnection: close\r\n" in last
            writer.close()

    run(scenario)


def test_requests_that_are_answered_at_once_leave_others_their_turns(
    run: Callable[[Scenario], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        async with opened() as door:
            order: list[bytes] = []
            handled = door.handle

            def handle(request: HttpRequest, connection: HttpConnection) -> Job | None:
                path = request.head.path
                order.append(path)
                if len(order) == 2:
                    writer.write(b"GET /now-other HTTP/1.1\r\nHost: h\r\n\r\n")
                end = time.monotonic() + TURN_SECONDS  # as a refusal that is dear
                while time.monotonic() < end:
                    pass
                return handled(request, connection)

            monkeypatch.setattr(door, "handle", handle)
            reader, writer = await connected(door, b"GET /now-first HTTP/1.1\r\nHost: h\r\n\r\n")
            assert await response(reader) == (200, b"/now-first")
            pipelined = b"GET /now HTTP/1.1\r\nHost: h\r\n\r\n" * 100
            many, _ = await connected(door, pipelined)
            assert await response(reader) == (200, b"/now-other")
            assert order.index(b"/now-other") < 20
            for _ in range(100):
                assert await response(many) == (200, b"/now")

    run(scenario)


@pytest.mark.parametrize("is_whole", [True, False], ids=["whole", "broken off"])
def test_a_body_of_tiny_chunks(run: Callable[[Scenario], None], *, is_whole: bool) -> None:
    async def scenario() -> None:
        async with opened() as door:
            head = b"POST /now HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n"
            body = b"1\r\nx\r\n" * 40_000
            end = b"0\r\n\r\n" + GET % 7 if is_whole else b""
            reader, writer = await connected(door, head + body + end)
            if is_whole:
                assert await response(reader) == (200, b"/now")
                await door.until(partial(door.has_jobs, 1))
                door.jobs[0].answer(b"next")
                assert await response(reader) == (200, b"next")
            else:
                await door.until(lambda: door.budget.bytes > 1000)
            writer.close()

    run(scenario)


def test_an_upgrade_that_is_offered_is_ignored(run: Callable[[Scenario], None]) -> None:
    async def scenario() -> None:
        async with opened() as door:
            offer = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: A\r\n"
            size = 300_000
            body = b"Content-Length: %d\r\n\r\n" % size + bytes(size)
            first = b"POST /now HTTP/1.1\r\nHost: h\r\n" + offer + body
            reader, writer = await connected(door, first + GET % 7)
            assert await response(reader) == (200, b"/now")
            await door.until(partial(door.has_jobs, 1))
            door.jobs[0].answer(b"next")
            assert await response(reader) == (200, b"next")
            waits = b"Expect: 100-continue\r\nContent-Length: 2\r\n\r\n"
            writer.write(b"POST /now HTTP/1.1\r\nHost: h\r\n" + offer + waits)
            assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
            writer.write(b"hi")
            assert await response(reader) == (200, b"/now")
            writer.close()

    run(scenario)


def test_connect_is_refused_in_its_turn(run: Callable[[Scenario], None]) -> None:
    async def scenario() -> None:
        async with opened() as door:
            connect = b"CONNECT h:80 HTTP/1.1\r\nHost: h\r\n\r\nabc"
            reader, writer = await connected(door, GET % 7 + connect)
            await door.until(partial(door.has_jobs, 1))
            door.jobs[0].answer(b"first")
            assert await response(reader) == (200, b"first")
            assert (await response(reader))[0] == 405
            writer.close()

    run(scenario)


def test_who_is_local() -> None:
    for peer in ("", None, ("127.0.0.9", 1), ("::1", 1, 0, 0), ("::ffff:127.0.0.1", 1, 0, 0)):
        assert is_local(peer)
    for peer in (("10.0.0.1", 1), ("fe80::1%eth0", 1, 0, 2), ("::ffff:10.0.0.1", 1, 0, 0)):
        assert not is_local(peer)
