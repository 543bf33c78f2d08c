"""How a worker has the bytes of a message: ready to be arrays, and nobody's to change."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import zmq

from naiad.worker.transport import ALIGNED_BYTES_MAX, Transport
from support.waiting import wait_until

FLOATS = 16


@pytest.fixture
def transport(tmp_path: Path) -> Iterator[Transport]:
    reading, writing = os.pipe2(os.O_NONBLOCK)
    one = Transport(f"ipc://{tmp_path}/b.sock", reading, lambda: None)
    one.start(lambda: None)
    yield one
    one.close(0)
    os.close(reading)
    os.close(writing)


def test_payloads_are_read_only_and_small_ones_aligned(
    transport: Transport, tmp_path: Path
) -> None:
    small = np.arange(FLOATS, dtype="float32").tobytes()
    large = bytes(ALIGNED_BYTES_MAX + 1)
    with zmq.Context() as context, context.socket(zmq.ROUTER) as broker:
        broker.linger = 0
        broker.bind(f"ipc://{tmp_path}/b.sock")
        assert transport.send(b"hello")
        name, _ = broker.recv_multipart()
        for length in range(8):  # libzmq puts the frames of a message one behind the other
            broker.send_multipart([name, b"h" * length, small, large])
            wait_until(lambda: transport.poll(0), "no message")
            frames = transport.receive()
            assert frames is not None
            header, payload = frames
            assert header == b"h" * length
            assert [bytes(frame) for frame in payload] == [small, large]
            assert all(frame.readonly for frame in payload)
            array = np.frombuffer(payload[0], dtype="float32")
            assert array.flags.aligned, f"behind a header of {length} bytes"
