"""One HTTP/2 connection, the server's side: frames in, events and frames out. Pure.

Reads what the client says: the state of streams, header tables, its share of flow control, and
every limit that the protocol leaves to its ends. A `Sink` is told what arrives while `receive`
runs; what is to be sent gathers in `out`, for `take_out` (see Sending). The end of a stream is the
sink's to decide: it answers or resets.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from naiad.gateway.http2 import frames as f
from naiad.gateway.http2.frames import ConnectionFault, Why
from naiad.gateway.http2.hpack import Decoder, Field, HeaderFault, HeadersTooLarge
from naiad.gateway.http2.sending import PARTING, SENT_FRAME_BYTES_MAX, Sending
from naiad.gateway.http2.streams import STREAM_WINDOW_BYTES, Sink, Stream

STREAMS_MAX: Final = 4096
"""Open at once on one connection."""
CONNECTION_WINDOW_BYTES: Final = 64 * 1024 * 1024
DATA_FRAME_BYTES_MAX: Final = 1024 * 1024
"""Of the content of one frame of a body, which is passed on as it arrives; each costs some CPU."""
HEADER_BYTES_MAX: Final = 64 * 1024
"""Of one header block, as it travels and decoded."""
IDLE_FRAMES_MAX: Final = 10_000
"""In a row that carry no request: pings, settings, priorities, empty data."""
SETTINGS_MAX: Final = 100
"""In one frame; there are six kinds of them."""
FRAMES_PER_TURN_MAX: Final = 256
"""Of one connection before others have their turn: tiny ones cost far more than their bytes."""
BLOCK_FRAMES: Final = 4
"""As how many a header block counts, and once more for each BLOCK_PART_BYTES: a call begins."""
BLOCK_PART_BYTES: Final = 512
RESETS_MAX: Final = 2_000
"""In a row, without any stream that ended with an answer."""


class Connection(Sending):
    """`receive` what comes; send what `take_out` gives. `convert`: see hpack.Decoder."""

    def __init__(self, sink: Sink, convert: Callable[[list[Field]], Any]) -> None:
        greeting: list[bytes | memoryview] = [
            f.settings(
                {
                    f.MAX_CONCURRENT_STREAMS: STREAMS_MAX,
                    f.INITIAL_WINDOW_SIZE: STREAM_WINDOW_BYTES,
                    f.MAX_FRAME_SIZE: DATA_FRAME_BYTES_MAX,
                    f.MAX_HEADER_LIST_SIZE: HEADER_BYTES_MAX,
                }
            ),
            f.window_update(0, CONNECTION_WINDOW_BYTES - f.WINDOW_AT_FIRST),
        ]
        super().__init__(sink, greeting)
        self.is_begun = False
        """Whether the client has said that it speaks HTTP/2."""
        self._decoder = Decoder(convert, HEADER_BYTES_MAX)
        self.has_more = False
        """Whether whole frames are left that the next `receive` begins with."""
        self._turn_left = 0
        """In frames."""
        self._buffer = b""
        self._block: bytearray | None = None
        """Of a header block in several frames."""
        self._block_stream = 0
        self._block_flags = 0
        self._rest = 0
        """Of a frame of a body that is passed on as it arrives."""
        self._rest_stream = self._rest_flags = 0
        self._receive_window = CONNECTION_WINDOW_BYTES
        self._untold = 0
        """Of the connection: taken bytes that the client has not been told of."""
        self._idle_frames = 0

    def receive(self, data: bytes) -> None:
        """Bytes from the client; a share of them if they are many frames (see `has_more`).

        Raises ConnectionFault.
        """
        buffer = self._buffer + data if self._buffer else data
        position, end = 0, len(buffer)
        if not self.is_begun:
            if not f.PREFACE.startswith(buffer[: len(f.PREFACE)]):
                raise ConnectionFault(Why.PROTOCOL_ERROR, "this port speaks gRPC (HTTP/2)")
            if end < len(f.PREFACE):
                self._buffer = buffer
                return
            self.is_begun = True
            position = len(f.PREFACE)
        view = memoryview(buffer)
        self._turn_left = FRAMES_PER_TURN_MAX
        while position < end:
            if self._turn_left <= 0:
                break
            self._turn_left -= 1
            if self._rest:
                position += self._body(view[position : position + self._rest])
                continue
            start = position + f.HEAD_BYTES
            if start > end:
                break
            size = int.from_bytes(buffer[position : position + 3], "big")
            kind, flags = buffer[position + 3], buffer[position + 4]
            stream = int.from_bytes(buffer[position + 5 : start], "big") & f.WINDOW_MAX
            is_body = kind == f.DATA and size > 0 and not flags & f.PADDED and self._block is None
            if size > (DATA_FRAME_BYTES_MAX if is_body else HEADER_BYTES_MAX):
                raise ConnectionFault(Why.FRAME_SIZE_ERROR, f"a frame of {size} bytes")
            if is_body:
                self._rest, self._rest_stream, self._rest_flags = size, stream, flags
                position = start
                continue
            if end - start < size:
                break
            position = start + size
            self._frame(kind, flags, stream, view[start:position])
        self._buffer = buffer[position:]
        self.has_more = self._turn_left <= 0 and position < end

    def end_turn(self) -> None:
        """For the sink, inside `receive`: leave the frames that follow to the next one."""
        self._turn_left = 0

    def _body(self, content: memoryview) -> int:
        """Part of a frame of a body; how much of it."""
        size = len(content)
        self._rest -= size
        self._data(0 if self._rest else self._rest_flags, self._rest_stream, content)
        return size

    def _frame(self, kind: int, flags: int, stream: int, content: memoryview) -> None:
        if self._block is not None and (kind != f.CONTINUATION or stream != self._block_stream):
            self._fault("a header block was not finished")
        if kind == f.DATA:
            self._data(flags, stream, content)
        elif kind == f.HEADERS:
            self._headers(flags, stream, content)
        elif kind == f.WINDOW_UPDATE:
            self._window_update(stream, content)
        elif kind == f.RST_STREAM:
            self._reset(stream, content)
        elif kind == f.CONTINUATION:
            self._continuation(flags, content)
        else:
            self._idle_frames += 1
            if self._idle_frames > IDLE_FRAMES_MAX:
                raise ConnectionFault(Why.ENHANCE_YOUR_CALM, "frames without requests")
            if kind == f.SETTINGS:
                self._settings(flags, stream, content)
            elif kind == f.PING:
                self._ping(flags, stream, content)
            elif kind == f.PUSH_PROMISE:
                self._fault("a client cannot push")
            # GOAWAY: the client will close; PRIORITY is obsolete; unknown kinds are extensions.

    def _headers(self, flags: int, stream: int, content: memoryview) -> None:
        content = _unpadded(flags, content)
        if flags & f.HAS_PRIORITY:
            if len(content) < 5:
                self._fault("a priority that is cut off")
            content = content[5:]
        if not stream % 2:
            self._fault(f"a client cannot begin stream {stream}")
        if flags & f.END_HEADERS:
            self._whole_block(flags, stream, bytes(content))
            return
        self._block = bytearray(content)
        self._block_stream, self._block_flags = stream, flags

    def _continuation(self, flags: int, content: memoryview) -> None:
        block = self._block
        if block is None:
            self._fault("a header block goes on that was not begun")
        if not content:
            self._idle_frames += 1
            if self._idle_frames > IDLE_FRAMES_MAX:
                raise ConnectionFault(Why.ENHANCE_YOUR_CALM, "frames without content")
        block += content
        if len(block) > HEADER_BYTES_MAX:
            raise ConnectionFault(Why.ENHANCE_YOUR_CALM, f"headers over {HEADER_BYTES_MAX} bytes")
        if flags & f.END_HEADERS:
            self._block = None
            self._whole_block(self._block_flags, self._block_stream, bytes(block))

    def _whole_block(self, flags: int, stream: int, block: bytes) -> None:
        self._turn_left -= BLOCK_FRAMES + len(block) // BLOCK_PART_BYTES
        try:
            head = self._decoder.decode(block)
        except HeaderFault as fault:
            raise ConnectionFault(Why.COMPRESSION_ERROR, str(fault)) from fault
        except HeadersTooLarge as excess:
            raise ConnectionFault(Why.ENHANCE_YOUR_CALM, str(excess)) from excess
        known = self._streams.get(stream)
        is_ended = bool(flags & f.END_STREAM)
        if known is not None:  # trailers, which a request of gRPC may have but does not need
            if known.is_ended or not is_ended:
                self._fault("headers in the middle of a stream")
            known.is_ended = True
            self._sink.arrived(stream, memoryview(b""), is_ended=True)
            return
        if stream <= self._last:
            return  # it was reset or answered, and the client did not know yet
        self._last = stream
        self._idle_frames = 0
        if self.has_parted or len(self._streams) >= STREAMS_MAX:
            self.out.append(f.reset(stream, Why.REFUSED_STREAM))
            return
        self._streams[stream] = Stream(is_ended=is_ended)
        self._sink.begun(stream, head, is_ended=is_ended)

    def _data(self, flags: int, stream: int, content: memoryview) -> None:
        size = len(content)
        self._receive_window -= size
        if self._receive_window < 0:
            raise ConnectionFault(Why.FLOW_CONTROL_ERROR, "more data than the connection may have")
        self._untold += size
        if self._untold >= CONNECTION_WINDOW_BYTES // 2:
            self.out.append(f.window_update(0, self._untold))
            self._receive_window += self._untold
            self._untold = 0
        known = self._streams.get(stream)
        if known is None:
            if not stream or stream > self._last:
                self._fault(f"data of stream {stream}, which was not begun")
            return  # it was reset or answered meanwhile
        if known.is_ended:
            raise ConnectionFault(Why.STREAM_CLOSED, "data behind the end of a stream")
        known.receive_window -= size
        if known.receive_window < 0:
            raise ConnectionFault(Why.FLOW_CONTROL_ERROR, "more data than the stream may have")
        body = _unpadded(flags, content)
        known.untold += size - len(body)
        known.is_ended = bool(flags & f.END_STREAM)
        if size:
            self._idle_frames = 0
        elif not known.is_ended:
            self._idle_frames += 1
            if self._idle_frames > IDLE_FRAMES_MAX:
                raise ConnectionFault(Why.ENHANCE_YOUR_CALM, "frames without data")
        self._sink.arrived(stream, body, is_ended=known.is_ended)

    def _reset(self, stream: int, content: memoryview) -> None:
        if len(content) != 4:
            raise ConnectionFault(Why.FRAME_SIZE_ERROR, "a reset of another size than 4")
        if not stream or stream > self._last:
            self._fault(f"a reset of stream {stream}, which was not begun")
        self._resets += 1
        if self._resets > RESETS_MAX:
            raise ConnectionFault(Why.ENHANCE_YOUR_CALM, "requests that are only cancelled")
        if self._forget(stream):
            self._sink.was_reset(stream)

    def _settings(self, flags: int, stream: int, content: memoryview) -> None:
        if stream:
            self._fault("settings of a stream")
        if flags & f.ACK:
            return
        if len(content) % 6:
            raise ConnectionFault(Why.FRAME_SIZE_ERROR, "settings that are cut off")
        if len(content) > 6 * SETTINGS_MAX:
            raise ConnectionFault(Why.ENHANCE_YOUR_CALM, f"over {SETTINGS_MAX} settings at once")
        window = None
        for start in range(0, len(content), 6):
            key = int.from_bytes(content[start : start + 2], "big")
            value = int.from_bytes(content[start + 2 : start + 6], "big")
            if key == f.INITIAL_WINDOW_SIZE:
                if value > f.WINDOW_MAX:
                    raise ConnectionFault(Why.FLOW_CONTROL_ERROR, f"a window of {value} bytes")
                window = value  # the last one counts: nothing is sent before it
            elif key == f.MAX_FRAME_SIZE:
                if not f.FRAME_BYTES_MAX <= value < 2**24:
                    self._fault(f"frames of {value} bytes")
                self._frame_bytes_max = min(value, SENT_FRAME_BYTES_MAX)
        if window is not None:
            self._new_window(window)
        self.out.append(f.frame(f.SETTINGS, f.ACK, 0))

    def _ping(self, flags: int, stream: int, content: memoryview) -> None:
        if stream or len(content) != 8:
            raise ConnectionFault(Why.FRAME_SIZE_ERROR, "a ping that is none")
        if not flags & f.ACK:
            self.out.append(f.frame(f.PING, f.ACK, 0, bytes(content)))
        elif self.is_parting and bytes(content) == PARTING:
            self.leave()


def _unpadded(flags: int, content: memoryview) -> memoryview:
    if not flags & f.PADDED:
        return content
    if not content or content[0] >= len(content):
        raise ConnectionFault(Why.PROTOCOL_ERROR, "more padding than there is")
    return content[1 : len(content) - content[0]]
