"""Regions of GPU memory in the broker: by name and of a session, beside those of segments."""

from __future__ import annotations

from typing import Any

import pytest

from naiad.broker.core import events as e
from naiad.broker.core.closings import CLOSE_NS
from naiad.protocol import messages as m
from naiad.protocol.errors import Code
from naiad.shm.cuda.key import cuda_region, parsed
from support.simulated_bench import CLIENT, Bench, config

HANDLE = bytes(range(64))
GPUS = ("gpu:GPU-a", "gpu:GPU-b")


def bench_of(gpus: tuple[str, ...] = GPUS) -> Bench:
    bench = Bench(gpus=gpus)
    bench.served(config())
    bench.client()
    return bench


def registered(bench: Bench, name: str, **fields: Any) -> Any:
    """The id, or the error."""
    given: dict[str, Any] = {"raw_handle": HANDLE.hex(), "byte_size": 4096, "device_id": 1}
    arguments = {"name": name, **given, **fields}
    bench.do(e.ControlAsked(CLIENT, 5, "region_register_cuda", arguments, b""))
    error, result = bench.replies[CLIENT, 5]
    return result["id"] if error is None else error.wire()


def asked(bench: Bench, operation: str, **arguments: Any) -> Any:
    """What it answers, or its error."""
    bench.do(e.ControlAsked(CLIENT, 6, operation, arguments, b""))
    error, result = bench.replies[CLIENT, 6]
    return result if error is None else error.wire()


def system(bench: Bench, name: str) -> None:
    region = m.Region(0, f"/{name}", 1, 2, 4096)
    bench.do(e.NamedRegionStated(CLIENT, 3, name, region, None, 0, 64))


def placed(bench: Bench, ident: int, region_id: int, offset: int = 0, size: int = 4) -> None:
    tensor = m.Tensor("X", "UINT8", (4,), int(m.Place.REGION), region_id, offset, size)
    request = bench.request(ident, inputs=(tensor,))
    bench.do(e.RequestsArrived(CLIENT, (request,), []))


def test_a_region_by_name_reaches_a_worker_with_its_handle() -> None:
    bench = bench_of()
    number = registered(bench, "weights")
    placed(bench, 1, number, offset=4000)
    ((batch,),) = [batches for batches in bench.batches.values() if batches]
    (region,) = batch.regions
    assert parsed(region.key) == (HANDLE, b"", "weights")
    assert (region.id, region.device, region.size) == (number, 1, 4096)
    assert batch.requests[0].inputs[0].offset == 4000


def test_ranges_are_held_against_what_was_registered() -> None:
    bench = bench_of()
    placed(bench, 1, registered(bench, "weights"), offset=4093)
    assert "ends at 4097, the region has 4096 bytes" in bench.error(1)[1]


def test_status_tells_of_each_kind_what_it_is_and_shows_no_handle() -> None:
    bench = bench_of()
    number = registered(bench, "weights")
    system(bench, "segment")
    row = {"name": "weights", "kind": "cuda", "device_id": 1, "byte_size": 4096, "id": number}
    assert asked(bench, "region_status", kind="cuda") == [row]
    assert asked(bench, "region_status", name="weights") == [row]
    assert [one["name"] for one in asked(bench, "region_status", kind="system")] == ["segment"]
    assert {one["kind"] for one in asked(bench, "region_status")} == {"cuda", "system"}
    assert HANDLE.hex() not in repr(asked(bench, "region_status"))


@pytest.mark.parametrize(
    ("name", "kind", "text"),
    [
        ("weights", "system", "is registered as CUDA shared memory, not system shared memory"),
        ("segment", "cuda", "is registered as system shared memory, not CUDA shared memory"),
        ("nothing", "cuda", "Unable to find cuda shared memory region: 'nothing'"),
        ("nothing", "system", "Unable to find system shared memory region: 'nothing'"),
    ],
)
def test_a_region_of_the_other_kind_is_not_found(name: str, kind: str, text: str) -> None:
    bench = bench_of()
    registered(bench, "weights")
    system(bench, "segment")
    code, message, _ = asked(bench, "region_status", name=name, kind=kind)
    assert code == Code.NOT_FOUND
    assert text in message


def test_unregistering_touches_only_its_kind() -> None:
    bench = bench_of()
    registered(bench, "weights")
    system(bench, "segment")
    assert asked(bench, "region_unregister", name="weights", kind="system") == {}
    assert asked(bench, "region_unregister", kind="system") == {}
    assert [one["name"] for one in asked(bench, "region_status")] == ["weights"]
    assert asked(bench, "region_unregister", kind="cuda") == {}
    assert asked(bench, "region_status") == []


def test_both_kinds_share_their_names() -> None:
    bench = bench_of()
    system(bench, "one")
    assert registered(bench, "one")[0] == Code.ALREADY_EXISTS
    registered(bench, "two")
    assert registered(bench, "two")[:2] == (
        Code.ALREADY_EXISTS,
        "shared memory region 'two' already in manager",
    )
    system(bench, "two")
    fault = bench.replies[CLIENT, 3][0]
    assert fault is not None
    assert fault.code is Code.ALREADY_EXISTS


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        (
            {"raw_handle": HANDLE.hex()[:-2]},
            "'raw_handle' must be a cudaIpcMemHandle_t of 64 bytes",
        ),
        ({"raw_handle": "z" * 128}, "'raw_handle' must be a cudaIpcMemHandle_t of 64 bytes"),
        ({"raw_handle": ""}, "raw_handle: expected a non-empty string"),
        ({"byte_size": 0}, "invalid args: byte_size 0"),
        ({"byte_size": 2**50}, "expected a size from 1"),
        ({"byte_size": -1}, "byte_size: expected a number of at least 0"),
        ({"device_id": 2}, "'bad', there is no GPU 2: expected a device_id of 0 to 1"),
        ({"device_id": -1}, "device_id: expected a number of at least 0"),
        ({"name": ""}, "name: expected a non-empty string"),
    ],
)
def test_wrong_registrations_are_refused(fields: dict[str, Any], text: str) -> None:
    bench = bench_of()
    error = registered(bench, **{"name": "bad", **fields})
    assert error[0] == Code.INVALID_ARGUMENT
    assert text in error[1]
    assert HANDLE.hex()[:32] not in error[1]
    assert asked(bench, "region_status") == []


def test_a_server_without_gpus_answers_as_triton_without() -> None:
    bench = bench_of(())
    text = "failed to register CUDA shared memory region: 'r', GPUs not supported"
    assert registered(bench, "r") == (Code.INVALID_ARGUMENT, text, False)
    assert "cuda_shared_memory" not in asked(bench, "server_metadata")["extensions"]
    assert "cuda_shared_memory" in asked(bench_of(), "server_metadata")["extensions"]


def test_a_region_survives_the_broker_with_its_handle() -> None:
    bench = bench_of()
    registered(bench, "weights")
    before = bench.control("region_status")
    again = bench.restarted()
    assert again.control("region_status") == before
    ((name, region),) = [(n, one.region) for n, one in again.world.named_regions.items()]
    assert (name, parsed(region.key).memory) == ("weights", HANDLE)


def test_unregistering_cancels_what_uses_it_and_tells_workers() -> None:
    bench = bench_of()
    number = registered(bench, "weights")
    placed(bench, 1, number)
    bench.do(e.ControlAsked(CLIENT, 6, "region_unregister", {"name": "weights"}, b""))
    assert bench.error(1)[0] == Code.CANCELLED
    (slot,) = bench.batches
    assert m.Forget((number,)) in bench.told[slot]


# --- of a session ------------------------------------------------------------------------------


def offered(bench: Bench, device: int = 0) -> Any:
    region = cuda_region(HANDLE, 4096, device, "mine", event=HANDLE, region_id=1)
    bench.do(e.RegionOffered(CLIENT, 90, region, None))
    return bench.replies[CLIENT, 90][0]


def test_a_session_has_regions_of_its_own_which_end_with_it() -> None:
    bench = bench_of()
    assert offered(bench) is None
    placed(bench, 1, 1)
    (slot,) = bench.batches
    (region,) = bench.batches[slot][0].regions
    assert parsed(region.key) == (HANDLE, HANDLE, "mine")
    bench.finish(slot)
    bench.do(e.SessionEnded(CLIENT))
    assert m.Forget((region.id,)) in bench.told[slot]


UUIDS = ("gpu:GPU-0a", "gpu:MIG-0B12", "gpu:MIG-GPU-0c/1/0")


def of_gpu(uuid: str, *, gpus: tuple[str, ...] = UUIDS) -> tuple[Bench, Any]:
    """What is answered to a client that has memory on its GPU 7."""
    bench = bench_of(gpus)
    region = cuda_region(HANDLE, 4096, 7, "mine", region_id=1)
    bench.do(e.RegionOffered(CLIENT, 90, region, None, uuid))
    return bench, bench.replies[CLIENT, 90][0]


@pytest.mark.parametrize(("uuid", "number"), [("0a00-1", 0), ("0b12", 1), ("0B12-34", 1)])
def test_a_sessions_region_is_on_the_gpu_of_its_uuid(uuid: str, number: int) -> None:
    bench, fault = of_gpu(uuid)
    assert fault is None
    assert [region.device for region in bench.world.regions.values()] == [number]
    again = cuda_region(HANDLE, 4096, 7, "mine", region_id=1)
    bench.do(e.RegionOffered(CLIENT, 91, again, None, uuid))
    assert bench.replies[CLIENT, 91][0] is None, "the same, told again"


@pytest.mark.parametrize("uuid", ["0b", "0c00-1", "1", "\x1b[31m" * 30])
def test_a_gpu_that_is_none_of_the_servers_is_refused_with_those_that_are(uuid: str) -> None:
    _, fault = of_gpu(uuid)
    assert fault.code is Code.INVALID_ARGUMENT
    assert "'mine', it is on the GPU with the UUID" in fault.message
    assert "this server's: 0 GPU-0a, 1 MIG-0B12, 2 MIG-GPU-0c/1/0" in fault.message
    assert "\x1b" not in fault.message
    assert len(fault.message) < 400


def test_without_gpus_no_uuid_is_looked_for() -> None:
    assert of_gpu("0a", gpus=())[1].message.endswith("'mine', GPUs not supported")


@pytest.mark.parametrize(
    ("gpus", "text"),
    [((), "'mine', GPUs not supported"), (GPUS, "there is no GPU 2: expected a device_id of 0")],
)
def test_a_sessions_region_needs_its_gpu(gpus: tuple[str, ...], text: str) -> None:
    assert text in offered(bench_of(gpus), device=2).message


# --- when it may be freed ----------------------------------------------------------------------


def unregistering(bench: Bench, *, by_name: bool) -> tuple[int, m.Region]:
    """A request has used the region, and it is being unregistered: the worker, the region."""
    ident = registered(bench, "g") if by_name else 1
    assert by_name or offered(bench) is None
    placed(bench, 1, ident)
    (slot,) = bench.batches
    (region,) = bench.batches[slot][0].regions
    bench.finish(slot)
    bench.replies.clear()
    bench.do(
        e.ControlAsked(CLIENT, 7, "region_unregister", {"name": "g"}, b"")
        if by_name
        else e.RegionDropped(CLIENT, 7, 1)
    )
    assert m.Forget((region.id,)) in bench.told[slot]
    return slot, region


@pytest.mark.parametrize("by_name", [True, False])
def test_the_reply_comes_when_the_worker_has_closed_it(by_name: bool) -> None:
    bench = bench_of()
    slot, region = unregistering(bench, by_name=by_name)
    bench.do(e.RegionsForgotten(slot, (region.id + 1,)))
    assert bench.replies == {}
    bench.do(e.RegionsForgotten(slot, (region.id,)))
    assert bench.replies[CLIENT, 7] == (None, {})


@pytest.mark.parametrize("by_name", [True, False])
def test_the_reply_comes_when_the_worker_is_dead(by_name: bool) -> None:
    bench = bench_of()
    slot, _ = unregistering(bench, by_name=by_name)
    bench.dies(slot)
    assert bench.replies[CLIENT, 7] == (None, {})


def test_the_reply_does_not_wait_for_ever() -> None:
    bench = bench_of()
    unregistering(bench, by_name=True)
    bench.wait(CLOSE_NS - 1)
    assert bench.replies == {}
    bench.wait(1)
    assert bench.replies[CLIENT, 7] == (None, {})


def test_nobody_waits_for_what_no_worker_has_opened() -> None:
    bench = bench_of()
    registered(bench, "g")
    assert asked(bench, "region_unregister", name="g") == {}
