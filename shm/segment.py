"""POSIX shared memory: the only file that creates, maps and unlinks it. No NumPy.

Owns system calls and what can go wrong in them. A Segment is ours: it is locked (flock LOCK_SH) as
long as we live, and only it may be unlinked. A Mapping is somebody else's: verified, never
unlinked. Memory that a view still uses is unmapped when that view dies, not before.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import sys
import weakref
from collections.abc import Collection
from typing import Final, Self, TypeVar

import posix_ipc

from naiad.protocol.errors import Code, InternalError, RequestError, Unavailable
from naiad.protocol.messages import Region
from naiad.shm.layout import PAGE_BYTES, REGION_BYTES_MAX, checked_key, checked_range
from naiad.shm.mapped_memory import MappedMemory
from naiad.shm.objects import (
    DIRECTORY,
    cannot_open,
    check_expected,
    free_bytes,
    is_same,
    total_bytes,
    truncated,
)

POPULATE_BYTES_MAX: Final = 16 << 20
"""New segments up to this size get their pages at once (1.6 ms per MiB); in larger ones each range
pays for its pages when it is first written."""
Memory = TypeVar("Memory", bound=mmap.mmap)


class SharedMemoryFull(Unavailable):
    """No room for a segment: the caller sends tensors inline instead."""


class Segment:
    """A segment of ours: created, locked and mapped writable. Use `create`."""

    def __init__(self, region: Region, descriptor: int, mapped: mmap.mmap) -> None:
        self.region = region
        self.view = memoryview(mapped)
        self._descriptor = descriptor
        self._mapped: mmap.mmap | None = mapped
        self._pid = os.getpid()
        self._name = weakref.finalize(self, _unlink, region, self._pid)
        """Removes the name: in `close`, or when the segment is dropped, or at the exit."""

    @classmethod
    def create(
        cls,
        key: str,
        size: int,
        *,
        region_id: int = 0,
        mode: int = 0o600,
        populate: bool | None = None,
    ) -> Self:
        """A new segment of `size` bytes, all of them allocated: using it never raises SIGBUS.

        Args:
            key: a name from `layout.segment_name`.
            mode: 0o600, or 0o660 for a server that a group may use.
            populate: take the pages now; None decides by POPULATE_BYTES_MAX.

        Raises:
            SharedMemoryFull: /dev/shm has no room; nothing is left behind.
        """
        assert 0 < size <= REGION_BYTES_MAX
        if populate is None:
            populate = size <= POPULATE_BYTES_MAX
        try:
            made = posix_ipc.SharedMemory(key, posix_ipc.O_CREX, mode=mode, size=0)
        except (OSError, posix_ipc.Error) as fault:
            raise _full(key, size, fault) from fault
        descriptor = made.fd
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
            os.fchmod(descriptor, mode)  # the umask has had its say at creation
            os.posix_fallocate(descriptor, 0, size)
            mapped = _map(descriptor, size, writable=True, populate=populate, kind=mmap.mmap)
            found = os.fstat(descriptor)
        except OSError as fault:
            posix_ipc.unlink_shared_memory(key)
            os.close(descriptor)
            raise _full(key, size, fault) from fault
        region = Region(region_id, key, found.st_dev, found.st_ino, size)
        return cls(region, descriptor, mapped)

    @property
    def size(self) -> int:
        return self.region.size

    def unlink(self) -> bool:
        """Remove the name if it still names this segment; whoever has it mapped keeps it.

        A forked child never does: the segment is its parent's.
        """
        return bool(self._name())

    def close(self) -> bool:
        """Unlink and unmap. False: views are still in use and the last of them unmaps."""
        self.unlink()
        return self.abandon()

    def abandon(self) -> bool:
        """Unlock and unmap, but leave the name: others still need what is in it.

        From then on it is a dead process's segment, which the janitor removes.
        """
        self._name.detach()
        if self._mapped is None:
            return True
        mapped, self._mapped = self._mapped, None
        if os.getpid() == self._pid:  # the lock must not last as long as the last view
            fcntl.flock(self._descriptor, fcntl.LOCK_UN)
        os.close(self._descriptor)
        view, self.view = self.view, memoryview(b"")
        return _unmapped(mapped, view)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Mapping:
    """A segment of another process, mapped after it was found to be what was registered."""

    def __init__(
        self, region: Region, descriptor: int, mapped: MappedMemory, writable: bool
    ) -> None:
        self.region = region
        self.writable = writable
        self._descriptor = descriptor
        self._mapped: MappedMemory | None = mapped
        mapped.told_by(descriptor)
        self._view = memoryview(mapped)
        self._read_only = self._view.toreadonly()

    @classmethod
    def open(
        cls,
        region: Region,
        *,
        writable: bool,
        uids: Collection[int] | None = None,
        foreign: bool = False,
    ) -> Self:
        """Map the region's first `size` bytes.

        Args:
            uids: who may own it; None means this process's own user.
            foreign: refuse names of naiad itself.

        Raises:
            RequestError: not there, not a regular object, another owner or object than was
                registered, or (code region_truncated) smaller than that.
        """
        key = checked_key(region.key, foreign=foreign)
        if not 0 < region.size <= REGION_BYTES_MAX:
            raise RequestError(f"shared memory region {key!r} has no usable size: {region.size}")
        # As shm_open does, and without blocking on a FIFO that lies there instead.
        flags = os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
        flags |= os.O_RDWR if writable else os.O_RDONLY
        try:
            descriptor = os.open(DIRECTORY + key, flags)
        except OSError as fault:
            raise cannot_open(key, fault) from fault
        try:
            check_expected(region, os.fstat(descriptor), (os.geteuid(),) if uids is None else uids)
            mapped = _map(
                descriptor, region.size, writable=writable, populate=False, kind=MappedMemory
            )
        except BaseException as fault:
            os.close(descriptor)
            if isinstance(fault, OSError):
                raise cannot_open(key, fault) from fault
            if isinstance(fault, ValueError):  # it shrank after the check
                raise truncated(region, 0) from fault
            raise
        return cls(region, descriptor, mapped, writable)

    @property
    def is_closed(self) -> bool:
        return self._mapped is None

    def current_size(self) -> int:
        """Bytes the object has now, never more than was registered."""
        return min(os.lseek(self._descriptor, 0, os.SEEK_END), self.region.size)

    def slice(self, offset: int, size: int, *, writable: bool = False) -> memoryview:
        """`size` bytes at `offset`, checked against the registered and the current size.

        The bytes stay mapped as long as the view lives, also after `close`.
        """
        region = self.region
        checked_range(offset, size, region.size, region.key)
        now = os.lseek(self._descriptor, 0, os.SEEK_END)  # a sixth of what fstat costs
        if offset + size > now:
            raise truncated(region, now)
        if not writable:
            return self._read_only[offset : offset + size]
        if not self.writable:
            raise RequestError(
                f"shared memory region '{region.key}' may only be read",
                code=Code.PERMISSION_DENIED,
            )
        return self._view[offset : offset + size]

    def copy(self, offset: int, size: int) -> bytes:
        """A private copy, for what is parsed: its owner cannot change it any more.

        Read by a system call, so that a truncation meanwhile is an error and no SIGBUS.
        """
        checked_range(offset, size, self.region.size, self.region.key)
        found = os.pread(self._descriptor, size, offset)
        if len(found) != size:
            raise truncated(self.region, self.current_size())
        return found

    def close(self) -> bool:
        """Unmap. False: views are still in use and the last of them unmaps."""
        if self._mapped is None:
            return True
        memory = weakref.ref(self._mapped)
        self._mapped.told_by(None)
        os.close(self._descriptor)
        self._mapped = None
        self._view = self._read_only = memoryview(b"")
        return memory() is None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _unlink(region: Region, pid: int) -> bool:
    """Whether the name was ours to remove, and is removed."""
    if os.getpid() != pid or not is_same(region):
        return False
    try:
        posix_ipc.unlink_shared_memory(region.key)
    except posix_ipc.ExistentialError:
        return False
    return True


def _map(
    descriptor: int, size: int, *, writable: bool, populate: bool, kind: type[Memory]
) -> Memory:
    flags = mmap.MAP_SHARED | (mmap.MAP_POPULATE if populate else 0)
    protection = mmap.PROT_READ | (mmap.PROT_WRITE if writable else 0)
    if sys.version_info >= (3, 13):
        return kind(descriptor, size, flags=flags, prot=protection, trackfd=False)
    return kind(descriptor, size, flags=flags, prot=protection)


def _unmapped(mapped: mmap.mmap, view: memoryview) -> bool:
    """Whether it could be unmapped now; else it is when the last view of it is gone."""
    try:
        view.release()
        mapped.close()
    except BufferError:
        return False
    return True


def _full(key: str, size: int, fault: BaseException) -> SharedMemoryFull | InternalError:
    if isinstance(fault, posix_ipc.ExistentialError):
        return InternalError(f"segment {key} exists already; names of segments must be unique")
    pages = -(-size // PAGE_BYTES) * PAGE_BYTES
    return SharedMemoryFull(
        f"no shared memory for {pages} bytes: {DIRECTORY} has {free_bytes()} of {total_bytes()} "
        f"bytes free ({fault}); enlarge it (docker run --shm-size, or --ipc=host)"
    )
