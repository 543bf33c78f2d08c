"""The conversation, message by message, with no socket and no clock."""

from __future__ import annotations

from typing import Any

import pytest

from naiad.client.calls import BROKER_DEATHS_MAX, BROKER_LATE_NS, CALLS_MAX
from naiad.client.fields import packed, tail
from naiad.client.outstanding import BYTES_MAX, PRUNE_MIN, REQUESTS_MAX, TIMEOUT_MARGIN_NS
from naiad.client.requests import LEASE, REGION, InferInput, Prepared, checked
from naiad.client.session import Phase, Session
from naiad.protocol import messages as m
from naiad.protocol.codec import decode, encode
from naiad.protocol.errors import Code, ProtocolError, RequestError, Unavailable

BROKER = 7_000_000_000_000_000_001
OTHER_BROKER = 7_000_000_000_000_000_002
ARENA = m.Region(1 << 61, "/naiad.s.worker.1.00", 1, 2, 4096)


def parts(
    data: bytes = b"\0" * 8,
    *,
    model: str = "model",
    timeout_us: int = 0,
    memory: object = None,
    place: int = 0,
) -> Prepared:
    given = packed(InferInput("x", "UINT8", (len(data),), data, place, 1, 0, len(data)))
    last = tail((), 0, timeout_us, None, "", "", "", None)
    return checked((model, -1, ""), (given,), last, memory)


class Wire:
    """A session and the broker's end of its connection."""

    def __init__(self, **welcome: Any) -> None:
        self.session = Session(b"s" * 16, role="client", software="test", pid=1)
        self.welcome = {
            "incarnation": BROKER, "server": "s", "software": "t", "requests_max": 100,
            "bytes_max": 1 << 20, "inline_bytes_max": 1 << 20, "resumed": False, **welcome,
        }  # fmt: skip

    def connect(self, **changed: Any) -> list[m.Message]:
        """HELLO and WELCOME; returns what the session says then."""
        self.session.connection_made()
        [hello] = self.sent()
        assert isinstance(hello, m.Hello)
        self.hear(m.Welcome(**{**self.welcome, **changed}))
        return self.sent()

    def sent(self) -> list[m.Message]:
        out = []
        for header, *frames in self.session.messages():
            sizes = [len(frame) for frame in frames]
            out.append(decode(header, sizes, m.CLIENT_HEADER_BYTES_MAX))
        return out

    def hear(self, message: m.Message, now_ns: int = 0) -> list[Any]:
        return self.session.feed(encode(message), (), now_ns)

    def answer(self, *ids: int, incarnation: int = BROKER, **fields: Any) -> list[Any]:
        answers = tuple(
            m.InferAnswer(**{"id": ident, "error": None, "version": 1, "outputs": (), **fields})
            for ident in ids
        )
        return self.hear(m.Answers(incarnation, answers, (ARENA,)))

    def submit(self, token: Any = "token", **options: Any) -> int:
        ident = self.session.submit(parts(**options), token)
        assert ident
        return ident


@pytest.fixture
def wire() -> Any:
    wire = Wire()
    yield wire
    wire.session.requests.check_invariants()


def ids_of(message: m.Message) -> list[tuple[int, int]]:
    assert isinstance(message, m.Infer)
    return [(request.id, request.attempt) for request in message.requests]


# --- sending -------------------------------------------------------------------------------------


def test_nothing_is_said_before_a_connection_and_only_hello_before_welcome(wire: Wire) -> None:
    session = wire.session
    wire.submit()
    session.calls.control("live", {}, "call", 0)
    assert not session.has_messages
    assert wire.sent() == []
    session.connection_made()
    assert session.has_messages
    assert [type(message) for message in wire.sent()] == [m.Hello]
    assert wire.sent() == []
    wire.hear(m.Welcome(**wire.welcome))
    assert [type(message) for message in wire.sent()] == [m.Infer, m.Control]
    assert not session.has_messages


def test_requests_of_one_drain_share_a_message_and_a_frame(wire: Wire) -> None:
    wire.connect()
    for letter in b"abc":
        wire.submit(data=bytes([letter]) * 3)
    large = bytes(20_000)
    wire.submit(data=large)
    [[header, *frames]] = wire.session.messages()
    assert frames == [b"aaabbbccc", large]
    message = decode(header, [9, 20_000])
    assert isinstance(message, m.Infer)
    places = [request.inputs[0][3:] for request in message.requests]
    assert places == [(0, 0, 0, 3), (0, 0, 3, 3), (0, 0, 6, 3), (0, 1, 0, 20_000)]
    assert frames[1] is wire.session.requests.unanswered[4].parts.inputs[0][7]


def test_messages_keep_every_limit(wire: Wire) -> None:
    wire.connect(requests_max=10_000, bytes_max=1 << 30, inline_bytes_max=100_000)
    for _ in range(3000):
        wire.submit(model="m" * 200)
    for _ in range(10):
        wire.submit(data=bytes(60_000))
    seen = []
    for header, *frames in wire.session.messages():
        assert len(header) <= m.CLIENT_HEADER_BYTES_MAX
        assert sum(len(frame) for frame in frames) <= 100_000
        message = decode(header, [len(frame) for frame in frames], m.CLIENT_HEADER_BYTES_MAX)
        seen += ids_of(message)
    assert seen == [(ident, 1) for ident in range(1, 3011)]


def test_a_registration_goes_before_the_requests_and_a_call_after_them(wire: Wire) -> None:
    wire.connect()
    wire.session.calls.control("live", {}, "call", 0)
    wire.submit()
    wire.session.calls.register_region("region", 0, ARENA._replace(id=1))
    kinds = [type(message) for message in wire.sent()]
    assert kinds == [m.RegisterRegion, m.Infer, m.Control]


# --- budgets -------------------------------------------------------------------------------------


def test_budgets_hold_until_answers_come(wire: Wire) -> None:
    session = wire.session
    wire.connect(requests_max=2, bytes_max=100)
    first = wire.submit(data=bytes(50))
    assert not session.has_room(51)
    assert session.submit(parts(bytes(51)), "t") == 0
    wire.submit(data=bytes(50))
    assert not session.has_room(0)
    assert session.submit(parts(b""), "t") == 0
    wire.sent()
    wire.answer(first)
    assert session.has_room(50)
    assert not session.has_room(0, promised=1)


@pytest.mark.parametrize("limit", [{"bytes_max": 99}, {"inline_bytes_max": 99}])
def test_what_can_never_be_sent_is_refused(wire: Wire, limit: dict[str, int]) -> None:
    wire.connect(**limit)
    with pytest.raises(RequestError, match="expected at most 99"):
        wire.session.submit(parts(bytes(100)), "t")


def test_before_welcome_the_clients_own_budgets_hold(wire: Wire) -> None:
    for _ in range(REQUESTS_MAX):
        wire.submit()
    assert wire.session.submit(parts(), "t") == 0
    assert not wire.session.has_room(BYTES_MAX)


def test_calls_are_bounded(wire: Wire) -> None:
    for _ in range(CALLS_MAX):
        wire.session.calls.control("live", {}, "call", 0)
    with pytest.raises(Unavailable, match="at most 1024") as raised:
        wire.session.calls.control("live", {}, "call", 0)
    assert raised.value.code is Code.BUDGET_EXCEEDED


# --- answers -------------------------------------------------------------------------------------


def test_an_answer_is_delivered_once(wire: Wire) -> None:
    wire.connect()
    ident = wire.submit("me")
    wire.sent()
    [(token, error, answer, _, shared)] = wire.answer(ident, version=3)
    assert (token, error, shared) == ("me", None, None)
    assert answer.version == 3
    assert wire.answer(ident) == []
    assert wire.answer(99) == []
    assert wire.session.requests.duplicate_answers == 2


def test_an_error_answer_becomes_its_exception(wire: Wire) -> None:
    wire.connect()
    ident = wire.submit("me")
    [(_, error, answer, _, _)] = wire.answer(ident, error=("queue_full", "later", True))
    assert isinstance(error, Unavailable)
    assert (error.code, error.message, answer) == (Code.QUEUE_FULL, "later", None)


def test_answers_of_another_incarnation_are_dropped_with_the_connection(wire: Wire) -> None:
    wire.connect()
    ident = wire.submit("me")
    wire.sent()
    assert wire.answer(ident, incarnation=OTHER_BROKER) == []
    assert wire.session.reset_wanted
    wire.session.disconnected()
    [message] = wire.connect(incarnation=OTHER_BROKER)
    assert ids_of(message) == [(ident, 2)]
    assert [token for token, *_ in wire.answer(ident, incarnation=OTHER_BROKER)] == ["me"]


def test_a_part_is_not_the_answer(wire: Wire) -> None:
    wire.connect()
    ident = wire.submit("me")
    assert wire.answer(ident, final=False) == []
    assert [token for token, *_ in wire.answer(ident)] == ["me"]


@pytest.mark.parametrize(
    ("message", "fault"),
    [
        (m.Stop(1), "does not send Stop"),
        (m.Welcome(BROKER, "s", "t", 1, 1, 1, False), "WELCOME came without HELLO"),
    ],
)
def test_a_broker_that_breaks_the_rules_loses_its_connection(
    wire: Wire, message: m.Message, fault: str
) -> None:
    wire.connect()
    wire.submit()
    assert wire.hear(message) == []
    assert wire.session.reset_wanted
    assert wire.session.last_refusal is not None
    assert fault in wire.session.last_refusal.message


def test_garbage_loses_the_connection_too(wire: Wire) -> None:
    wire.connect()
    assert wire.session.feed(b"\xc1garbage", ()) == []
    assert wire.session.reset_wanted


# --- cancelling ----------------------------------------------------------------------------------


def test_a_request_cancelled_before_it_was_sent_is_never_sent(wire: Wire) -> None:
    wire.connect()
    ident = wire.submit()
    assert wire.session.cancel(ident)
    assert not wire.session.cancel(ident)
    assert wire.sent() == []
    assert wire.session.unanswered == 0


def test_a_request_cancelled_later_is_cancelled_there_and_its_answer_dropped(wire: Wire) -> None:
    wire.connect()
    ident = wire.submit()
    wire.sent()
    assert wire.session.cancel(ident)
    assert wire.sent() == [m.Cancel((ident,))]
    assert wire.session.unanswered == 1
    assert wire.answer(ident) == []
    assert wire.session.unanswered == 0
    assert wire.session.requests.duplicate_answers == 0


def test_many_cancelled_while_offline_take_no_room() -> None:
    wire = Wire()
    for _ in range(10_000):
        wire.session.cancel(wire.submit())
    assert len(wire.session.requests.waiting) < 1000
    assert wire.connect() == []


# --- reconnecting --------------------------------------------------------------------------------


def test_everything_unanswered_is_sent_again_in_order(wire: Wire) -> None:
    wire.connect()
    first, second, third = wire.submit(), wire.submit(), wire.submit()
    wire.sent()
    wire.answer(second)
    fourth = wire.submit()
    wire.session.disconnected()
    [message] = wire.connect(resumed=True)
    assert ids_of(message) == [(first, 2), (third, 2), (fourth, 1)]
    wire.session.disconnected()
    [message] = wire.connect(incarnation=OTHER_BROKER)
    assert ids_of(message) == [(first, 3), (third, 3), (fourth, 2)]
    assert wire.session.requests.resent_count == 5


def test_an_answer_that_comes_with_welcome_is_not_asked_for_again(wire: Wire) -> None:
    wire.connect()
    ident = wire.submit("me")
    wire.sent()
    wire.session.disconnected()
    wire.session.connection_made()
    wire.sent()
    wire.hear(m.Welcome(**{**wire.welcome, "resumed": True}))
    assert [token for token, *_ in wire.answer(ident)] == ["me"]
    assert wire.sent() == []


@pytest.mark.parametrize(("resumed", "said"), [(True, [m.Cancel((1,))]), (False, [])])
def test_a_cancelled_request_is_not_sent_again(
    wire: Wire, resumed: bool, said: list[m.Message]
) -> None:
    wire.connect()
    ident = wire.submit()
    wire.sent()
    wire.session.cancel(ident)
    wire.session.disconnected()
    assert wire.connect(resumed=resumed) == said
    assert wire.session.unanswered == 0


def test_only_what_is_left_of_a_timeout_is_sent_again(wire: Wire) -> None:
    wire.connect()
    wire.session.submit(parts(timeout_us=1000), "t", now_ns=5_000_000)
    wire.sent()
    wire.session.disconnected()
    wire.session.connection_made()
    wire.sent()
    wire.hear(m.Welcome(**wire.welcome), now_ns=5_400_000)
    [message] = wire.sent()
    assert isinstance(message, m.Infer)
    assert message.requests[0].timeout_us == 600


def test_regions_are_registered_with_brokers_that_do_not_know_them(wire: Wire) -> None:
    wire.connect()
    mine = ARENA._replace(id=1)
    call = wire.session.calls.register_region("region", 0, mine, "0a1b")
    assert wire.sent() == [m.RegisterRegion(call, mine, "0a1b")]
    wire.hear(m.Reply(call, None))
    wire.session.disconnected()
    assert wire.connect(resumed=True) == []
    wire.session.disconnected()
    [again] = wire.connect(incarnation=OTHER_BROKER)
    assert isinstance(again, m.RegisterRegion)
    assert (again.region, again.gpu) == (mine, "0a1b")
    wire.hear(m.Reply(again.call, None))
    wire.session.calls.forget_region("forget", 0, 1)
    wire.sent()
    wire.session.disconnected()
    assert not any(isinstance(one, m.RegisterRegion) for one in wire.connect())


def test_a_refused_region_is_not_registered_again(wire: Wire) -> None:
    wire.connect()
    call = wire.session.calls.register_region("region", 0, ARENA._replace(id=1))
    wire.sent()
    [(token, error, *_)] = wire.hear(m.Reply(call, ("permission_denied", "no", False)))
    assert token == "region"
    assert isinstance(error, RequestError)
    wire.session.disconnected()
    assert wire.connect(incarnation=OTHER_BROKER) == []


def test_calls_are_asked_again_unless_they_might_have_been_done(wire: Wire) -> None:
    wire.connect()
    wire.session.calls.control("live", {}, "live", 0)
    wire.session.calls.control("region_register", {"name": "r"}, "register", 0)
    wire.sent()
    wire.session.disconnected()
    wire.session.connection_made()
    wire.sent()
    [(token, error, *_)] = wire.hear(m.Welcome(**wire.welcome))
    assert token == "register"
    assert error.code is Code.CONNECTION_LOST
    assert [type(message) for message in wire.sent()] == [m.Control]


# --- what brokers may die of ---------------------------------------------------------------------


def restarted(wire: Wire, incarnation: int, now_ns: int = 0) -> list[Any]:
    """The broker died and the next one is there; what ended with that."""
    wire.session.disconnected()
    wire.session.connection_made()
    wire.sent()
    return wire.hear(m.Welcome(**{**wire.welcome, "incarnation": incarnation}), now_ns)


@pytest.mark.parametrize("what", ["call", "request"])
def test_what_brokers_die_of_is_not_sent_for_ever(wire: Wire, what: str) -> None:
    wire.connect()
    if what == "call":
        wire.session.calls.control("statistics", {}, "me", 0)
    else:
        wire.submit("me")
    for death in range(1, BROKER_DEATHS_MAX):
        assert len(wire.sent()) == 1
        assert restarted(wire, BROKER + death) == []
    assert len(wire.sent()) == 1
    [(token, error, *_)] = restarted(wire, BROKER + BROKER_DEATHS_MAX)
    assert token == "me"
    assert error.code is Code.POISON_REQUEST
    assert not error.retryable
    assert f"died {BROKER_DEATHS_MAX} times" in error.message
    assert wire.sent() == []
    assert wire.session.unanswered == 0


@pytest.mark.parametrize("what", ["call", "request"])
def test_broken_connections_and_deaths_elsewhere_do_not_count(wire: Wire, what: str) -> None:
    wire.connect()
    if what == "call":
        wire.session.calls.control("statistics", {}, "me", 0)
    else:
        wire.submit("me")
    wire.sent()
    for _ in range(2 * BROKER_DEATHS_MAX):  # the same broker
        wire.session.disconnected()
        assert len(wire.connect(resumed=True)) == 1
    assert restarted(wire, BROKER + 1) == []
    for death in range(2, 2 * BROKER_DEATHS_MAX):  # it had not been sent to these
        assert restarted(wire, BROKER + death) == []
    assert len(wire.sent()) == 1


@pytest.mark.parametrize("what", ["call", "request"])
def test_a_broker_that_had_it_for_long_did_not_die_of_it(wire: Wire, what: str) -> None:
    wire.connect()
    if what == "call":
        wire.session.calls.control("log_settings", {"after": 1}, "me", 0)
    else:
        wire.submit("me")
    late = BROKER_LATE_NS + 1
    count = 3 * BROKER_DEATHS_MAX
    for death in range(1, count):
        assert len(wire.sent()) == 1
        assert restarted(wire, BROKER + death, death * late) == []
    for death in range(1, BROKER_DEATHS_MAX):  # in a row with the last one
        assert len(wire.sent()) == 1
        ended = restarted(wire, BROKER + count + death, (count - 1) * late + death)
    assert [token for token, *_ in ended] == ["me"]


@pytest.mark.parametrize("ended_by", ["death", "timeout", "cancel"])
def test_memory_of_what_brokers_die_of_is_neither_asked_back_nor_used_again(
    wire: Wire, ended_by: str
) -> None:
    wire.connect()
    ident = wire.submit("me", memory="memory", place=REGION)
    wire.sent()
    if ended_by == "timeout":
        wire.answer(ident, error=("timeout", "over", True))
    elif ended_by == "cancel":
        wire.session.cancel(ident)
        wire.sent()
    for death in range(1, BROKER_DEATHS_MAX):
        restarted(wire, BROKER + death)
        assert isinstance(wire.sent()[0], m.Infer)
    restarted(wire, BROKER + BROKER_DEATHS_MAX)
    assert wire.sent() == []
    restarted(wire, BROKER + BROKER_DEATHS_MAX + 1)
    assert wire.sent() == []
    assert wire.session.unanswered == 0
    assert list(wire.session.requests.held) == [ident]
    wire.hear(m.Released(BROKER + BROKER_DEATHS_MAX + 1, (ident,)))
    assert not wire.session.requests.held


def test_a_region_that_brokers_die_of_is_not_offered_again(wire: Wire) -> None:
    wire.connect()
    wire.session.calls.register_region("region", 0, ARENA._replace(id=1))
    for death in range(1, BROKER_DEATHS_MAX):
        assert [type(one) for one in wire.sent()] == [m.RegisterRegion]
        assert restarted(wire, BROKER + death) == []
    wire.sent()
    [(token, error, *_)] = restarted(wire, BROKER + BROKER_DEATHS_MAX)
    assert (token, error.code) == ("region", Code.POISON_REQUEST)
    assert wire.sent() == []


# --- memory --------------------------------------------------------------------------------------


@pytest.mark.parametrize("code", ["timeout", "cancelled", "worker_died"])
def test_memory_is_held_until_released(wire: Wire, code: str) -> None:
    wire.connect()
    ident = wire.submit(memory="memory", place=REGION)
    wire.sent()
    wire.answer(ident, error=(code, "over", True))
    assert ident in wire.session.requests.held
    wire.hear(m.Released(BROKER, (ident, 12345)))
    assert wire.session.requests.held == {}


@pytest.mark.parametrize("error", [None, ("model_error", "no", False)])
def test_memory_is_free_with_any_other_answer(wire: Wire, error: Any) -> None:
    wire.connect()
    ident = wire.submit(memory="memory", place=REGION)
    wire.sent()
    wire.answer(ident, error=error)
    assert wire.session.requests.held == {}


@pytest.mark.parametrize("ended_by", ["answer", "released"])
def test_memory_in_doubt_is_asked_back_after_a_reconnect(wire: Wire, ended_by: str) -> None:
    wire.connect()
    ident = wire.submit("me", memory="memory", place=REGION)
    wire.sent()
    wire.answer(ident, error=("timeout", "over", True))
    wire.session.disconnected()
    again, cancel = wire.connect(incarnation=OTHER_BROKER)
    assert ids_of(again) == [(ident, 2)]
    assert cancel == m.Cancel((ident,))
    if ended_by == "answer":
        assert wire.answer(ident, incarnation=OTHER_BROKER) == []
    else:
        wire.hear(m.Released(OTHER_BROKER, (ident,)))
    assert wire.session.unanswered == 0
    assert wire.session.requests.held == {}


def test_leases_end_when_they_are_released_and_are_named_in_hello(wire: Wire) -> None:
    wire.connect()
    ident = wire.submit("me")
    wire.sent()
    output = m.Tensor("y", "UINT8", (8,), LEASE, ARENA.id, 0, 8)
    [(_, _, _, _, request)] = wire.answer(ident, outputs=(output,))
    assert request.id == ident
    assert wire.session.arenas == [ARENA]
    wire.session.disconnected()
    wire.session.connection_made()
    [hello] = wire.sent()
    assert isinstance(hello, m.Hello)
    assert hello.leases == ((ARENA.id, ident),)
    assert hello.incarnation == BROKER
    wire.hear(m.Welcome(**{**wire.welcome, "resumed": True}))
    wire.session.leases.release([(ARENA.id, ident)])
    wire.session.leases.release([(ARENA.id, ident)])
    assert wire.sent() == [m.Release(((ARENA.id, ident),))]


def test_leases_of_answers_nobody_reads_end_at_once(wire: Wire) -> None:
    wire.connect()
    ident = wire.submit("me")
    wire.sent()
    output = m.Tensor("y", "UINT8", (8,), LEASE, ARENA.id, 0, 8)
    wire.answer(ident, outputs=(output,))
    wire.answer(ident, outputs=(output,))  # the same lease again: it is being read
    assert wire.sent() == []
    other = output._replace(region=ARENA.id + 1)
    wire.answer(ident, outputs=(other,))  # another worker ran it too
    assert wire.sent() == [m.Release(((ARENA.id + 1, ident),))]
    cancelled = wire.submit()
    wire.sent()
    wire.session.cancel(cancelled)
    wire.answer(cancelled, outputs=(output,))
    assert wire.sent() == [m.Cancel((cancelled,)), m.Release(((ARENA.id, cancelled),))]


# --- the end -------------------------------------------------------------------------------------


def test_a_final_refusal_fails_everything(wire: Wire) -> None:
    wire.connect()
    wire.submit("me")
    wire.session.calls.control("live", {}, "call", 0)
    out = wire.hear(m.Refused("permission_denied", "not you"))
    assert [token for token, *_ in out] == ["me", "call"]
    assert len({id(error) for _, error, *_ in out}) == 2
    assert wire.session.phase is Phase.ENDED
    assert isinstance(wire.session.fault, RequestError)


def test_a_refusal_for_now_only_ends_the_connection(wire: Wire) -> None:
    wire.connect()
    wire.submit()
    assert wire.hear(m.Refused("draining", "stopping")) == []
    assert wire.session.reset_wanted
    assert wire.session.phase is Phase.OPEN


def test_another_wire_version_ends_the_session(wire: Wire) -> None:
    wire.session.connection_made()
    wire.submit("me")
    header = bytearray(encode(m.Refused("version_mismatch", "no")))
    header[1] = 9
    [(token, error, *_)] = wire.session.feed(bytes(header), ())
    assert token == "me"
    assert isinstance(error, ProtocolError)
    assert "version 9" in error.message


def test_closing_says_bye_and_fails_what_is_left(wire: Wire) -> None:
    wire.connect()
    wire.submit("me")
    [[bye]] = wire.session.close()
    assert decode(bye) == m.Bye()
    assert wire.session.fault is not None
    assert [token for token, *_ in wire.session.fail_all(wire.session.fault)] == ["me"]


def test_deadlines(wire: Wire) -> None:
    session = wire.session
    assert session.deadline_ns() == 0
    session.calls.control("live", {}, "call", 9_000)
    session.submit(parts(timeout_us=3), "request", now_ns=1_000)
    assert session.deadline_ns() == 4_000
    assert session.expire(3_999) == []
    for now_ns, expected in ((4_000, "request"), (9_000, "call")):
        [(token, error, *_)] = session.expire(now_ns)
        assert token == expected
        assert error is not None
        assert error.code is Code.TIMEOUT
    assert session.deadline_ns() == 0
    assert wire.connect() == []


def test_a_broker_that_does_not_answer_in_time_is_waited_for_a_margin_longer(wire: Wire) -> None:
    wire.connect()
    session = wire.session
    memory = object()
    ident = wire.submit("late", timeout_us=5, memory=memory)
    wire.submit("patient")
    wire.sent()
    end_ns = 5_000 + TIMEOUT_MARGIN_NS
    assert session.deadline_ns() == end_ns
    assert session.expire(end_ns - 1) == []
    [(token, error, *_)] = session.expire(end_ns)
    assert error is not None
    assert (token, error.code) == ("late", Code.TIMEOUT)
    assert session.deadline_ns() == 0
    # The broker is told, and what it says later frees the memory.
    assert wire.sent() == [m.Cancel((ident,))]
    assert ident in session.requests.unanswered
    assert wire.answer(ident, error=("cancelled", "", False)) == []
    assert list(session.requests.held) == [ident]
    wire.hear(m.Released(BROKER, (ident,)))
    assert not session.requests.held
    session.requests.check_invariants()


def test_an_unsent_request_that_times_out_is_forgotten(wire: Wire) -> None:
    wire.connect()
    wire.submit("late", timeout_us=5)
    assert len(wire.session.expire(5_000 + TIMEOUT_MARGIN_NS)) == 1
    assert wire.sent() == []
    assert wire.session.unanswered == 0


def test_deadlines_of_answered_requests_take_no_room(wire: Wire) -> None:
    wire.connect()
    for _ in range(3 * PRUNE_MIN):
        ident = wire.submit(timeout_us=10**12)
        wire.sent()
        wire.answer(ident)
    assert len(wire.session.requests.timed) <= 2 * PRUNE_MIN
    assert wire.session.deadline_ns() == 0
