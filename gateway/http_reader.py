"""Bytes of one connection to whole HTTP requests, within limits. No socket, no clock.

Owns the parser (httptools) and what has been received of the next request. The body of a large
request is received right where it is used, past the parser. After an error nothing more of the
connection can be read. Long, because the parser wants one object for all its calls.

A head that was parsed once is recognised by its bytes (see http_known_heads), and the parser is
spared. An offer to speak another protocol (Upgrade) is ignored, which the parser cannot do.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from functools import wraps
from typing import Any, Final, TypeVarTuple, Unpack

import httptools

from naiad.client.requests import Buffer
from naiad.gateway.calls import BodyPlace
from naiad.gateway.http_framing import check_framing
from naiad.gateway.http_known_heads import HEAD_KNOWN_BYTES_MAX, KnownHeads
from naiad.gateway.http_message import Head, HttpRequest
from naiad.gateway.http_status import HttpError
from naiad.gateway.limits import READ_BYTES, Limits
from naiad.gateway.memory import memory_for

DIRECT_BYTES_MIN: Final = 64 * 1024
"""Bodies of a known size from here on are read past the parser."""
SLICE_BYTES: Final = 4096
"""Given to the parser at once, as long as the size of what comes is not known."""
PIECES_PER_TURN_MAX: Final = 500
"""Of a body that are taken at once, with what is left of a slice: a read has room for 20,000 chunks
of a byte."""

_HEAD_END: Final = b"\r\n\r\n"
_FRAMING: Final = (b"content-length", b"transfer-encoding")
"""Headers that say where a body ends."""


class Stage(Enum):
    """Where in a request the next byte belongs."""

    IDLE = 0
    HEAD = 1
    BODY = 2
    DIRECT = 3
    """A large body, read past the parser."""


_Given = TypeVarTuple("_Given")


def _kept(
    callback: Callable[[Reader, Unpack[_Given]], None],
) -> Callable[[Reader, Unpack[_Given]], None]:
    """Keep what it raises. The parser tells of it by an error of its own whose context may be any
    exception that the event loop, or what started it, is handling at that moment."""

    @wraps(callback)
    def keeping(reader: Reader, *given: *_Given) -> None:
        try:
            callback(reader, *given)
        except BaseException as fault:
            reader._fault = fault
            raise

    return keeping


class Reader:
    """`buffer` says where to read to, `feed` what was read; whole requests go to `arrived`.

    Args:
        shared: used by all connections; what lies in it is used up by `feed`.
        known: likewise.
        take: counts bytes of a body in the budget, or raises NaiadError.
        place: finds memory where a large body is used; None: any will do.
        arrived: called with each whole request and the bytes taken for it.
    """

    __deletable__: Final = ("_arrived", "_parser")
    """Where this is compiled, only these attributes can be deleted."""

    def __init__(
        self,
        limits: Limits,
        shared: bytearray,
        known: KnownHeads,
        *,
        take: Callable[[int], None],
        place: Callable[[Head], BodyPlace | None],
        arrived: Callable[[HttpRequest, int], None],
    ) -> None:
        self.stage = Stage.IDLE
        self.received = 0
        """Bytes of the body so far, which count in the budget."""
        self.expects_continue = False
        """The client waits for a word before it sends the body."""
        self._limits = limits
        self._bytes = shared
        self._shared = memoryview(shared)
        self._known = known
        self._candidate: bytes | None = None
        """What may be the bytes of the next head, if the parser agrees."""
        self._take_budget = take
        self._find_place = place
        self._arrived = arrived
        self._parser = httptools.HttpRequestParser(self)
        self._url = b""
        self._headers: dict[bytes, bytes] = {}
        self._names: dict[bytes, bytes] = {}
        self._repeated: set[bytes] = set()
        self._head_bytes = 0
        self._head_read_bytes = 0
        self._fields_count = 0
        self._head = Head("", b"", {}, True)
        self._declared: int | None = None
        self._body: Buffer = b""
        self._place: BodyPlace | None = None
        self._target: memoryview | None = None
        """The body's memory when its size is known and it comes in several pieces."""
        self._pieces = 0
        self.rest = b""
        """What was read and is left for another turn; see `go_on`."""
        self._is_repeating = False
        """The parser takes, or is to take, a head for the second time; see `_ignore_upgrade`."""
        self._fault: BaseException | None = None
        """What was raised in one of the parser's calls."""

    def buffer(self) -> memoryview:
        """Where the next bytes are to be written."""
        if self.stage is Stage.DIRECT:
            assert self._target is not None
            return self._target[self.received :]
        return self._shared

    def feed(self, size: int) -> None:
        """`size` bytes are in the buffer.

        Raises HttpError or NaiadError: refuse, and read no more.
        """
        if self.stage is Stage.DIRECT:
            self._take(size)
            if self.received == self._declared:
                self._parser = httptools.HttpRequestParser(self)
                self._body = self._target or b""
                self.on_message_complete()
            return
        start = 0
        if self.stage is Stage.IDLE:
            start = self._recognised(size)
            if start == size:
                return
            self.stage = Stage.HEAD
        self._parse(self._shared[start:size])

    def go_on(self) -> None:
        """With the rest. Raises as `feed` does."""
        rest, self.rest = self.rest, b""
        self._parse(memoryview(rest))

    def _parse(self, data: memoryview) -> None:
        size, position, pieces = len(data), 0, self._pieces
        try:
            while position < size:
                stop = size
                if self.stage is not Stage.BODY or self._declared is None:
                    stop = min(size, position + SLICE_BYTES)
                position += self._fed(data[position:stop])
                if self._pieces - pieces > PIECES_PER_TURN_MAX:
                    self.rest = bytes(data[position:])
                    break
        except httptools.HttpParserCallbackError as wrapper:
            kept, self._fault = self._fault, None
            raise (kept or wrapper) from None
        except httptools.HttpParserError as fault:
            raise HttpError(400, f"not HTTP: {fault}") from None
        if self.stage is Stage.HEAD:
            self._head_read_bytes += size
            if self._head_read_bytes > self._limits.header_bytes_max + READ_BYTES:
                raise self._head_too_large()
        elif self.stage is Stage.BODY and self._is_large():
            self._large_target()
            self.stage = Stage.DIRECT

    def _fed(self, data: memoryview) -> int:
        """How many of these bytes the parser has taken: all, but behind an upgrade."""
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            taken: int = upgrade.args[0]
            self._ignore_upgrade()
            return taken
        return len(data)

    def _ignore_upgrade(self) -> None:
        """The parser takes all behind a head with Upgrade for another protocol. So another parser
        is given a head that is framed as that one, without it."""
        lines = [b"POST / HTTP/1.1"]
        if not self._head.keeps_alive:
            lines.append(b"Connection: close")
        for name in _FRAMING:
            if name in self._head.headers:
                lines.append(name + b": " + self._head.headers[name])
        self._parser = httptools.HttpRequestParser(self)
        self._parser.feed_data(b"\r\n".join(lines) + _HEAD_END)

    def _recognised(self, size: int) -> int:
        """Take the whole requests at the front whose heads are known; where the rest begins."""
        known = self._known.by_text
        start = 0
        self._candidate = None
        while start < size:
            limit = min(size, start + HEAD_KNOWN_BYTES_MAX)
            end = self._bytes.find(_HEAD_END, start, limit) + len(_HEAD_END)
            if end < len(_HEAD_END):
                break
            text = bytes(self._shared[start:end])
            head = known.get(text)
            if head is None:
                self._candidate = text
                break
            length = head.length
            stop = end + length
            if stop > size:
                break
            if length:
                self._take(length)
                self.received = 0
            self._arrived(HttpRequest(head, bytes(self._shared[end:stop])), length)
            start = stop
        return start

    def drop(self) -> int:
        """Forget what came of an unfinished body; how many bytes that were."""
        self.rest = b""
        size, self.received = self.received, 0
        self._forget_body()
        return size

    def end(self) -> None:
        """Nothing comes any more: let go of what holds on to this, and to whom requests went. The
        garbage collector would find it late, and thousands of connections may end together."""
        self._forget_body()
        del self._parser, self._arrived

    def _forget_body(self) -> None:
        self._body = b""
        self._target = None
        self._place = None

    def _large_target(self) -> memoryview:
        if self._target is None:
            self._place = self._find_place(self._head)
            if self._place is not None:
                self._target = self._place.view
            else:
                self._target = memory_for(self._head.length)
        return self._target

    # --- what the parser calls -------------------------------------------------------------------

    def on_message_begin(self) -> None:
        if self._is_repeating:
            return
        self._url = b""
        self._headers = {}
        self._names = {}
        self._repeated = set()
        self._head_bytes = 0
        self._head_read_bytes = 0
        self._fields_count = 0
        self._declared = None
        self._pieces = 0
        self.stage = Stage.HEAD

    @_kept
    def on_url(self, url: bytes) -> None:
        if self._is_repeating:
            return
        self._url += url
        self._count(len(url))

    @_kept
    def on_header(self, name: bytes, value: bytes) -> None:
        if self._is_repeating:
            return
        self._count(len(name) + len(value))
        self._fields_count += 1
        if self._fields_count > self._limits.header_count_max:
            raise self._head_too_large()
        if self.stage is not Stage.HEAD:
            return  # a trailer
        key = name.lower()
        headers = self._headers
        if key in headers:
            value = headers[key] + b", " + value
            self._repeated.add(key)
        else:
            self._names[key] = name
        headers[key] = value

    def _count(self, size: int) -> None:
        self._head_bytes += size
        if self._head_bytes > self._limits.header_bytes_max:
            raise self._head_too_large()

    def _head_too_large(self) -> HttpError:
        limits = self._limits
        return HttpError(
            431,
            f"the header is too large: expected at most {limits.header_bytes_max} bytes and"
            f" {limits.header_count_max} fields",
        )

    @_kept
    def on_headers_complete(self) -> None:
        if self._is_repeating:
            self._is_repeating = False
            return
        parser = self._parser
        headers = self._headers
        method = parser.get_method().decode("latin-1")
        version = parser.get_http_version()
        self.stage = Stage.BODY
        if method == "CONNECT":
            raise HttpError(405, "CONNECT: this is no proxy", headers=(("Allow", "GET, POST"),))
        check_framing(version, headers)
        length = headers.get(b"content-length")
        if length is not None:
            self._declared = int(length)
            if self._declared > self._limits.body_bytes_max:
                raise self._body_too_large()
        expected = headers.get(b"expect")
        if expected is not None and version != "1.0":
            if expected.lower() != b"100-continue":
                raise HttpError(417, "Expect: only 100-continue is understood")
            self.expects_continue = True
        keeps_alive = parser.should_keep_alive()
        self._head = Head(
            method,
            path_of(self._url),
            headers,
            keeps_alive,
            self._declared or 0,
            says_alive=keeps_alive and version == "1.0",
            repeated=frozenset(self._repeated),
            names=self._names,
        )
        candidate, self._candidate = self._candidate, None
        if candidate is not None:
            self._known.learn(candidate, self._head, self._fields_count)
        self._is_repeating = parser.should_upgrade()

    @_kept
    def on_chunk_header(self) -> None:
        self._pieces += 1
        if self._pieces > self._limits.pieces_max:
            text = f"the body arrives in more than {self._limits.pieces_max} pieces"
            raise HttpError(400, f"{text}; use larger chunks, or a Content-Length")

    @_kept
    def on_body(self, piece: bytes) -> None:
        size = len(piece)
        start = self.received
        self._take(size)
        if size == self._declared:
            self._body = piece
        elif self._is_large():
            self._body = target = self._large_target()
            target[start : start + size] = piece
        elif isinstance(self._body, bytearray):
            self._body += piece
        else:
            self._body = bytearray(piece)

    @_kept
    def on_message_complete(self) -> None:
        if self._is_repeating:  # the parser believes that there is no body
            return
        request = HttpRequest(self._head, self._body, self._place)
        held, self.received = self.received, 0
        self._forget_body()
        self.expects_continue = False
        self.stage = Stage.IDLE
        self._arrived(request, held)

    def _is_large(self) -> bool:
        return self._declared is not None and self._declared >= DIRECT_BYTES_MIN

    def _take(self, size: int) -> None:
        if self.received + size > self._limits.body_bytes_max:
            raise self._body_too_large()
        self._take_budget(size)
        self.received += size

    def _body_too_large(self) -> HttpError:
        limit = self._limits.body_bytes_max
        return HttpError(413, f"the body is too large: expected at most {limit} bytes")


def path_of(url: bytes) -> bytes:
    """The path of a request's target, without query and fragment."""
    if not url.startswith(b"/"):
        try:
            parsed: Any = httptools.parse_url(url)
        except httptools.HttpParserInvalidURLError:
            return b""
        url = parsed.path or b""
    return url.partition(b"?")[0].partition(b"#")[0]
