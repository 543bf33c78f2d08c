"""Several messages to one peer in one: a series of short executions, or the results of some. Pure.

The header says how many payload frames each has; the payload is, for each, its header and these.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

from naiad.protocol.codec import encode
from naiad.protocol.errors import ProtocolError
from naiad.protocol.messages import Bundle

BUNDLE_MESSAGES_MAX: Final = 64


def bundled(messages: Sequence[tuple[bytes, Iterable[Any]]]) -> tuple[bytes, list[Any]]:
    """Header and payload frames of a BUNDLE of messages, or of the only one as it is."""
    if len(messages) == 1:
        header, frames = messages[0]
        return header, list(frames)
    counts = []
    payload: list[Any] = []
    for header, frames in messages:
        before = len(payload)
        payload.append(header)
        payload.extend(frames)
        counts.append(len(payload) - before - 1)
    return encode(Bundle(tuple(counts))), payload


def unbundled(bundle: Bundle, payload: Sequence[Any]) -> list[tuple[Any, list[Any]]]:
    """Header and payload frames of each message. Raises ProtocolError when they do not add up."""
    counts = bundle.counts
    if len(counts) > BUNDLE_MESSAGES_MAX:
        raise ProtocolError(
            f"BUNDLE: expected at most {BUNDLE_MESSAGES_MAX} messages, got {len(counts)}"
        )
    if sum(counts) + len(counts) != len(payload):
        raise ProtocolError(
            f"BUNDLE: expected {sum(counts) + len(counts)} payload frames, got {len(payload)}"
        )
    messages = []
    at = 0
    for count in counts:
        messages.append((payload[at], list(payload[at + 1 : at + 1 + count])))
        at += 1 + count
    return messages
