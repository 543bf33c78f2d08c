"""Arenas of clients and workers with real servers: who frees what when a process is killed."""

from __future__ import annotations

import gc
import os
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from naiad.client import Client
from naiad.shm.janitor import Janitor
from naiad.shm.layout import parse_segment_name
from naiad.shm.objects import DIRECTORY, free_bytes
from naiad.testing.server import Server, serve
from support.shm_client import SHAPE, ShmClient

MODELS = Path(__file__).resolve().parents[2] / "model_repository"
WAIT_SECONDS_MAX = 30.0
STOPPED_SECONDS = 6.0
KILLED_CLIENTS = [pytest.param(6, id="short"), pytest.param(100, marks=pytest.mark.soak, id="full")]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    repository = tmp_path_factory.mktemp("models")
    shutil.copytree(MODELS / "identbig", repository / "identbig")
    with serve(repository) as server:
        yield server


@pytest.fixture
def client(server: Server) -> Iterator[Client]:
    with server.client() as client:
        yield client


def image(seed: int) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
    return np.random.default_rng(seed).random(SHAPE, np.float32)


def wait_until(condition: Callable[[], bool], what: str) -> None:
    end = time.monotonic() + WAIT_SECONDS_MAX
    while not condition():
        assert time.monotonic() < end, f"not {what} within {WAIT_SECONDS_MAX} s"
        time.sleep(0.05)


def segments(server: Server, role: str, pid: int | None = None) -> list[str]:
    """Keys of the server's segments in /dev/shm now."""
    found = []
    for entry in os.listdir(DIRECTORY):
        name = parse_segment_name(f"/{entry}")
        if name is None or name.server != server.name or name.role != role:
            continue
        if pid is None or name.pid == pid:
            found.append(f"/{entry}")
    return found


def sweep(server: Server) -> list[str]:
    """What the janitor of this server removes when nothing is leased and all are old enough."""
    janitor = Janitor(server.name, min_age_s=0)
    removed: list[str] = []
    while True:
        some, _, is_complete = janitor.sweep()
        removed += some
        if is_complete:
            return removed


def worker_pid(server: Server, client: Client) -> int:
    (row,) = [row for row in client.status()["instances"] if row["model"] == "identbig"]
    pid: int = server.pids[row["slot"]]
    return pid


def test_large_tensors_travel_in_shared_memory_both_ways(server: Server, client: Client) -> None:
    result = client.infer("identbig", {"INPUT0": image(1)})["OUTPUT0"]
    assert (result == image(1)).all()
    assert segments(server, "client", os.getpid())
    assert segments(server, "worker", worker_pid(server, client))


def test_hundreds_of_results_take_the_room_of_a_few(server: Server, client: Client) -> None:
    given = image(2)
    for _ in range(300):
        result = client.infer("identbig", {"INPUT0": given})["OUTPUT0"]
        assert result[0, 0, 0, 0] == given[0, 0, 0, 0]
    # One is read while the next is made, and what was released is known a moment later.
    assert len(segments(server, "worker", worker_pid(server, client))) <= 3
    assert len(segments(server, "client", os.getpid())) <= 2


def test_results_held_stay_what_they_were_while_others_come(server: Server, client: Client) -> None:
    held = {
        seed: client.infer("identbig", {"INPUT0": image(seed)})["OUTPUT0"] for seed in range(20)
    }
    for seed in range(100, 140):
        client.infer("identbig", {"INPUT0": image(seed)})
    for seed, array in held.items():
        assert (array == image(seed)).all()


def test_a_placed_result_is_read_where_the_client_asked_for_it(client: Client) -> None:
    given = image(5)
    region = client.region(2 * given.nbytes)
    place = region.place(given.nbytes, given.nbytes)
    result = client.infer("identbig", {"INPUT0": given}, {"OUTPUT0": place})
    assert (result["OUTPUT0"] == given).all()
    assert np.shares_memory(result["OUTPUT0"], region.array("FP32", SHAPE, given.nbytes))


def test_a_closed_client_leaves_nothing_and_its_arrays_live_on(server: Server) -> None:
    client = server.client()
    result = client.infer("identbig", {"INPUT0": image(3)})["OUTPUT0"]
    client.close()
    gc.collect()
    assert segments(server, "client", os.getpid()) == []
    assert (result == image(3)).all()


@pytest.mark.parametrize("count", KILLED_CLIENTS)
def test_killed_clients_leave_what_the_janitor_removes_and_nothing_more(
    server: Server, client: Client, count: int
) -> None:
    client.infer("identbig", {"INPUT0": image(4)})
    mine = segments(server, "client", os.getpid())
    free, used = free_bytes(), _shmem_bytes()
    clients = [ShmClient(server.run_dir) for _ in range(count)]
    try:
        for one in clients:
            one.wait_until_holding()
        left = [key for one in clients for key in segments(server, "client", one.process.pid)]
        assert len(left) >= count
    finally:
        for one in clients:
            one.__exit__()
    wait_until(lambda: len(client.status()["sessions"]) == 1, "forgotten by the broker")
    removed = sweep(server)
    # The broker's own janitor may have been faster with some of them.
    assert set(removed) <= set(left)
    assert not set(left) & set(os.listdir(DIRECTORY))
    assert set(mine) <= set(segments(server, "client", os.getpid()))
    # What their results took is lent to others now; the worker's arena has not become larger.
    wait_until(lambda: _growth(server, client, free) <= 0, "given back")
    lent = sum(os.stat(DIRECTORY + key).st_size for key in segments(server, "worker"))
    wait_until(lambda: _shmem_bytes() - used <= lent, "taken from the kernel's Shmem")


def _shmem_bytes() -> int:
    """All shared memory of the machine, as /proc/meminfo counts it."""
    lines = Path("/proc/meminfo").read_text().splitlines()
    (found,) = [line for line in lines if line.startswith("Shmem:")]
    return int(found.split()[1]) * 1024


def _growth(server: Server, client: Client, free: int) -> int:
    """Bytes of /dev/shm taken since, but for the worker's arena, which is used again."""
    arena = sum(os.stat(DIRECTORY + key).st_size for key in segments(server, "worker"))
    return free - free_bytes() - arena


def test_results_outlive_the_worker_that_made_them(server: Server, client: Client) -> None:
    held = [client.infer("identbig", {"INPUT0": image(seed)})["OUTPUT0"] for seed in range(5)]
    pid = worker_pid(server, client)
    os.kill(pid, signal.SIGKILL)
    after = client.infer("identbig", {"INPUT0": image(9)})["OUTPUT0"]
    assert worker_pid(server, client) != pid
    assert (after == image(9)).all()
    for seed, array in enumerate(held):
        assert (array == image(seed)).all()


def test_requests_under_way_survive_the_worker(server: Server, client: Client) -> None:
    futures = [
        client.submit("identbig", {"INPUT0": image(seed)}, parameters={"sleep_ms": 50})
        for seed in range(8)
    ]
    wait_until(lambda: any(row["executing_s"] for row in client.status()["instances"]), "executing")
    os.kill(worker_pid(server, client), signal.SIGKILL)
    for seed, future in enumerate(futures):
        assert (future.result(WAIT_SECONDS_MAX)["OUTPUT0"] == image(seed)).all()


def test_requests_and_results_survive_the_broker(server: Server, client: Client) -> None:
    held = [client.infer("identbig", {"INPUT0": image(seed)})["OUTPUT0"] for seed in range(5)]
    futures = [
        client.submit("identbig", {"INPUT0": image(seed)}, parameters={"sleep_ms": 50})
        for seed in range(8)
    ]
    broker = server.pids["broker"]
    os.kill(broker, signal.SIGKILL)
    for seed, future in enumerate(futures):
        assert (future.result(WAIT_SECONDS_MAX)["OUTPUT0"] == image(seed)).all()
    assert server.pids["broker"] != broker
    for seed, array in enumerate(held):
        assert (array == image(seed)).all()
    del held, futures, array
    gc.collect()
    assert (client.infer("identbig", {"INPUT0": image(9)})["OUTPUT0"] == image(9)).all()


def test_nobody_writes_over_what_a_stopped_client_reads_when_the_broker_is_replaced(
    server: Server, client: Client
) -> None:
    with ShmClient(server.run_dir) as stopped:
        stopped.wait_until_holding()
        stopped.process.send_signal(signal.SIGSTOP)
        os.kill(server.pids["broker"], signal.SIGKILL)
        # Longer than a restarted broker waits for whoever is known to have gone.
        end = time.monotonic() + STOPPED_SECONDS
        while time.monotonic() < end:
            held = [client.infer("identbig", {"INPUT0": image(7)})["OUTPUT0"] for _ in range(5)]
            assert all((one == image(7)).all() for one in held)
        stopped.process.send_signal(signal.SIGCONT)
        assert stopped.end() == 0


def test_cancelled_requests_give_their_memory_back(server: Server, client: Client) -> None:
    client.infer("identbig", {"INPUT0": image(1)})
    before = len(segments(server, "client", os.getpid()))
    for _ in range(30):
        futures = [
            client.submit("identbig", {"INPUT0": image(1)}, parameters={"sleep_ms": 5})
            for _ in range(2)
        ]
        for future in futures:
            future.cancel()
        assert (client.infer("identbig", {"INPUT0": image(2)})["OUTPUT0"] == image(2)).all()
    assert len(segments(server, "client", os.getpid())) <= before + 3
