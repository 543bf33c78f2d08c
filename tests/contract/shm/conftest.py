"""A server name of each test's own, and proof that it leaves nothing in /dev/shm."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator

import posix_ipc
import pytest

from naiad.shm.layout import RANDOM_BYTES, segment_name
from naiad.shm.objects import DIRECTORY

_numbers = itertools.count()


def _of(prefix: str) -> list[str]:
    return sorted(f"/{name}" for name in os.listdir(DIRECTORY) if f"/{name}".startswith(prefix))


@pytest.fixture
def server() -> Iterator[str]:
    """A name that no other server has; at the end no segment of it may be left."""
    name = f"t{os.getpid()}-{next(_numbers)}"
    yield name
    left = _of(f"/naiad.{name}.")
    for key in left:
        posix_ipc.unlink_shared_memory(key)
    assert not left


@pytest.fixture
def segments(server: str) -> Callable[[], list[str]]:
    """The keys of this server's segments in /dev/shm now."""
    return lambda: _of(f"/naiad.{server}.")


@pytest.fixture
def key(server: str) -> str:
    """A key of this server that nothing has yet."""
    return segment_name(server, "client", os.getpid(), os.urandom(RANDOM_BYTES))


@pytest.fixture
def foreign_key() -> Iterator[str]:
    """A key that is not naiad's, removed at the end if it is there."""
    name = f"/t{os.getpid()}-{next(_numbers)}"
    yield name
    if os.path.lexists(DIRECTORY + name):
        os.unlink(DIRECTORY + name)
