"""How waiting requests become INFER messages: as few as the limits allow. Pure.

Owns the layout of INLINE payload frames: inputs of at most SMALL_BYTES_MAX share one frame, larger
ones have a frame of their own, which travels by reference. Never looks into a buffer.
"""

from __future__ import annotations

from collections import deque
from typing import Any, Final

from naiad.client.requests import SMALL_BYTES_MAX, Buffer, Prepared
from naiad.protocol import messages as m
from naiad.protocol.codec import encode

_ENVELOPE_BYTES: Final = 16
_make: Final = tuple.__new__


class Request:
    """One request from submit until its answer, and longer while a worker may use its memory.

    Kept, and with it `parts.memory`, until no process uses the request's regions. `token` is
    whoever waits (None: nobody any more). `attempt` is 0 until it was first sent. `ended`: it need
    not be sent (again). `deaths` of brokers are those that it was in flight at.
    """

    __slots__ = ("attempt", "deadline_ns", "deaths", "ended", "id", "parts", "token")

    def __init__(self, ident: int, parts: Prepared, token: Any) -> None:
        self.id = ident
        self.parts = parts
        self.token = token
        self.attempt = 0
        self.ended = False
        self.deadline_ns = 0
        self.deaths = 0

    def __repr__(self) -> str:
        return f"<request {self.id} of {self.parts.head[0]!r}, attempt {self.attempt}>"


def infer_message(waiting: deque[Request], inline_bytes_max: int) -> list[Buffer] | None:
    """Takes from the left of `waiting` as many requests as fit into one INFER message.

    Returns the header and its payload frames, or None when nobody waits any more.
    """
    rows: list[Any] = []
    payload: list[Buffer] = []
    small: list[Any] = []
    small_bytes = 0
    shared = -1
    header_bytes = _ENVELOPE_BYTES
    payload_bytes = 0
    taken = 0
    for request in waiting:
        if request.ended:
            taken += 1
            continue
        parts = request.parts
        header_bytes += parts.header_bytes
        payload_bytes += parts.inline_bytes
        if rows and (
            header_bytes > m.CLIENT_HEADER_BYTES_MAX
            or payload_bytes > inline_bytes_max
            or len(payload) + len(parts.inputs) > m.PAYLOAD_FRAMES_MAX
            or len(rows) == m.REQUESTS_PER_MESSAGE_MAX
        ):
            break
        taken += 1
        request.attempt = attempt = request.attempt + 1
        tensors = []
        for name, datatype, shape, place, region, offset, size, data in parts.inputs:
            if not place:  # INLINE
                if size <= SMALL_BYTES_MAX:
                    if shared < 0:
                        shared = len(payload)
                        payload.append(b"")
                    region, offset = shared, small_bytes
                    small_bytes += size
                    small.append(data)
                else:
                    region, offset = len(payload), 0
                    payload.append(data)  # type: ignore[arg-type]
            tensors.append((name, datatype, shape, place, region, offset, size))
        rows.append((request.id, attempt, *parts.head, tensors, *parts.tail))
    if taken == len(waiting):
        waiting.clear()
    else:
        for _ in range(taken):
            waiting.popleft()
    if not rows:
        return None
    if shared >= 0:
        payload[shared] = small[0] if len(small) == 1 else b"".join(small)
    return [encode(_make(m.Infer, (rows,))), *payload]  # packed like a tuple
