"""The stock asyncio client: every call, streams and cancellation."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
import tritonclient.grpc.aio as triton

from support.grpc_models import floats
from support.waiting import wait_until


def run(target: str, work: Callable[[Any], Awaitable[None]]) -> None:
    async def main() -> None:
        async with triton.InferenceServerClient(target) as client:
            await work(client)

    asyncio.run(main())


def test_queries(target: str) -> None:
    async def work(client: Any) -> None:
        assert await client.is_server_live()
        assert await client.is_server_ready()
        assert await client.is_model_ready("echo_fp32")
        assert not await client.is_model_ready("nobody")
        assert (await client.get_server_metadata()).version
        assert (await client.get_model_metadata("batched")).name == "batched"
        assert (await client.get_model_config("batched")).config.max_batch_size == 8
        assert (await client.get_inference_statistics("batched")).model_stats[0].version == "1"
        names = [row.name for row in (await client.get_model_repository_index()).models]
        assert "batched" in names
        assert len((await client.get_system_shared_memory_status()).regions) == 0
        assert len((await client.get_cuda_shared_memory_status()).regions) == 0
        await client.unregister_system_shared_memory()
        await client.unregister_cuda_shared_memory()

    run(target, work)


def test_load_and_unload(target: str) -> None:
    async def work(client: Any) -> None:
        config = (await client.get_model_config("echo_uint16", as_json=True))["config"]
        await client.unload_model("echo_uint16")
        assert not await client.is_model_ready("echo_uint16")
        await client.load_model("echo_uint16", config=json.dumps(config))
        assert await client.is_model_ready("echo_uint16")

    run(target, work)


def test_many_at_once(target: str) -> None:
    async def work(client: Any) -> None:
        results = await asyncio.gather(
            *[client.infer("echo_fp32", floats(value)) for value in range(200)]
        )
        assert [float(one.as_numpy("OUTPUT0")[0]) for one in results] == list(range(200))

    run(target, work)


def test_a_cancelled_call(target: str, under_way: Callable[[], int]) -> None:
    async def work(client: Any) -> None:
        call = asyncio.create_task(
            client.infer("echo_fp32", floats(1), parameters={"sleep_ms": 60_000})
        )
        await asyncio.to_thread(wait_until, lambda: under_way() == 1, "the request under way")
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call

    run(target, work)
    wait_until(lambda: under_way() == 0, "the request gone")


def test_a_stream(target: str) -> None:
    async def requests() -> AsyncIterator[dict[str, Any]]:
        yield {"model_name": "echo_fp32", "inputs": floats(1)}
        yield {"model_name": "nobody", "inputs": floats(2)}
        yield {"model_name": "echo_fp32", "inputs": floats(3)}

    async def work(client: Any) -> None:
        found = []
        async for result, error in client.stream_infer(requests()):
            found.append(str(error) if error else float(result.as_numpy("OUTPUT0")[0]))
        assert found[0] == 1
        assert "'nobody' is not found" in str(found[1])
        assert found[2] == 3

    run(target, lambda client: asyncio.wait_for(work(client), 15))
