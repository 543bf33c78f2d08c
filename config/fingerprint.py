"""Whether a model's files are the ones seen before, without reading them.

Size, modification time and inode of every file: a restored older file counts as changed, which
Triton's rule (newest modification time) misses. Byte code that Python itself writes there does not.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from hashlib import blake2b
from typing import Final, NamedTuple

ENTRIES_MAX: Final = 20_000
"""Files and directories looked at per model; what lies beyond goes unnoticed."""
_IGNORED: Final = frozenset({"__pycache__"})


class Fingerprint(NamedTuple):
    """`is_whole` is False when the model has more than ENTRIES_MAX files."""

    digest: str
    is_whole: bool


def fingerprint(directory: str) -> Fingerprint:
    """A digest over all files below a directory. Links are followed, each directory once; a link
    that leads nowhere counts by its name.

    Raises OSError when a directory cannot be listed.
    """
    digest = blake2b(digest_size=16)
    count = 0
    for entry in _files(directory):
        count += 1
        if count > ENTRIES_MAX:
            break
        digest.update(entry.encode("utf-8", "surrogateescape"))
    return Fingerprint(digest.hexdigest(), count <= ENTRIES_MAX)


def _files(directory: str) -> Iterator[str]:
    """One line per file, in a stable order."""
    seen: set[tuple[int, int]] = set()
    pending = [directory]
    while pending:
        current = pending.pop()
        status = os.stat(current)
        if (status.st_dev, status.st_ino) in seen:
            continue
        seen.add((status.st_dev, status.st_ino))
        yield f"{os.path.relpath(current, directory)}/\n"
        with os.scandir(current) as entries:
            found = sorted(entries, key=lambda entry: entry.name, reverse=True)
        for entry in found:
            if entry.name in _IGNORED:
                continue
            try:
                if entry.is_dir():
                    pending.append(entry.path)
                    continue
                file = entry.stat()
            except OSError:  # a link to nothing or in a circle, or gone since it was listed
                yield f"{entry.name} ?\n"
                continue
            yield f"{entry.name} {file.st_size} {file.st_mtime_ns} {file.st_ino}\n"
