"""What the broker tells as JSON, which may be thousands of values: how much it is, and its text.

Written a few milliseconds at a time, so that others are served between. Pure.
"""

from __future__ import annotations

import json
from collections.abc import Generator, Iterable, Iterator
from typing import Any, Final

VALUES_PER_STEP: Final = 1024
"""Written as text at once: 1 ms."""


def value_count(value: Any, most: int) -> int:
    """How many values are in one, itself included; not counted much further than to `most`."""
    if isinstance(value, dict):
        value = value.values()
    elif not isinstance(value, list | tuple):
        return 1
    found = 1
    for one in value:
        if found >= most:
            break
        found += value_count(one, most - found)
    return found


def runs(items: Iterable[Any], most: int) -> Iterator[tuple[list[Any], bool]]:
    """The items a few at a time, of less than `most` values together; or one that has more, and
    that it has."""
    some: list[Any] = []
    count = 0
    for one in items:
        size = value_count(one, most)
        if some and count + size >= most:
            yield some, False
            some, count = [], 0
        if size >= most:
            yield [one], True
        else:
            some.append(one)
            count += size
    if some:
        yield some, False


def document_text(document: Any) -> Generator[None, None, bytes]:
    """The JSON text of a document."""
    found: list[bytes] = []
    yield from _written(document, found)
    return b"".join(found)


def _written(value: Any, found: list[bytes]) -> Generator[None, None, None]:
    if value_count(value, VALUES_PER_STEP) < VALUES_PER_STEP:
        found.append(_dumped(value))
        yield
        return
    is_object = isinstance(value, dict)
    separator = b"{" if is_object else b"["
    for some, is_long in runs(value.items() if is_object else value, VALUES_PER_STEP):
        found.append(separator)
        separator = b","
        if not is_long:
            found.append(_dumped(dict(some) if is_object else some)[1:-1])
            yield
        elif is_object:
            ((key, one),) = some
            found.append(_dumped(key) + b":")
            yield from _written(one, found)
        else:
            yield from _written(some[0], found)
    found.append(b"}" if is_object else b"]")


def _dumped(value: Any) -> bytes:
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return text.encode("utf-8", "backslashreplace")
