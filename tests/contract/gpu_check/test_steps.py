"""Every step of gpu_check over the fake GPU: what it says of a good one, and of one that is not.

What is measured here is the fake's; that the rows are there, and follow from the figures, is not.
"""

from __future__ import annotations

import ctypes
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gpu_checks import (
    between_processes,
    context_memory,
    data_path,
    faults,
    host_memory,
    in_place,
    order,
    server,
    waiting,
)
from gpu_checks import (
    device as looked_at,
)
from gpu_checks.rows import FAIL, PASS, SKIPPED, Row
from gpu_checks.steps import Options
from naiad.worker.backends.tensorrt.data_path import DataPath
from support import fake_cuda_ipc, fake_gpu, fake_gpu_driver, fake_gpu_nvrtc
from support.fake_cudart import Device, cudaError_t

Step = Callable[[Options], Iterator[Row]]
SUCCESS = (cudaError_t.cudaSuccess,)


def taken(step: Step) -> dict[str, Row]:
    found = list(step(Options()))
    by_name = {row.what: row for row in found}
    assert len(by_name) == len(found), "two rows of one name"
    return by_name


def verdicts(found: dict[str, Row]) -> dict[str, str]:
    return {what: row.verdict for what, row in found.items()}


def failing(step: Step) -> list[str]:
    return [what for what, row in taken(step).items() if row.verdict == FAIL]


# --- The device --------------------------------------------------------------------------------


def test_the_device_is_told(device: Device) -> None:
    found = taken(looked_at.look)
    assert set(verdicts(found).values()) == {PASS}
    assert found["GPU"].measured.startswith("Fake GPU, sm_90, 1024 MiB (1024 free), 1 seen")


@pytest.mark.parametrize(
    ("error", "count", "said"),
    [
        (35, 1, "no NVIDIA driver (cudaErrorInsufficientDriver)"),
        (0, 0, "no GPU that CUDA sees (cudaErrorNoDevice)"),
    ],
)
def test_no_device(device: Device, error: int, count: int, said: str) -> None:
    device.driver_error, device.count = error, count
    found = taken(looked_at.look)
    assert (found["GPU"].verdict, found["GPU"].reason) == (SKIPPED, said)


# --- Clients' memory -----------------------------------------------------------------------------


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    for module, name, value in [
        (host_memory, "PROOF_BYTES", 1 << 16),
        (host_memory, "BEHIND_US", 300_000),  # on a busy machine, all is late
        (host_memory, "CALL_US_MAX", 250_000),
        (order, "BUSY_US", 200_000),
        (host_memory, "RATE_BYTES", 1 << 19),
        (host_memory, "RATE_ROUNDS", 3),
        (host_memory, "PIECES", 2),
        (order, "OVERLAP_BYTES", 1 << 20),
        (order, "OVERLAP_ROUNDS", 1),
        (order, "GAP_LAUNCHES", 5),
        (order, "GRAPH_ROUNDS", 3),
        (data_path, "REQUESTS", 2),
        (data_path, "REQUEST_BYTES", (1 << 20,)),
        (data_path, "ROUNDS", 1),
        (data_path, "PIPELINED", 6),
        (data_path, "GAP_BATCHES", 5),
        (data_path, "LATENCY_CALLS", 5),
        (server, "MANY", 20),
        (server, "LATENCY_CALLS", 5),
        (context_memory, "ROUNDS", 1),
        (context_memory, "SETTLE_SECONDS", 0.01),
        (waiting, "EXECUTIONS", ((1000, 3), (20_000, 3))),
    ]:
        monkeypatch.setattr(module, name, value)
    monkeypatch.setattr(fake_gpu, "BYTES_PER_SECOND", 5e7)


pytestmark = pytest.mark.usefixtures("small")


def test_registered_memory(device: Device) -> None:
    found = taken(host_memory.prove)
    assert set(verdicts(found).values()) == {PASS}
    assert found["kernels"].measured == "NVRTC"
    assert not device.registered
    assert not device.memory
    assert not list(Path("/dev/shm").glob(f"naiad-gpu-check-{os.getpid()}-*"))


def test_the_kernels_come_from_ptx_without_nvrtc(
    device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fake_gpu_nvrtc, "is_missing", True)
    found = taken(host_memory.prove)
    assert found["kernels"].measured.startswith("kernels.ptx (no NVRTC: Failure finding")
    assert set(verdicts(found).values()) == {PASS}


def test_memory_that_the_cpu_copies_is_found_out(
    device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Registering that does nothing: bytes are those of the call, which waits on the way out."""
    for name in ("cudaHostRegister", "cudaHostUnregister"):
        monkeypatch.setattr(fake_gpu, name, lambda *_: SUCCESS, raising=False)
    assert failing(host_memory.prove) == [
        "bytes changed by another mapping after the call arrive changed",
        "a copy out to a segment returns",
    ]


def test_the_rates(device: Device) -> None:
    found = taken(host_memory.measure)
    for way in ("H2D", "D2H"):
        plain = found[f"{way}, pinned memory, 64 MiB"].value
        share = found[f"{way}, a segment, of pinned"]
        assert plain is not None
        assert 0.005 < plain < 0.05
        assert share.bar == ">= 0.9 x"
        assert share.value is not None
        assert (share.verdict == PASS) == (share.value >= 0.9)
    assert not device.registered


# --- Two processes -------------------------------------------------------------------------------


def test_memory_and_events_of_two_processes(device: Device) -> None:
    found = taken(between_processes.prove)
    assert set(verdicts(found).values()) == {PASS}
    assert len(found) == 3


def test_an_event_that_is_not_waited_for_is_found_out(
    device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fake_gpu, "cudaStreamWaitEvent", lambda *_: SUCCESS, raising=False)
    assert failing(between_processes.prove) == [
        "and this process, by its event, for what it writes there"
    ]


# --- Order ---------------------------------------------------------------------------------------


def test_streams(device: Device) -> None:
    found = taken(order.streams)
    assert found.pop("two kernels on two streams, over one").bar == "<= 1.3 x"
    assert set(verdicts(found).values()) == {PASS}


def test_streams_without_order_are_found_out(
    device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fake_gpu, "cudaStreamWaitEvent", lambda *_: SUCCESS, raising=False)
    assert "a stream that waits for an event of another sees what that computed" in failing(
        order.streams
    )


def test_copies_beside_kernels(device: Device) -> None:
    found = taken(order.overlap)
    row = found["one stream over two, equal halves"]
    assert row.bar == ">= 1.6 x"
    assert row.value is not None
    assert (row.verdict == PASS) == (row.value >= 1.6)


def test_copies_that_wait_for_kernels_are_found_out(
    device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One stream, whatever is created."""
    (stream,) = fake_cuda_ipc.cudaStreamCreateWithPriority(1, 0)[1:]
    monkeypatch.setattr(
        fake_gpu, "cudaStreamCreateWithPriority", lambda *_: (*SUCCESS, stream), raising=False
    )
    assert failing(order.overlap) == ["one stream over two, equal halves"]


def test_waiting(device: Device) -> None:
    found = taken(waiting.measure)
    assert len(found) == 3
    assert found["a core's share of the longest wait"].bar == "<= 0.5"
    late = found["the end of 20000 us is seen later than by spinning"].value
    assert late is not None
    assert not device.streams


def test_a_wait_that_burns_a_core_is_found_out(
    device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(waiting, "process_time", time.perf_counter)
    assert failing(waiting.measure) == ["a core's share of the longest wait"]


def test_graphs(device: Device) -> None:
    found = taken(order.graphs)
    del found["launching each over replay"]  # a fake replays no sooner
    assert set(verdicts(found).values()) == {PASS}
    assert not device.graphs


def test_a_graph_that_does_nothing_is_found_out(
    device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fake_gpu, "cudaGraphLaunch", lambda *_: SUCCESS, raising=False)
    assert [what for what in failing(order.graphs) if "over" not in what] == [
        "launch 1 gives 2x + 1",
        "launch 2 gives 2x + 1",
    ]


def test_gaps_are_between_the_end_of_one_and_the_beginning_of_the_next() -> None:
    assert order.gaps([(0, 1000), (3000, 4000), (4500, 9000)]) == [2.0, 0.5]


# --- naiad on it ---------------------------------------------------------------------------------


def test_the_data_path(device: Device) -> None:
    found = taken(data_path.prove)
    measured = {
        "a batch's copies, of bare pinned ones",
        "batches one after the other over staged ones, equal halves",
    }
    assert measured <= found.keys()
    assert {row.verdict for what, row in found.items() if what not in measured} == {PASS}
    gaps = [row.value for what, row in found.items() if "launch gap" in what]
    assert len(gaps) == 2
    assert all(gap is not None and 0 < gap < 1e5 for gap in gaps)
    overlap = found["batches one after the other over staged ones, equal halves"].value
    assert overlap is not None
    assert not device.registered
    assert not device.pinned


def test_outputs_that_are_not_written_in_place_are_found_out(
    device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(DataPath, "_writable", lambda *_: 0)
    found = [(row.what, row.verdict, row.measured) for row in in_place.prove()]
    assert found == [
        ("3 rows on the GPU, of 32 that the profile admits: 2x + 1", PASS, "equal"),
        ("and they are read and written in place", FAIL, "1 copies"),
    ]


def test_graphs_that_are_not_made_are_found_out(
    device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(data_path, "GRAPHS", {"optimization": {"cuda": {"graphs": False}}})
    found = {row.what: row for row in data_path._graphed()}["graphs serve their batches"]
    assert (found.verdict, found.measured) == (FAIL, "5 executions, 5 starts")
    assert found.reason == "there is no graph for one row"


def test_wrong_results_are_found_out(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(x: int, y: int, count: int, *rest: Any) -> None:
        fake_gpu_driver.affine(x, y, count, *rest)
        if count:
            fake_gpu_driver._array(y, ctypes.c_float, count)[count - 1] += 1

    monkeypatch.setitem(fake_gpu_driver.KERNELS, b"affine", wrong)
    found = [what for what in failing(data_path.prove) if "copies" not in what]
    assert "rows [1]: 2x + 1, in place" in found
    assert "and the results are right" in found


def test_a_whole_server(device: Device) -> None:
    found = taken(server.prove)
    assert set(verdicts(found).values()) == {PASS}
    assert found["20 requests at once: 2x + 1"].measured == "20 of 20"


REFUSING = """
refused = (fake_gpu.cudaError_t.cudaErrorNotSupported,)
fake_gpu.cudaHostRegister = lambda *_: refused
"""
HASTY = """
done = (fake_gpu.cudaError_t.cudaSuccess,)
is_shared = lambda event: isinstance(event, fake_gpu.InterprocessEvent)
wait, query = fake_gpu.cudaStreamWaitEvent, fake_gpu.cudaEventQuery
fake_gpu.cudaStreamWaitEvent = lambda *a: done if is_shared(a[1]) else wait(*a)
fake_gpu.cudaEventQuery = lambda event: done if is_shared(event) else query(event)
"""


@pytest.mark.parametrize(
    ("fault", "row"),
    [
        (REFUSING, "the worker registered the client's memory"),
        (HASTY, "a client's tensors on the GPU: written late, read when they are"),
    ],
)
def test_a_server_with_a_fault_is_found_out(
    device: Device, tmp_path: Path, fault: str, row: str
) -> None:
    """In the CUDA of its processes: no registration, or nobody waits for clients' events."""
    runtime = tmp_path / "planted" / "cuda" / "bindings" / "runtime.py"
    runtime.write_text(runtime.read_text() + fault)
    assert failing(server.prove) == [row]


def test_a_server_without_its_packages(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(server.NEEDED, "no_such_module", "no-such-package")
    (row,) = taken(server.prove).values()
    assert row.verdict == SKIPPED
    assert row.reason == "needs no-such-package; give their wheels with --wheels DIR"


def test_faults(device: Device) -> None:
    found = taken(faults.prove)
    assert set(verdicts(found).values()) == {PASS}
    assert found["a kernel that traps is an error that stays"].measured == "error 719"


def test_a_trap_that_nobody_notices_is_found_out(
    device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(fake_gpu_driver.KERNELS, b"trap_now", lambda: None)
    assert failing(faults.prove) == [
        "a kernel that traps is an error that stays",
        "and naiad's worker ends of it",
    ]


# --- Memory --------------------------------------------------------------------------------------

LAZY = "an empty worker, CUDA_MODULE_LOADING=LAZY"
MPS = "an empty worker under MPS, beside another"


def test_the_memory_of_an_empty_worker(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    """3 MiB are gone while another process lives; of the one before, a part is still gone."""
    free = iter([90, 92, 92, 89, 90, 92, 92, 89])
    monkeypatch.setattr(
        fake_gpu, "cudaMemGetInfo", lambda: (*SUCCESS, next(free) << 20, 1 << 30), raising=False
    )
    monkeypatch.setenv("PATH", "/nowhere")
    found = taken(context_memory.measure)
    assert found[LAZY].value == 3
    assert found["an empty worker, =EAGER"].value == 3
    assert found[MPS].reason == "no nvidia-cuda-mps-control on PATH"


DAEMON = """\
#!/usr/bin/env bash
# What nvidia-cuda-mps-control does: with -f it serves, until it is told to quit by another.
cd "$CUDA_MPS_PIPE_DIRECTORY"
if [ "${1:-}" = -f ]; then
    mkfifo control
    read -r _ <control
    touch ended
    exit 0
fi
case "$(cat)" in
    get_server_list) cat "$SERVERS" ;;
    quit) echo quit >control ;;
esac
"""


@pytest.mark.parametrize("servers", ["4711", ""])
def test_the_memory_under_mps(
    device: Device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, servers: str
) -> None:
    daemon = tmp_path / context_memory.DAEMON
    daemon.write_text(DAEMON)
    daemon.chmod(0o755)
    (tmp_path / "servers").write_text(servers)
    monkeypatch.setenv("SERVERS", str(tmp_path / "servers"))
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    row = taken(context_memory.measure)[MPS]
    if servers:
        assert (row.verdict, row.value) == (PASS, 0)
    else:
        assert (row.verdict, row.reason) == (
            SKIPPED, "the process did not become a client of MPS",
        )  # fmt: skip


def test_an_mps_that_does_not_start(
    device: Device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    daemon = tmp_path / context_memory.DAEMON
    daemon.write_text("#!/bin/sh\nexit 1\n")
    daemon.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    row = taken(context_memory.measure)[MPS]
    assert row.verdict == SKIPPED
    assert "MPS does not run here: nvidia-cuda-mps-control -f made no" in row.reason
