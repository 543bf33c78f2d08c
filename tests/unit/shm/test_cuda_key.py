"""The keys of regions in GPU memory."""

import pytest

from naiad.protocol.errors import RequestError
from naiad.protocol.messages import Region
from naiad.shm.cuda.key import (
    HANDLE_BYTES,
    NAME_CHARS_MAX,
    CudaKey,
    checked,
    cuda_region,
    is_cuda,
    parsed,
)
from naiad.shm.layout import REGION_BYTES_MAX

MEMORY = bytes(range(HANDLE_BYTES))
EVENT = bytes(range(100, 100 + HANDLE_BYTES))


@pytest.mark.parametrize("event", [b"", EVENT])
@pytest.mark.parametrize("name", ["", "weights", "a:b/c", "ü" * NAME_CHARS_MAX])
def test_what_goes_into_a_key_comes_out_of_it(event: bytes, name: str) -> None:
    region = cuda_region(MEMORY, 4096, 3, name, event=event, region_id=7)
    assert parsed(region.key) == CudaKey(MEMORY, event, name)
    assert (region.id, region.device, region.inode, region.size) == (7, 3, 0, 4096)
    assert is_cuda(region)
    assert checked(region) == region


def test_a_long_name_is_cut_so_that_the_key_fits_a_message() -> None:
    key = cuda_region(MEMORY, 1, 0, "n" * 1024, event=EVENT).key
    assert parsed(key).name == "n" * NAME_CHARS_MAX
    assert len(key) < 512


def test_a_segment_is_no_cuda_region() -> None:
    assert not is_cuda(Region(1, "/cuda:x", 0, 0, 1))


@pytest.mark.parametrize(
    "key",
    [
        "/segment",
        "cuda",
        "cuda:",
        "cuda:" + MEMORY.hex(),
        "cuda:" + MEMORY.hex() + ":",
        "cuda:" + MEMORY.hex()[:-2] + "::n",
        "cuda:" + MEMORY.hex() + "00::n",
        "cuda:" + "zz" * HANDLE_BYTES + "::n",
        "cuda:" + " " * HANDLE_BYTES + MEMORY.hex() + "::n",
        "cuda:" + MEMORY.hex() + ":00:n",
        "cuda:::n",
    ],
)
def test_other_keys_are_refused(key: str) -> None:
    with pytest.raises(RequestError):
        parsed(key)
    with pytest.raises(RequestError):
        checked(Region(1, key, 0, 0, 4096))


def test_a_refusal_names_the_region_and_not_its_handle() -> None:
    with pytest.raises(RequestError, match="'mine'") as caught:
        parsed("cuda:" + MEMORY.hex()[:-2] + "::mine")
    assert MEMORY.hex()[:32] not in caught.value.message


@pytest.mark.parametrize(
    ("size", "device", "inode"),
    [(0, 0, 0), (REGION_BYTES_MAX, 0, 0), (1, 1024, 0), (1, 0, 1)],
)
def test_impossible_regions_are_refused(size: int, device: int, inode: int) -> None:
    region = cuda_region(MEMORY, 1, 0, "n")._replace(size=size, device=device, inode=inode)
    with pytest.raises(RequestError, match="'n'"):
        checked(region)
