"""A plain closed loop over tritonclient.grpc.aio, run by an interpreter that has tritonclient.

    python grpc_aio.py HOST:PORT MODEL IN_FLIGHT SECONDS

One process, one channel, IN_FLIGHT coroutines; one line of JSON: requests, seconds, p50, p90 and
p99 in microseconds, errors.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time

import numpy as np
import tritonclient.grpc.aio as grpc

SHAPE = (1, 16)
WARM_UP_REQUESTS = 200


async def main(address: str, model: str, in_flight: int, seconds: float) -> None:
    array = np.random.default_rng(1).random(SHAPE, dtype=np.float32)
    latencies: list[float] = []
    errors = 0
    async with grpc.InferenceServerClient(address) as client:
        given = grpc.InferInput("INPUT0", list(SHAPE), "FP32")
        given.set_data_from_numpy(array)
        wanted = [grpc.InferRequestedOutput("OUTPUT0")]
        for _ in range(WARM_UP_REQUESTS):
            answer = (await client.infer(model, [given], outputs=wanted)).as_numpy("OUTPUT0")
        if not np.array_equal(answer, array):
            raise SystemExit(f"wrong answer: {answer}")
        begin = time.perf_counter()
        end = begin + seconds

        async def one_after_another() -> None:
            nonlocal errors
            while (before := time.perf_counter()) < end:
                try:
                    (await client.infer(model, [given], outputs=wanted)).as_numpy("OUTPUT0")
                except Exception:
                    errors += 1
                    await asyncio.sleep(0.01)
                else:
                    latencies.append(time.perf_counter() - before)

        await asyncio.gather(*[one_after_another() for _ in range(in_flight)])
        took = time.perf_counter() - begin
    latencies.sort()
    quantiles = [latencies[int(len(latencies) * q)] * 1e6 for q in (0.5, 0.9, 0.99)]
    print(json.dumps([len(latencies), took, *quantiles, errors]))


asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3]), float(sys.argv[4])))
