"""A broker as a worker sees it: a ROUTER that says what a test wants, and nothing by itself.

For tests, step by step; and for measuring: `PYTHONPATH=src:tests python -m
support.fake_worker_broker` floods a worker with batches and prints microseconds per request.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import tempfile
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from time import monotonic
from typing import Any, TypeVar

import zmq

from naiad.protocol import messages as m
from naiad.protocol.bundle import bundled, unbundled
from naiad.protocol.codec import decode, encode
from naiad.protocol.endpoints import Endpoints

PATIENCE_S = 20.0

IDENTITY_CONFIG: dict[str, Any] = {
    "name": "echo",
    "backend": "identity",
    "max_batch_size": 64,
    "dynamic_batching": {},
    "input": [{"name": "INPUT0", "data_type": "TYPE_FP32", "dims": [16]}],
    "output": [{"name": "OUTPUT0", "data_type": "TYPE_FP32", "dims": [16]}],
}

Message = TypeVar("Message")


@dataclass
class Heard:
    """A message of a worker with its payload frames."""

    message: Any
    payload: list[bytes]


@dataclass
class FakeWorkerBroker:
    """Speaks with one worker at a time: the one that said hello last."""

    run_dir: str
    incarnation: int = field(default_factory=lambda: random.getrandbits(63))
    worker: bytes = b""

    def __post_init__(self) -> None:
        os.makedirs(self.run_dir, exist_ok=True)
        self.context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self.socket = self.context.socket(zmq.ROUTER)
        self.socket.setsockopt(zmq.LINGER, 0)
        self.socket.set_hwm(0)
        self.socket.bind(Endpoints(self.run_dir).workers)
        self.batch = 0
        self._unread: deque[Heard] = deque()
        """Of a BUNDLE."""

    def close(self) -> None:
        self.socket.close(0)
        self.context.term()

    def __enter__(self) -> FakeWorkerBroker:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def send(self, message: m.Message, payload: Sequence[bytes] = ()) -> None:
        self.socket.send_multipart([self.worker, encode(message), *payload])

    def hear(self, timeout_s: float = PATIENCE_S) -> Heard | None:
        """The next message of any worker, None when there is none in time."""
        if self._unread:
            return self._unread.popleft()
        if not self.socket.poll(int(timeout_s * 1e3)):
            return None
        sender, header, *payload = self.socket.recv_multipart()
        message = decode(header, [len(frame) for frame in payload])
        if isinstance(message, m.SlotHello):
            self.worker = sender
        if isinstance(message, m.Bundle):
            for inner, frames in unbundled(message, payload):
                self._unread.append(Heard(decode(inner, [len(one) for one in frames]), frames))
            return self._unread.popleft()
        return Heard(message, payload)

    def expect(
        self, kind: type[Message], timeout_s: float = PATIENCE_S
    ) -> tuple[Message, list[bytes]]:
        """The next message, which must be of this kind."""
        heard = self.hear(timeout_s)
        assert heard is not None, f"no {kind.__name__} within {timeout_s} s"
        assert isinstance(heard.message, kind), f"expected {kind.__name__}, got {heard.message}"
        return heard.message, heard.payload

    def welcome(self, *, keep: bool = True) -> m.SlotHello:
        """Wait for a hello and answer it."""
        hello, _ = self.expect(m.SlotHello)
        self.send(m.SlotWelcome(self.incarnation, "fake", keep))
        return hello

    def load(self, config: dict[str, Any] | None = None, **fields: Any) -> Heard:
        """Send LOAD and wait for LOADED, whatever it says."""
        self.send_load(config, **fields)
        message, payload = self.expect(m.Loaded)
        return Heard(message, payload)

    def send_load(
        self,
        config: dict[str, Any] | None = None,
        *,
        directory: str = "/nowhere",
        threads: int = 0,
        kind: str = "KIND_CPU",
    ) -> None:
        config = IDENTITY_CONFIG if config is None else config
        name = config["name"]
        load = m.Load(7, name, 1, f"{name}_0", directory, kind, 0, threads, True)
        self.send(load, [json.dumps(config).encode()])

    def send_batch(
        self,
        requests: Sequence[m.BatchRequest],
        payload: Sequence[bytes] = (),
        *,
        acknowledged: int = 0,
        regions: Sequence[m.Region] = (),
    ) -> int:
        self.batch += 1
        batch = m.Batch(self.batch, acknowledged, tuple(requests), tuple(regions))
        self.send(batch, payload)
        return self.batch

    def send_series(self, requests: Sequence[m.BatchRequest], payload: Sequence[bytes]) -> None:
        """Each as a batch of its own, all in one message."""
        batches = [m.Batch(self.batch + 1 + at, 0, (one,), ()) for at, one in enumerate(requests)]
        self.batch += len(batches)
        header, frames = bundled([(encode(batch), payload) for batch in batches])
        self.socket.send_multipart([self.worker, header, *frames])


def fp32_request(
    ident: int, frame: int = 0, offset: int = 0, items: int = 16, **fields: Any
) -> m.BatchRequest:
    """A request of `INPUT0` FP32 [1, items] in a payload frame."""
    tensor = m.Tensor("INPUT0", "FP32", (1, items), m.Place.INLINE, frame, offset, 4 * items)
    values = {"session": 1, "label": f"r{ident}", "inputs": (tensor,), "outputs": (), **fields}
    return m.BatchRequest(id=ident, **values)


def cpu_s(pid: int) -> float:
    """CPU seconds that all threads of a process have used so far."""
    tasks = f"/proc/{pid}/task"
    total_ns = 0
    for task in os.listdir(tasks):
        with open(f"{tasks}/{task}/schedstat") as file:
            total_ns += int(file.read().split()[0])
    return total_ns / 1e9


def flood(batches: int, size: int) -> tuple[float, float]:
    """Send batches of [1,16] FP32 requests, two in flight, to an identity worker.

    Returns (microseconds of the worker's CPU per request, of wall clock per request).
    """
    with tempfile.TemporaryDirectory() as run_dir, FakeWorkerBroker(run_dir) as broker:
        command = [sys.executable, "-m", "naiad.worker", "--run-dir", run_dir, "--slot", "flood"]
        worker = subprocess.Popen(command, stderr=subprocess.DEVNULL)
        try:
            broker.welcome()
            broker.load()
            payload = os.urandom(64 * size)
            requests = tuple(
                fp32_request(index, offset=64 * index, label="") for index in range(size)
            )
            headers = [
                encode(m.Batch(number + 1, max(0, number - 1), requests, ()))
                for number in range(batches)
            ]
            started, cpu_before = monotonic(), cpu_s(worker.pid)
            for number, header in enumerate(headers):
                broker.socket.send_multipart([broker.worker, header, payload])
                if number:
                    broker.socket.recv_multipart()
            broker.socket.recv_multipart()
            count = batches * size
            cpu_us = (cpu_s(worker.pid) - cpu_before) / count * 1e6
            return cpu_us, (monotonic() - started) / count * 1e6
        finally:
            worker.kill()
            worker.wait()


if __name__ == "__main__":
    for batch_size in (1, 8, 32, 64):
        cpu_us, wall_us = flood(max(500, 32_000 // batch_size), batch_size)
        print(f"batches of {batch_size}: {cpu_us:.1f} µs CPU, {wall_us:.1f} µs wall per request")
