"""Client regions and the worker's arena, with real segments and a real worker process."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import posix_ipc
import pytest

from naiad.protocol import messages as m
from naiad.protocol.errors import Code
from naiad.shm.mappings import Mappings
from naiad.worker.exit_codes import ExitCode
from naiad.worker.regions import RegionTable
from support.fake_worker_broker import IDENTITY_CONFIG, FakeWorkerBroker, fp32_request

CANARY = 0xEE
LARGE = {
    **IDENTITY_CONFIG,
    "input": [{"name": "INPUT0", "data_type": "TYPE_FP32", "dims": [-1]}],
    "output": [{"name": "OUTPUT0", "data_type": "TYPE_FP32", "dims": [-1]}],
}


class ClientRegion:
    """A segment that no naiad made, filled with canaries."""

    def __init__(self, size: int, ident: int = 1) -> None:
        self.memory = posix_ipc.SharedMemory(
            f"/test-{secrets.token_hex(8)}", posix_ipc.O_CREX, size=size
        )
        found = os.fstat(self.memory.fd)
        self.region = m.Region(ident, self.memory.name, found.st_dev, found.st_ino, size)
        os.pwrite(self.memory.fd, bytes([CANARY]) * size, 0)

    def read(self) -> bytes:
        return os.pread(self.memory.fd, self.region.size, 0)

    def close(self) -> None:
        self.memory.close_fd()
        self.memory.unlink()


@pytest.fixture
def client() -> Iterator[ClientRegion]:
    region = ClientRegion(4096)
    yield region
    region.close()


@pytest.fixture
def loaded(broker: FakeWorkerBroker, start: Any) -> FakeWorkerBroker:
    start()
    broker.welcome()
    broker.load(LARGE)
    return broker


def in_region(ident: int, offset: int, items: int, **fields: Any) -> m.BatchRequest:
    tensor = m.Tensor("INPUT0", "FP32", (1, items), m.Place.REGION, 1, offset, 4 * items)
    return fp32_request(ident, **fields)._replace(inputs=(tensor,))


def into_region(offset: int, size: int) -> tuple[m.OutputRequest, ...]:
    return (m.OutputRequest("OUTPUT0", m.Place.REGION, 1, offset, size),)


def only_error(broker: FakeWorkerBroker) -> tuple[str, str, bool]:
    error = broker.expect(m.Results)[0].results[0].error
    assert error is not None
    return error


def test_bytes_go_from_client_memory_to_client_memory(
    loaded: FakeWorkerBroker, client: ClientRegion
) -> None:
    sent = np.arange(16, dtype="float32").tobytes()
    os.pwrite(client.memory.fd, sent, 128)
    request = in_region(1, 128, 16, outputs=into_region(1024, 100))
    loaded.send_batch([request], regions=[client.region])
    results, frames = loaded.expect(m.Results)
    assert results.results[0].outputs == (
        m.Tensor("OUTPUT0", "FP32", (1, 16), m.Place.REGION, 1, 1024, 64),
    )
    assert frames == []
    expected = bytearray([CANARY]) * 4096
    expected[128:192] = expected[1024:1088] = sent
    assert client.read() == bytes(expected)


@pytest.mark.parametrize(("offset", "items"), [(4096, 1), (4092, 2), (0, 1025), (2**62, 1)])
def test_what_lies_outside_of_a_region_is_refused(
    loaded: FakeWorkerBroker, client: ClientRegion, offset: int, items: int
) -> None:
    loaded.send_batch([in_region(1, offset, items)], regions=[client.region])
    assert only_error(loaded)[0] == Code.INVALID_ARGUMENT
    loaded.send_batch([in_region(2, 0, 16, outputs=into_region(offset, 4 * items))])
    assert only_error(loaded)[0] == Code.INVALID_ARGUMENT
    assert client.read() == bytes([CANARY]) * 4096


def test_a_truncation_before_the_read_fails_that_request_alone(
    loaded: FakeWorkerBroker, client: ClientRegion
) -> None:
    loaded.send_batch([in_region(1, 2048, 16)], regions=[client.region])
    assert loaded.expect(m.Results)[0].results[0].error is None
    os.ftruncate(client.memory.fd, 1024)
    good = fp32_request(3)
    loaded.send_batch([in_region(2, 2048, 16), good], [bytes(64)])
    first, second = loaded.expect(m.Results)[0].results
    assert first.error is not None
    assert first.error[0] == Code.REGION_TRUNCATED
    assert second.error is None


def test_a_region_truncated_before_its_first_use(
    loaded: FakeWorkerBroker, client: ClientRegion
) -> None:
    os.ftruncate(client.memory.fd, 1024)
    loaded.send_batch([in_region(1, 0, 16)], regions=[client.region])
    assert only_error(loaded)[0] == Code.REGION_TRUNCATED


def test_a_region_that_became_another_object_is_not_mapped(
    loaded: FakeWorkerBroker, client: ClientRegion
) -> None:
    stale = client.region._replace(inode=client.region.inode + 1)
    loaded.send_batch([in_region(1, 0, 16)], regions=[stale])
    code, text, _ = only_error(loaded)
    assert code == Code.NOT_FOUND
    assert "replaced" in text


def test_forgotten_regions_are_unmapped(
    loaded: FakeWorkerBroker, client: ClientRegion, start: Any
) -> None:
    pid = start(slot="s1").pid
    loaded.welcome()
    loaded.load(LARGE)
    loaded.send_batch([in_region(1, 0, 16)], regions=[client.region])
    loaded.expect(m.Results)
    name = client.region.key
    assert name in Path(f"/proc/{pid}/maps").read_text()
    loaded.send(m.Forget((1, 99)))
    assert loaded.expect(m.Forgotten)[0].ids == (1, 99)
    assert name not in Path(f"/proc/{pid}/maps").read_text()
    loaded.send_batch([in_region(2, 0, 16)])
    assert only_error(loaded)[0] == Code.NOT_FOUND


def test_a_region_is_forgotten_when_its_last_view_is_gone(client: ClientRegion) -> None:
    """A model may keep an input beyond its execution; the memory stays mapped for it."""
    table = RegionTable()
    table.define([client.region])
    kept = np.frombuffer(table.readable(1, 0, 64), dtype="float32")
    assert table.forget((1, 2)) == (2,)
    assert table.is_leaving
    assert table.sweep() == ()
    assert kept.tobytes() == bytes([CANARY]) * 64
    del kept
    assert table.sweep() == (1,)
    assert not table.is_leaving


def test_region_ids_of_a_former_broker_mean_nothing(
    run_dir: str, start: Any, client: ClientRegion
) -> None:
    with FakeWorkerBroker(run_dir) as first:
        start()
        first.welcome()
        first.load(LARGE)
        first.send_batch([in_region(1, 0, 16)], regions=[client.region])
        first.expect(m.Results)
    with FakeWorkerBroker(run_dir) as second:
        second.welcome()
        second.expect(m.Loaded)
        second.expect(m.Results)
        second.send_batch([in_region(2, 0, 16)])
        assert only_error(second)[0] == Code.NOT_FOUND


def test_large_results_are_lent_until_they_are_returned(
    broker: FakeWorkerBroker, start: Any
) -> None:
    worker = start()
    broker.welcome()
    broker.load(LARGE)
    sent = os.urandom(4 * 65536)
    broker.send_batch([fp32_request(1, items=65536)], [sent])
    results, frames = broker.expect(m.Results)
    (arena,), (output,) = results.arenas, results.results[0].outputs
    assert (output.place, output.region, output.size) == (m.Place.LEASE, arena.id, len(sent))
    assert frames == []
    assert arena.id & 1 << 61
    assert f".worker.{worker.pid}." in arena.key
    with Mappings(writable=False) as mappings:
        mappings.define([arena])
        assert mappings.copy(arena.id, output.offset, output.size) == sent

    broker.send_batch([fp32_request(2, items=65536)], [sent])
    second, _ = broker.expect(m.Results)
    assert second.arenas == ()
    assert second.results[0].outputs[0].offset != output.offset
    broker.send(m.Return(((1, 1), (1, 2), (8, 8))))
    broker.send_batch([fp32_request(3, items=65536)], [sent])
    third, _ = broker.expect(m.Results)
    assert third.results[0].outputs[0].offset in (
        output.offset,
        second.results[0].outputs[0].offset,
    )

    broker.send(m.Return(((1, 3),)))
    broker.send(m.Stop(5000))
    assert worker.exit_code() == ExitCode.STOPPED
    assert not Path("/dev/shm" + arena.key).exists()


def test_what_is_lent_survives_the_end_of_the_worker_and_is_said_in_hello(
    run_dir: str, start: Any
) -> None:
    sent = os.urandom(4 * 65536)
    with FakeWorkerBroker(run_dir) as first:
        worker = start()
        first.welcome()
        first.load(LARGE)
        first.send_batch([fp32_request(5, items=65536)], [sent])
        (arena,) = first.expect(m.Results)[0].arenas
    with FakeWorkerBroker(run_dir) as second:
        hello = second.welcome()
        assert (hello.arenas, hello.leases) == ((arena,), ((1, 5),))
        second.expect(m.Loaded)
        second.send(m.Stop(5000))
        assert worker.exit_code() == ExitCode.STOPPED
    assert Path("/dev/shm" + arena.key).exists()


def test_cancelled_requests_end_early_and_are_not_started(
    broker: FakeWorkerBroker, start: Any
) -> None:
    start()
    broker.welcome()
    broker.load()
    slow = fp32_request(1, parameters={"sleep_ms": 60_000})
    broker.send_batch([slow], [bytes(64)])
    broker.send_batch([fp32_request(2), fp32_request(3)], [bytes(64)])
    broker.send(m.Abandon(((1, 1), (1, 2))))
    assert broker.expect(m.Results)[0].results[0].error is None
    second, third = broker.expect(m.Results)[0].results
    assert second.error is not None
    assert second.error[0] == Code.CANCELLED
    assert third.error is None
