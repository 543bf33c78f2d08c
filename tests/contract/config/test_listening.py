"""Sockets that cannot be had, asked of the real kernel: one sentence each, with advice."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from naiad.config.listening import ListenFailed, listening


@pytest.mark.parametrize("address", ["300.1.1.1", "a..b", "a" * 80, ""])
def test_an_address_that_is_none(address: str) -> None:
    said = f"--http-port: cannot listen on {address!r} ("
    with pytest.raises(ListenFailed, match=re.escape(said)) as raised:
        listening(address, 0, what="--http-port")
    assert "expected an IP address of this machine, 0.0.0.0 for all of them" in str(raised.value)


@pytest.mark.parametrize("size", [0, 108])
def test_a_path_that_no_socket_can_have(size: int) -> None:
    with pytest.raises(ListenFailed, match=f"has 1 to 107 bytes, got {size}; choose another"):
        listening("unix:" + "/" * size, 0, what="--http-port")


def test_the_longest_path_of_a_socket(tmp_path: Path) -> None:
    with pytest.raises(ListenFailed, match="No such file or directory"):
        listening(f"unix:{tmp_path}/x/{'a' * (104 - len(str(tmp_path)))}", 0, what="x")


@pytest.mark.parametrize(
    ("is_wanted", "said"),
    [
        (False, "is taken by another program (another server?); stop it, or choose another --p"),
        (True, "both servers need --reuse-p, and the same user: start the other one with it too"),
    ],
)
def test_a_port_that_is_not_shared(is_wanted: bool, said: str) -> None:
    with listening("127.0.0.1", 0, what="x") as one:
        port = one.getsockname()[1]
        with pytest.raises(ListenFailed, match=re.escape(said)):
            listening("127.0.0.1", port, what="--p", reuse_port=is_wanted, reuse_option="--reuse-p")
