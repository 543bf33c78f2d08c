"""Names and arithmetic of shared memory: alignment, ranges, segment names. No system call.

Owns what a name of ours looks like (`/naiad.<server>.<role>.<pid>.<random>`) and the checks that
decide whether a range lies inside a region and over another one. Never touches memory.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final, NamedTuple

from naiad.protocol.errors import Code, RequestError
from naiad.protocol.messages import OutputRequest, Place, Tensor

ALIGNMENT_BYTES: Final = 64
"""A cache line: no two ranges share one, and every SIMD load is aligned."""
PAGE_BYTES: Final = 4096

PREFIX: Final = "/naiad."
WORKER_ROLE: Final = "worker"
"""Who a worker's output arenas belong to; clients and gateways choose other roles."""
SERVER_CHARS_MAX: Final = 48
RANDOM_BYTES: Final = 8
KEY_CHARS_MAX: Final = 255
"""A leading slash and a file name of /dev/shm; Linux allows 255 bytes for the name alone."""
REGION_BYTES_MAX: Final = 1 << 46
"""Larger than any machine's memory, small enough that no sum of two sizes leaves 64 bits."""

_NAME: Final = re.compile(
    r"/naiad\.([A-Za-z0-9_-]{1,48})\.([a-z0-9_-]{1,16})\.([1-9][0-9]{0,9})\.([0-9a-f]{16})",
    re.ASCII,
)
_NOT_ALLOWED: Final = re.compile(r"[^A-Za-z0-9_-]", re.ASCII)
_ROLE: Final = re.compile(r"[a-z0-9_-]{1,16}", re.ASCII)


class SegmentName(NamedTuple):
    """The parts of a segment's name. `pid` is for people: a container says 1."""

    server: str
    role: str
    pid: int
    random: str


def sanitised_server(server: str) -> str:
    """A server's name as it appears in segment names: what is not allowed becomes `_`."""
    return _NOT_ALLOWED.sub("_", server)[:SERVER_CHARS_MAX] or "_"


def segment_name(server: str, role: str, pid: int, random: bytes) -> str:
    """The key of a new segment; `random` are RANDOM_BYTES bytes that make it unique."""
    assert _ROLE.fullmatch(role), role
    assert len(random) == RANDOM_BYTES
    assert 0 < pid < 10**10
    return f"{PREFIX}{sanitised_server(server)}.{role}.{pid}.{random.hex()}"


def parse_segment_name(key: str) -> SegmentName | None:
    """The parts of a name that `segment_name` could have built, else None."""
    match = _NAME.fullmatch(key)
    if match is None:
        return None
    return SegmentName(match[1], match[2], int(match[3]), match[4])


def checked_key(key: str, *, foreign: bool) -> str:
    """The key with exactly one leading slash, as shm_open wants it.

    Args:
        key: what a peer or a user named.
        foreign: the segment is said to be somebody else's; then names of ours are refused, as they
            would open one client's arena to another.

    Raises:
        RequestError: the key names no POSIX shared memory object, or one of ours.
    """
    name = key.lstrip("/")
    if not name or name in (".", ".."):
        raise RequestError(
            f"shared memory key {key[:80]!r} names nothing; expected '/' and a file name"
        )
    if "/" in name or "\0" in name:
        raise RequestError(
            f"shared memory key {key[:80]!r} must not contain '/' after its beginning, nor NUL"
        )
    try:
        length = len(name.encode())
    except UnicodeEncodeError:
        raise RequestError(f"shared memory key {key[:80]!r} is not valid UTF-8") from None
    if length > KEY_CHARS_MAX:
        raise RequestError(f"shared memory key of {length} bytes, expected at most {KEY_CHARS_MAX}")
    if foreign and f"/{name}".startswith(PREFIX):
        raise RequestError(
            f"shared memory key '/{name[:80]}' begins with {PREFIX!r}, which is reserved for "
            "the arenas of naiad itself; create the region under another name",
            code=Code.PERMISSION_DENIED,
        )
    return f"/{name}"


def checked_range(offset: int, size: int, limit: int, region: str | int = "") -> None:
    """Refuse `size` bytes at `offset` of a region of `limit` bytes unless they lie inside it.

    Python's integers do not overflow, but what is checked here becomes a pointer elsewhere, so
    everything is also held below REGION_BYTES_MAX.

    Raises:
        RequestError: with Triton's text, then the numbers.
    """
    if not 0 <= offset < limit or offset >= REGION_BYTES_MAX:
        raise RequestError(
            f"Invalid offset for shared memory region: '{region}': offset {offset}, "
            f"the region has {limit} bytes"
        )
    if not 0 <= size <= limit - offset or size >= REGION_BYTES_MAX:
        raise RequestError(
            f"Invalid offset + byte size for shared memory region: '{region}': {size} bytes at "
            f"offset {offset}, the region has {limit} bytes"
        )


def is_written_over(inputs: Iterable[Tensor], outputs: Iterable[OutputRequest]) -> bool:
    """Whether a request's outputs go where some of its inputs lie: it can be run only once."""
    return any(
        wanted.place == given.place == Place.REGION
        and wanted.region == given.region
        and wanted.offset < given.offset + given.size
        and given.offset < wanted.offset + wanted.size
        for wanted in outputs
        for given in inputs
    )


def aligned_up(value: int, alignment: int = ALIGNMENT_BYTES) -> int:
    """The smallest multiple of `alignment` (a power of two) that is at least `value`."""
    return (value + alignment - 1) & -alignment


def power_of_two_up(value: int) -> int:
    """The smallest power of two that is at least `value` (1 for 0)."""
    return 1 << (value - 1).bit_length() if value > 1 else 1
