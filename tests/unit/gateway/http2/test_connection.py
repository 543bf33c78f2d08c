"""The server's side of HTTP/2: what a client may do, and what ends its connection."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from naiad.gateway.http2 import connection as c
from naiad.gateway.http2 import frames as f
from naiad.gateway.http2.connection import Connection
from naiad.gateway.http2.frames import ConnectionFault, Why
from naiad.gateway.http2.hpack import FIELDS_MAX, encoded
from naiad.gateway.http2.sending import OUT_BYTES_MAX, PARTING, SENT_FRAME_BYTES_MAX
from naiad.gateway.http2.streams import STREAM_WINDOW_BYTES, Stream

HEAD = encoded([(b":path", b"/x")])
OPEN = f.frame(f.HEADERS, f.END_HEADERS, 1, HEAD)
WHOLE = f.frame(f.HEADERS, f.END_HEADERS | f.END_STREAM, 1, HEAD)


class Recorder:
    """A sink that notes everything. `take`: whether bodies are taken at once."""

    def __init__(self, *, take: bool = True) -> None:
        self.events: list[tuple[Any, ...]] = []
        self.connection = Connection(self, dict)
        self.connection.take_out()
        self._takes = take

    def begun(self, stream: int, head: Any, *, is_ended: bool) -> None:
        self.events.append(("begun", stream, head.get(b":path"), is_ended))

    def arrived(self, stream: int, data: memoryview, *, is_ended: bool) -> None:
        self.events.append(("arrived", stream, bytes(data), is_ended))
        if self._takes:
            self.connection.taken(stream, len(data))

    def was_reset(self, stream: int) -> None:
        self.events.append(("reset", stream))

    def drained(self, stream: int) -> None:
        self.events.append(("drained", stream))

    def receive(self, *frames: bytes) -> list[tuple[Any, ...]]:
        """Events of these frames."""
        before = len(self.events)
        self.connection.receive(b"".join(frames))
        return self.events[before:]

    def receive_all(self, data: bytes) -> None:
        self.connection.receive(data)
        while self.connection.has_more:
            self.connection.receive(b"")

    def sent(self) -> list[tuple[int, int, int, bytes]]:
        """(kind, flags, stream, content) of what is to be sent."""
        data = b"".join(self.connection.take_out())
        found = []
        while data:
            size = int.from_bytes(data[:3], "big")
            number = int.from_bytes(data[5:9], "big")
            found.append((data[3], data[4], number, data[9 : 9 + size]))
            data = data[9 + size :]
        return found


def begun(**options: Any) -> Recorder:
    recorder = Recorder(**options)
    recorder.receive(f.PREFACE)
    return recorder


def data(content: bytes, flags: int = 0, stream: int = 1) -> bytes:
    return f.frame(f.DATA, flags, stream, content)


def test_a_request_and_its_answer() -> None:
    one = begun()

    assert one.receive(OPEN, data(b"ab"), data(b"c", f.END_STREAM)) == [
        ("begun", 1, b"/x", False),
        ("arrived", 1, b"ab", False),
        ("arrived", 1, b"c", True),
    ]
    one.connection.send_head(1, b"H")
    assert one.connection.send(1, b"1", b"23") == 0
    one.connection.send_end(1, b"T")

    assert one.sent() == [
        (f.HEADERS, f.END_HEADERS, 1, b"H"),
        (f.DATA, 0, 1, b"123"),
        (f.HEADERS, f.END_HEADERS | f.END_STREAM, 1, b"T"),
    ]
    assert one.connection.open_count == 0


def test_an_answer_before_the_request_is_whole_stops_the_rest() -> None:
    one = begun()
    one.receive(OPEN)

    one.connection.send_end(1, b"T")

    assert [frame[0] for frame in one.sent()] == [f.HEADERS, f.RST_STREAM]
    assert one.receive(data(b"late")) == []


@given(st.data())
@settings(max_examples=50)
def test_how_bytes_are_cut_does_not_matter(draw: st.DataObject) -> None:
    stream = b"".join(
        (
            f.PREFACE,
            f.settings({f.INITIAL_WINDOW_SIZE: 10}),
            f.frame(f.HEADERS, 0, 1, HEAD[:3]),
            f.frame(f.CONTINUATION, 0, 1, HEAD[3:5]),
            f.frame(f.CONTINUATION, f.END_HEADERS, 1, HEAD[5:]),
            f.frame(f.DATA, f.PADDED, 1, b"\3abc\0\0\0"),
            f.frame(99, 0, 0, b"unknown"),
            data(b"xyz", f.END_STREAM),
            f.frame(f.PING, 0, 0, b"12345678"),
        )
    )
    whole = Recorder()
    whole.receive(stream)
    parts = Recorder()
    cuts = sorted(draw.draw(st.lists(st.integers(0, len(stream)), max_size=6)))
    for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        parts.receive(stream[start:end])

    assert joined(parts.events) == joined(whole.events)
    assert parts.sent() == whole.sent()
    assert whole.events[1:] == [("arrived", 1, b"abc", False), ("arrived", 1, b"xyz", True)]


def joined(events: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """The same with bodies in one piece each."""
    body = b"".join(event[2] for event in events if event[0] == "arrived")
    return [event for event in events if event[0] != "arrived"] + [(body, events[-1][3])]


def test_trailers_of_a_request_end_it() -> None:
    one = begun()

    events = one.receive(OPEN, data(b"a"), WHOLE)

    assert events[-1] == ("arrived", 1, b"", True)


def test_a_client_that_cancels() -> None:
    one = begun()
    one.receive(OPEN)

    assert one.receive(f.reset(1, Why.CANCEL)) == [("reset", 1)]
    one.connection.send_head(1, b"H")
    one.connection.send(1, b"x")
    one.connection.send_end(1, b"T")
    assert one.sent() == []
    assert one.receive(f.reset(1, Why.CANCEL), data(b"late")) == []


def test_pings_and_settings_are_answered() -> None:
    one = begun()

    one.receive(
        f.settings({}), f.frame(f.PING, 0, 0, b"12345678"), f.frame(f.PING, f.ACK, 0, bytes(8))
    )

    assert one.sent() == [(f.SETTINGS, f.ACK, 0, b""), (f.PING, f.ACK, 0, b"12345678")]


def test_streams_beyond_the_limit_and_after_a_goodbye_are_refused() -> None:
    one = begun()
    for stream in range(1, 2 * c.STREAMS_MAX, 2):
        one.receive(f.frame(f.HEADERS, f.END_HEADERS | f.END_STREAM, stream, HEAD))
    one.sent()

    beyond = 2 * c.STREAMS_MAX + 1
    assert one.receive(f.frame(f.HEADERS, f.END_HEADERS, beyond, HEAD)) == []
    assert one.sent() == [(f.RST_STREAM, 0, beyond, Why.REFUSED_STREAM.to_bytes(4, "big"))]
    one.connection.send_end(1, b"T")
    one.connection.leave()
    one.connection.leave()
    assert [frame[0] for frame in one.sent()] == [f.HEADERS, f.GOAWAY]
    assert one.receive(f.frame(f.HEADERS, f.END_HEADERS, beyond + 2, HEAD)) == []
    assert [frame[0] for frame in one.sent()] == [f.RST_STREAM]


def test_too_many_header_fields_end_the_connection() -> None:
    block = encoded([(b":path", b"/x"), *[(b"a", b"b")] * FIELDS_MAX])
    with pytest.raises(ConnectionFault, match="header fields") as caught:
        begun().receive(f.frame(f.HEADERS, f.END_HEADERS, 1, block))
    assert caught.value.why is Why.ENHANCE_YOUR_CALM


# --- flow control -------------------------------------------------------------------------------


def test_a_body_is_let_on_when_it_is_taken() -> None:
    one = begun(take=False)
    one.receive(OPEN)
    half = STREAM_WINDOW_BYTES // 2
    for _ in range(half // 16_384):
        one.receive(data(bytes(16_384)))
    assert one.sent() == []

    one.connection.taken(1, half)

    assert one.sent() == [(f.WINDOW_UPDATE, 0, 1, half.to_bytes(4, "big"))]


def test_the_connection_is_let_on_whoever_takes() -> None:
    one = begun(take=False)
    updates = []
    for stream in range(1, 41, 2):
        one.receive(f.frame(f.HEADERS, f.END_HEADERS, stream, HEAD))
        for _ in range(STREAM_WINDOW_BYTES // 16_384):
            one.receive(data(bytes(16_384), stream=stream))
        updates += one.sent()
    assert [frame[:3] for frame in updates] == [(f.WINDOW_UPDATE, 0, 0)] * 2


@given(st.data())
@settings(max_examples=100)
def test_an_answer_goes_as_far_as_the_windows_let_it(draw: st.DataObject) -> None:
    """Whatever windows, pauses and sizes: all bytes, in order, none beyond a window."""
    one = begun()
    window = draw.draw(st.integers(0, 200))
    one.receive(f.settings({f.INITIAL_WINDOW_SIZE: window}), WHOLE)
    one.sent()
    given_bytes = bytearray()
    room = {0: f.WINDOW_AT_FIRST, 1: window}
    received = bytearray()
    ended = False

    def account() -> None:
        nonlocal ended
        for kind, flags, _, content in one.sent():
            assert not ended
            if kind == f.DATA:
                received.extend(content)
                room[0] -= len(content)
                room[1] -= len(content)
                assert min(room.values()) >= 0 or not content
            ended = bool(flags & f.END_STREAM) and kind == f.HEADERS

    for _ in range(draw.draw(st.integers(1, 12))):
        match draw.draw(st.sampled_from(["send", "stream", "pause", "resume", "settings"])):
            case "send":
                part = bytes([len(given_bytes) % 251]) * draw.draw(st.integers(1, 30_000))
                given_bytes += part
                one.connection.send(1, part[:5], part[5:])
            case "stream":
                size = draw.draw(st.integers(1, 40_000))
                room[1] += size
                one.receive(f.window_update(1, size))
            case "settings":
                new = draw.draw(st.integers(0, 40_000))
                room[1] += new - window
                window = new
                frame_bytes = draw.draw(st.integers(16_384, 30_000))
                one.receive(f.settings({f.INITIAL_WINDOW_SIZE: new, f.MAX_FRAME_SIZE: frame_bytes}))
            case "pause":
                one.connection.is_paused = True
            case "resume":
                one.connection.is_paused = False
                one.connection.pump()
        account()
    one.connection.send_end(1, b"T")
    one.connection.is_paused = False
    for stream in (0, 1):
        more = max(1, len(given_bytes) - room[stream])
        room[stream] += more
        one.receive(f.window_update(stream, more))
    one.connection.pump()
    account()
    assert received == given_bytes
    assert ended


def test_many_streams_share_the_connections_window() -> None:
    one = begun()
    for stream in (1, 3, 5):
        one.receive(f.frame(f.HEADERS, f.END_HEADERS | f.END_STREAM, stream, HEAD))
        one.connection.send(stream, bytes(40_000))
        one.connection.send_end(stream, b"T")
    assert sum(len(frame[3]) for frame in one.sent() if frame[0] == f.DATA) == f.WINDOW_AT_FIRST

    events = one.receive(f.window_update(0, 100_000))

    assert events == [("drained", 3), ("drained", 5)]
    assert one.connection.open_count == 0


# --- clients that break the rules ---------------------------------------------------------------

Bad = tuple[str, Why, Callable[[], list[bytes]]]
LONG = f.frame(f.CONTINUATION, 0, 1, bytes(16_000))
BAD: list[Bad] = [
    ("no preface", Why.PROTOCOL_ERROR, lambda: [b"GET / HTTP/1.1\r\n"]),
    (
        "too large", Why.FRAME_SIZE_ERROR,
        lambda: [f.PREFACE, OPEN, (c.DATA_FRAME_BYTES_MAX + 1).to_bytes(3, "big") + bytes(6)],
    ),
    ("large settings", Why.FRAME_SIZE_ERROR, lambda: [f.PREFACE, b"\1\0\1\4" + bytes(5)]),
    (
        "small frames", Why.PROTOCOL_ERROR,
        lambda: [f.PREFACE, f.settings({f.MAX_FRAME_SIZE: 100})],
    ),
    ("even stream", Why.PROTOCOL_ERROR, lambda: [f.PREFACE, f.frame(f.HEADERS, 4, 2, HEAD)]),
    ("stream 0", Why.PROTOCOL_ERROR, lambda: [f.PREFACE, f.frame(f.HEADERS, 4, 0, HEAD)]),
    ("bad block", Why.COMPRESSION_ERROR, lambda: [f.PREFACE, f.frame(f.HEADERS, 4, 1, b"\x80")]),
    ("idle data", Why.PROTOCOL_ERROR, lambda: [f.PREFACE, data(b"x")]),
    ("data of 0", Why.PROTOCOL_ERROR, lambda: [f.PREFACE, data(b"x", stream=0)]),
    ("behind the end", Why.STREAM_CLOSED, lambda: [f.PREFACE, WHOLE, data(b"x")]),
    ("headers twice", Why.PROTOCOL_ERROR, lambda: [f.PREFACE, OPEN, OPEN]),
    ("padding", Why.PROTOCOL_ERROR, lambda: [f.PREFACE, OPEN, data(b"\5abc", f.PADDED)]),
    (
        "many settings", Why.ENHANCE_YOUR_CALM,
        lambda: [f.PREFACE, f.frame(f.SETTINGS, 0, 0, bytes(6) * (c.SETTINGS_MAX + 1))],
    ),
    ("push", Why.PROTOCOL_ERROR, lambda: [f.PREFACE, f.frame(f.PUSH_PROMISE, 0, 1)]),
    ("cut settings", Why.FRAME_SIZE_ERROR, lambda: [f.PREFACE, f.frame(f.SETTINGS, 0, 0, b"1")]),
    ("stream settings", Why.PROTOCOL_ERROR, lambda: [f.PREFACE, f.frame(f.SETTINGS, 0, 1)]),
    (
        "large window", Why.FLOW_CONTROL_ERROR,
        lambda: [f.PREFACE, f.settings({f.INITIAL_WINDOW_SIZE: 2**31})],
    ),
    (
        "overflow", Why.FLOW_CONTROL_ERROR,
        lambda: [f.PREFACE, f.window_update(0, f.WINDOW_MAX)],
    ),
    (
        "stream overflow", Why.FLOW_CONTROL_ERROR,
        lambda: [f.PREFACE, OPEN, f.window_update(1, f.WINDOW_MAX)],
    ),
    ("window of nothing", Why.PROTOCOL_ERROR, lambda: [f.PREFACE, f.window_update(0, 0)]),
    ("idle window", Why.PROTOCOL_ERROR, lambda: [f.PREFACE, f.window_update(9, 1)]),
    ("short ping", Why.FRAME_SIZE_ERROR, lambda: [f.PREFACE, f.frame(f.PING, 0, 0, b"1")]),
    ("idle reset", Why.PROTOCOL_ERROR, lambda: [f.PREFACE, f.reset(1, Why.CANCEL)]),
    ("short reset", Why.FRAME_SIZE_ERROR, lambda: [f.PREFACE, f.frame(f.RST_STREAM, 0, 1, b"1")]),
    (
        "unfinished headers", Why.PROTOCOL_ERROR,
        lambda: [f.PREFACE, f.frame(f.HEADERS, 0, 1, HEAD), f.settings({})],
    ),
    (
        "continuation of nothing", Why.PROTOCOL_ERROR,
        lambda: [f.PREFACE, f.frame(f.CONTINUATION, 4, 1, HEAD)],
    ),
    (
        "endless headers", Why.ENHANCE_YOUR_CALM,
        lambda: [f.PREFACE, f.frame(f.HEADERS, 0, 1), *[LONG] * 5],
    ),
    (
        "empty continuations", Why.ENHANCE_YOUR_CALM,
        lambda: [f.PREFACE, f.frame(f.HEADERS, 0, 1), *[f.frame(f.CONTINUATION, 0, 1)] * 10_001],
    ),
    (
        "pings only", Why.ENHANCE_YOUR_CALM,
        lambda: [f.PREFACE, *[f.frame(f.PING, 0, 0, bytes(8))] * 10_001],
    ),
    ("empty data", Why.ENHANCE_YOUR_CALM, lambda: [f.PREFACE, OPEN, *[data(b"")] * 10_001]),
    (
        "rapid resets", Why.ENHANCE_YOUR_CALM,
        lambda: [
            f.PREFACE,
            *(
                f.frame(f.HEADERS, 4, n, HEAD) + f.reset(n, Why.CANCEL)
                for n in range(1, 2 * c.RESETS_MAX + 3, 2)
            ),
        ],
    ),
    (
        "more than the window", Why.FLOW_CONTROL_ERROR,
        lambda: [f.PREFACE, OPEN, *[data(bytes(16_384))] * (STREAM_WINDOW_BYTES // 16_384 + 1)],
    ),
]  # fmt: skip


@pytest.mark.parametrize(("name", "why", "make"), BAD, ids=[bad[0] for bad in BAD])
def test_what_ends_a_connection(name: str, why: Why, make: Callable[[], list[bytes]]) -> None:
    one = Recorder(take=False)

    with pytest.raises(ConnectionFault) as caught:
        one.receive_all(b"".join(make()))

    assert caught.value.why is why
    one.sent()
    one.connection.goodbye(caught.value)
    ((kind, _, _, content),) = one.sent()
    assert kind == f.GOAWAY
    assert content[4:8] == why.to_bytes(4, "big")


def test_bodies_are_not_put_out_faster_than_they_are_taken() -> None:
    one = begun()
    one.receive(f.settings({f.INITIAL_WINDOW_SIZE: f.WINDOW_MAX}), WHOLE)
    one.receive(f.window_update(0, f.WINDOW_MAX - f.WINDOW_AT_FIRST))
    one.sent()
    size = 5 * OUT_BYTES_MAX

    one.connection.send(1, bytes(size))
    one.connection.send_end(1, b"T")

    taken = []
    while out := one.connection.take_out():
        taken.append(sum(len(part) for part in out))
    assert max(taken) < 1.1 * OUT_BYTES_MAX
    assert sum(taken) > size
    assert one.events[-1] == ("drained", 1)


VALID = b"".join((f.settings({}), OPEN, data(b"abcdefgh" * 10), data(b"x", f.END_STREAM)))


@given(st.data())
def test_mutated_bytes_are_frames_or_a_fault(draw: st.DataObject) -> None:
    changed = bytearray(VALID)
    for _ in range(draw.draw(st.integers(1, 5))):
        changed[draw.draw(st.integers(0, len(changed) - 1))] = draw.draw(st.integers(0, 255))
    one = begun()
    try:
        one.receive(bytes(changed))
    except ConnectionFault as fault:
        one.connection.goodbye(fault)
    assert all(len(frame[3]) <= SENT_FRAME_BYTES_MAX for frame in one.sent())


class Watched(dict[int, Stream]):
    """Streams that remember which of them were looked at."""

    def __init__(self, streams: dict[int, Stream]) -> None:
        super().__init__(streams)
        self.looked_at: list[int] = []

    def __getitem__(self, number: int) -> Stream:
        self.looked_at.append(number)
        return super().__getitem__(number)

    def values(self) -> Any:
        self.looked_at += self
        return super().values()

    def items(self) -> Any:
        self.looked_at += self
        return super().items()


def test_new_windows_are_no_work_for_streams_that_do_not_wait() -> None:
    """A client may open thousands of streams and then say another size thousands of times."""
    one = begun()
    for stream in range(1, 201, 2):
        one.receive(f.frame(f.HEADERS, f.END_HEADERS, stream, HEAD))
    one.connection._streams = watched = Watched(one.connection._streams)

    for size in (0, 9, 0, 99):
        one.receive(f.settings({f.INITIAL_WINDOW_SIZE: size}))

    assert watched.looked_at == []
    one.receive(f.settings({f.INITIAL_WINDOW_SIZE: 0}))
    one.connection.send(1, b"waits")
    one.receive(f.settings({f.INITIAL_WINDOW_SIZE: 9}))
    assert watched.looked_at == [1]


def test_streams_that_wait_for_their_window_go_on_when_it_is_larger() -> None:
    one = begun()
    one.receive(f.settings({f.INITIAL_WINDOW_SIZE: 2}), WHOLE)
    one.connection.send(1, b"abcdef")
    one.sent()

    one.receive(f.settings({f.INITIAL_WINDOW_SIZE: 1}))
    assert [frame[0] for frame in one.sent()] == [f.SETTINGS]
    one.receive(f.settings({f.INITIAL_WINDOW_SIZE: 4}))
    assert (f.DATA, 0, 1, b"cd") in one.sent()
    one.receive(f.window_update(1, 1), f.settings({f.INITIAL_WINDOW_SIZE: 9}))
    assert b"".join(frame[3] for frame in one.sent() if frame[0] == f.DATA) == b"ef"
    assert one.events[-1] == ("drained", 1)


def test_very_many_frames_are_taken_in_turns() -> None:
    one = begun()
    count = 2 * c.FRAMES_PER_TURN_MAX + 1
    ping = f.frame(f.PING, 0, 0, bytes(8))

    one.receive(ping * count + ping[:5])
    answered = [len(one.sent())]
    while one.connection.has_more:
        one.receive()
        answered.append(len(one.sent()))
    one.receive(ping[5:])

    assert answered == [c.FRAMES_PER_TURN_MAX, c.FRAMES_PER_TURN_MAX, 1]
    assert len(one.sent()) == 1


def test_calls_count_as_more_than_other_frames() -> None:
    one = begun()

    begun_ones = one.receive(
        *(f.frame(f.HEADERS, f.END_HEADERS, stream, HEAD) for stream in range(1, 513, 2))
    )

    assert 0 < len(begun_ones) <= c.FRAMES_PER_TURN_MAX // c.BLOCK_FRAMES
    assert one.connection.has_more


def test_the_sink_says_when_a_turn_has_lasted_long_enough() -> None:
    class Busy(Recorder):
        def begun(self, stream: int, head: Any, *, is_ended: bool) -> None:
            super().begun(stream, head, is_ended=is_ended)
            self.connection.end_turn()

    one = Busy()
    one.receive(f.PREFACE)
    block = f.END_HEADERS | f.END_STREAM
    frames = [f.frame(f.HEADERS, block, stream, HEAD) for stream in (1, 3, 5)]

    assert [event[1] for event in one.receive(*frames)] == [1]
    assert one.connection.has_more
    assert [event[1] for event in one.receive()] == [3]
    assert [event[1] for event in one.receive()] == [5]
    assert not one.connection.has_more


def test_streams_that_are_on_their_way_at_a_goodbye_that_was_announced_are_taken() -> None:
    one = begun()

    one.connection.announce()
    assert [(frame[0], frame[3][:4]) for frame in one.sent()] == [
        (f.GOAWAY, f.STREAM_MAX.to_bytes(4, "big"))
    ]
    assert one.receive(WHOLE) == [("begun", 1, b"/x", True)]
    one.connection.leave()
    assert [(frame[0], frame[3][:4]) for frame in one.sent()] == [
        (f.GOAWAY, (1).to_bytes(4, "big"))
    ]


def test_a_goodbye_is_final_when_the_client_has_said_that_it_knows() -> None:
    one = begun()

    one.connection.part()
    one.connection.part()
    assert [(frame[0], frame[3][:4]) for frame in one.sent()] == [
        (f.GOAWAY, f.STREAM_MAX.to_bytes(4, "big")), (f.PING, PARTING[:4]),
    ]  # fmt: skip
    assert one.receive(WHOLE) == [("begun", 1, b"/x", True)]
    one.receive(f.frame(f.PING, f.ACK, 0, bytes(8)))
    assert not one.connection.has_parted
    one.receive(f.frame(f.PING, f.ACK, 0, PARTING), f.frame(f.PING, f.ACK, 0, PARTING))
    assert one.connection.has_parted
    assert [(frame[0], frame[3][:4]) for frame in one.sent()] == [
        (f.GOAWAY, (1).to_bytes(4, "big"))
    ]


def test_nobody_answers_a_goodbye_that_was_not_said() -> None:
    one = begun()
    one.receive(f.frame(f.PING, f.ACK, 0, PARTING))
    assert not one.connection.has_parted
    assert one.sent() == []


def test_what_waits_is_counted_until_it_goes_or_its_stream_ends() -> None:
    one = begun()
    one.receive(f.settings({f.INITIAL_WINDOW_SIZE: 2}), WHOLE)
    one.receive(f.frame(f.HEADERS, f.END_HEADERS | f.END_STREAM, 3, HEAD))
    one.connection.send(1, b"abcdef")
    one.connection.send(3, b"abc")
    assert one.connection.unsent_bytes == 5

    one.receive(f.window_update(1, 1))
    assert one.connection.unsent_bytes == 4
    one.receive(f.reset(1, Why.CANCEL))
    assert one.connection.unsent_bytes == 1
    one.receive(f.window_update(3, 1))
    assert one.connection.unsent_bytes == 0
