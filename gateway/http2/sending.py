"""The way out of an HTTP/2 connection: answers into frames, as far as the client takes them. Pure.

Owns what is to be sent and both windows that the client gives. What it may not take yet waits with
its stream; what the socket does not take, too.
"""

from __future__ import annotations

from collections import deque
from typing import Final, NoReturn

from naiad.gateway.http2 import frames as f
from naiad.gateway.http2.frames import ConnectionFault, Why
from naiad.gateway.http2.streams import STREAM_WINDOW_BYTES, Sink, Stream

SENT_FRAME_BYTES_MAX: Final = 256 * 1024
"""Of a frame that is sent, if the client takes so much: others wait behind it."""
PARTING: Final = b"goodbye\0"
"""What a ping carries whose answer says that the client has read the goodbye before it."""
OUT_BYTES_MAX: Final = 1024 * 1024
"""Of bodies that are put into `out` before it is taken."""


class Sending:
    """Half of a Connection, which reads what the client says; one object, because every frame
    that comes changes what may go."""

    def __init__(self, sink: Sink, greeting: list[bytes | memoryview]) -> None:
        self.out = greeting
        self.is_paused = False
        """By the socket: no data is put into `out`."""
        self._sink = sink
        self._streams: dict[int, Stream] = {}
        self._last = 0
        """The highest stream that the client began."""
        self.is_parting = False
        """The client was told to begin no further streams, and asked whether it knows."""
        self.has_parted = False
        """It knows: what it began before was taken, and nothing comes after."""
        self._resets = 0
        """By the client, in a row, without any stream that ended with an answer."""
        self.unsent_bytes = 0
        """Of all bodies that wait for the client's windows or the socket."""
        self._out_bytes = 0
        """Of bodies in `out`."""
        self._send_window = f.WINDOW_AT_FIRST
        self._their_window = f.WINDOW_AT_FIRST
        self._frame_bytes_max = f.FRAME_BYTES_MAX
        """Of what the client takes."""
        self._waiting: dict[int, None] = {}
        """Streams with something unsent that the socket or the connection's window holds up."""
        self._starved: dict[int, None] = {}
        """Those that their own window holds up."""

    @property
    def open_count(self) -> int:
        """Streams that are not over."""
        return len(self._streams)

    def take_out(self) -> list[bytes | memoryview]:
        """What is to be sent now. If it was not held up by the socket, ask again."""
        out, self.out = self.out, []
        self._out_bytes = 0
        if self._waiting:
            self.pump()
        return out

    @property
    def _is_held_up(self) -> bool:
        return self.is_paused or self._out_bytes >= OUT_BYTES_MAX

    def taken(self, stream: int, size: int) -> None:
        """So many bytes of a stream's body are out of the way: the client may send more."""
        known = self._streams.get(stream)
        if known is None or known.is_ended:
            return
        known.untold += size
        if known.untold >= STREAM_WINDOW_BYTES // 2:
            self.out.append(f.window_update(stream, known.untold))
            known.receive_window += known.untold
            known.untold = 0

    def send_head(self, stream: int, block: bytes) -> None:
        """The head of an answer."""
        if stream in self._streams:
            self.out.append(f.frame(f.HEADERS, f.END_HEADERS, stream, block))

    def send(self, stream: int, *parts: bytes | memoryview) -> int:
        """Part of a body, as far as the client takes it; the rest waits. How much waits now."""
        known = self._streams.get(stream)
        if known is None:
            return 0
        size = sum(map(len, parts))
        if (
            not known.unsent_bytes
            and size <= self._frame_bytes_max
            and size <= known.send_credit + self._their_window
            and size <= self._send_window
            and not self._is_held_up
        ):
            known.send_credit -= size
            self._send_window -= size
            self._out_bytes += size
            self.out += (_head(size, f.DATA, 0, stream), *parts)
            return 0
        if known.unsent is None:
            known.unsent = deque()
        known.unsent.extend(memoryview(part) for part in parts if part)
        known.unsent_bytes += size
        self.unsent_bytes += size
        self._pump(stream, known)
        return known.unsent_bytes

    def send_end(self, stream: int, block: bytes) -> None:
        """The trailers, behind all that was sent: the stream is over. (Or a head that is all.)"""
        known = self._streams.get(stream)
        if known is None:
            return
        if known.unsent_bytes:
            known.end = block
            return
        self._end(stream, known, block)

    def reset(self, stream: int, why: Why) -> None:
        """The stream is over without an answer."""
        if self._forget(stream):
            self.out.append(f.reset(stream, why))

    def announce(self) -> None:
        """Ask for no further streams; those that the client begins before it knows are taken."""
        if not self.is_parting:
            self.out.append(f.goaway(f.STREAM_MAX, Why.NO_ERROR))

    def part(self) -> None:
        """Announce the end, and have it said when the client knows; then see `has_parted`."""
        if not self.is_parting:
            self.announce()
            self.is_parting = True
            self.out.append(f.frame(f.PING, 0, 0, PARTING))

    def leave(self) -> None:
        """No further streams; those that are open go on."""
        if not self.has_parted:
            self.has_parted = True
            self.out.append(f.goaway(self._last, Why.NO_ERROR))

    def goodbye(self, fault: ConnectionFault) -> None:
        """The last frame of a connection that is closed now."""
        self.out.append(f.goaway(self._last, fault.why, str(fault).encode()[:200]))

    def ping(self) -> None:
        """Ask whether the client is there."""
        self.out.append(f.frame(f.PING, 0, 0, bytes(8)))

    def pump(self) -> None:
        """Send what waited for the socket or for the connection's window."""
        while self._waiting and not self._is_held_up and self._send_window > 0:
            number = next(iter(self._waiting))
            del self._waiting[number]
            self._pump(number, self._streams[number])

    def _pump(self, number: int, stream: Stream) -> None:
        unsent = stream.unsent
        if not stream.unsent_bytes or unsent is None:
            return
        while stream.unsent_bytes:
            window = stream.send_credit + self._their_window
            room = min(window, self._send_window, self._frame_bytes_max)
            if room <= 0 or self._is_held_up:
                self._waiting.pop(number, None)
                (self._waiting if window > 0 else self._starved)[number] = None
                return
            size = min(room, stream.unsent_bytes)
            self.out.append(_head(size, f.DATA, 0, number))
            self._take(stream, unsent, size)
        if stream.end is not None:
            self._end(number, stream, stream.end)
        self._sink.drained(number)

    def _take(self, stream: Stream, unsent: deque[memoryview], size: int) -> None:
        """Move so many bytes from the stream to `out`."""
        stream.send_credit -= size
        self._send_window -= size
        self._out_bytes += size
        stream.unsent_bytes -= size
        self.unsent_bytes -= size
        while size:
            part = unsent.popleft()
            if len(part) > size:
                unsent.appendleft(part[size:])
                part = part[:size]
            self.out.append(part)
            size -= len(part)

    def _end(self, number: int, stream: Stream, block: bytes) -> None:
        self.out.append(f.frame(f.HEADERS, f.END_HEADERS | f.END_STREAM, number, block))
        if not stream.is_ended:
            # RFC 9113, 8.1: the answer is complete, and the rest of the request not wanted.
            self.out.append(f.reset(number, Why.NO_ERROR))
        self._forget(number)
        self._resets = 0

    def _forget(self, number: int) -> bool:
        """Whether there was such a stream."""
        self._waiting.pop(number, None)
        self._starved.pop(number, None)
        stream = self._streams.pop(number, None)
        if stream is None:
            return False
        self.unsent_bytes -= stream.unsent_bytes
        return True

    # --- what the client takes -------------------------------------------------------------------

    def _new_window(self, size: int) -> None:
        """Of every stream. Looks at those alone that waited for it: a client may say another size
        as often as it likes."""
        is_larger = size > self._their_window
        self._their_window = size
        if is_larger:
            starved, self._starved = self._starved, {}
            for number in starved:
                self._pump(number, self._streams[number])

    def _window_update(self, stream: int, content: memoryview) -> None:
        if len(content) != 4:
            raise ConnectionFault(Why.FRAME_SIZE_ERROR, "a window update of another size than 4")
        size = int.from_bytes(content, "big") & f.WINDOW_MAX
        if not size:
            self._fault("a window update of nothing")
        if not stream:
            self._send_window += size
            if self._send_window > f.WINDOW_MAX:
                raise ConnectionFault(Why.FLOW_CONTROL_ERROR, "a window that is too large")
            self.pump()
            return
        if stream > self._last:
            self._fault(f"a window of stream {stream}, which was not begun")
        known = self._streams.get(stream)
        if known is not None:
            known.send_credit += size
            if known.send_credit + self._their_window > f.WINDOW_MAX:
                raise ConnectionFault(Why.FLOW_CONTROL_ERROR, "a window that is too large")
            self._starved.pop(stream, None)
            self._pump(stream, known)

    def _fault(self, text: str) -> NoReturn:
        raise ConnectionFault(Why.PROTOCOL_ERROR, text)


def _head(size: int, kind: int, flags: int, stream: int) -> bytes:
    return (size << 48 | kind << 40 | flags << 32 | stream).to_bytes(f.HEAD_BYTES, "big")
