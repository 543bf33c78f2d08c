"""Leaving a shared port, asked of the real kernel."""

from __future__ import annotations

import socket

import pytest

from naiad.config.listening import listening
from naiad.config.shared_port import is_shared, let_nobody_in

PATIENCE_S = 10.0
REFUSED_AFTER_S = 0.3


def connected(port: int, timeout: float = PATIENCE_S) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout)


def test_who_has_come_before_is_taken_and_nobody_after() -> None:
    with listening("127.0.0.1", 0, what="x", reuse_port=True) as one:
        port = one.getsockname()[1]
        with connected(port) as early:
            let_nobody_in([one])
            with pytest.raises(TimeoutError):
                connected(port, REFUSED_AFTER_S)
            taken, _ = one.accept()
            with taken:
                early.sendall(b"x")
                assert taken.recv(1) == b"x"


def test_the_other_one_of_the_port_gets_all_who_come() -> None:
    with listening("127.0.0.1", 0, what="x", reuse_port=True) as old:
        port = old.getsockname()[1]
        with listening("127.0.0.1", port, what="x", reuse_port=True) as new:
            let_nobody_in([old])
            old.close()
            for _ in range(20):
                with connected(port):
                    new.accept()[0].close()


def test_a_port_that_is_not_shared_stays_open() -> None:
    with listening("127.0.0.1", 0, what="x") as one:
        assert not is_shared(one)
        let_nobody_in([one])
        with connected(one.getsockname()[1]):
            one.accept()[0].close()


def test_nobody_is_let_in_before_somebody_listens() -> None:
    with (
        listening("127.0.0.1", 0, what="x", reuse_port=True, is_open=False) as one,
        pytest.raises(ConnectionRefusedError),
    ):
        connected(one.getsockname()[1])
