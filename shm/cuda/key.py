"""How a region of GPU memory is named in a Region: its IPC handles in the key. Pure.

`Region.key` is `cuda:<memory handle>:<event handle>:<name>`: 64 bytes each in hexadecimal, the
event's may be missing, and the name is all that people are shown. A handle lets whoever has it read
and write the memory, so that no error and no log holds one. `device` is the number of the GPU,
`inode` 0.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from naiad.protocol.errors import RequestError
from naiad.protocol.messages import Region
from naiad.shm.layout import REGION_BYTES_MAX

HANDLE_BYTES: Final = 64
"""Of cudaIpcMemHandle_t and of cudaIpcEventHandle_t."""
NAME_CHARS_MAX: Final = 200
"""Of the name in a key; a longer one is cut, as it is only shown."""
DEVICES_MAX: Final = 1024
PREFIX: Final = "cuda:"


class CudaKey(NamedTuple):
    """What a key says. `event` is empty where the memory's owner gave none."""

    memory: bytes
    event: bytes
    name: str


def cuda_region(
    memory: bytes, size: int, device: int, name: str, *, event: bytes = b"", region_id: int = 0
) -> Region:
    """The region of these handles. Raises RequestError, as `checked` does."""
    key = f"{PREFIX}{memory.hex()}:{event.hex()}:{name[:NAME_CHARS_MAX]}"
    return checked(Region(region_id, key, device, 0, size))


def is_cuda(region: Region) -> bool:
    """Whether this is GPU memory; a segment's key begins with a slash."""
    return region.key.startswith(PREFIX)


def parsed(key: str) -> CudaKey:
    """The parts of a key. Raises RequestError for what is none."""
    memory, _, rest = key.removeprefix(PREFIX).partition(":")
    event, separator, name = rest.partition(":")
    if not (key.startswith(PREFIX) and separator):
        raise RequestError("expected a CUDA region's key as cuda:<handle>:<event handle>:<name>")
    has_event = _handle(event, "event", name) if event else b""
    return CudaKey(_handle(memory, "memory", name), has_event, name)


def _handle(digits: str, what: str, name: str) -> bytes:
    try:
        found = bytes.fromhex(digits)
    except ValueError:
        found = b""
    if len(found) != HANDLE_BYTES or len(digits) != 2 * HANDLE_BYTES:
        raise RequestError(
            f"CUDA shared memory region '{name:.{NAME_CHARS_MAX}}': expected the {what} handle as"
            f" {HANDLE_BYTES} bytes in hexadecimal, got {len(digits)} characters"
        )
    return found


def checked(region: Region) -> Region:
    """The region, if it could be one of GPU memory. Whether it is, only a GPU's process can tell.

    Raises RequestError.
    """
    name = parsed(region.key).name
    if not 0 < region.size < REGION_BYTES_MAX or region.inode or region.device >= DEVICES_MAX:
        raise RequestError(
            f"CUDA shared memory region '{name:.{NAME_CHARS_MAX}}': expected a size from 1 to"
            f" {REGION_BYTES_MAX} bytes, a GPU's number below {DEVICES_MAX} and no inode, got"
            f" {region.size} bytes, GPU {region.device} and inode {region.inode}"
        )
    return region
