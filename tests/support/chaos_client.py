"""One client process of the kill matrix: asks without pause, checks every answer, tells the sum.

`python -m support.chaos_client RUN_DIR MODEL blocking|asyncio INDEX IN_FLIGHT VALUES TRANSPORT`
says "ready" after its first answer, goes on until its stdin ends, and prints a `Tally` as a line of
JSON. Each request carries a token that no other has; its answer must carry the same one.
"""

from __future__ import annotations

import asyncio
import json
import sys
import threading
import time
from dataclasses import asdict, dataclass, field
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from naiad.client import AsyncClient, Client, ClientRegion, NaiadError

SLOW_NS: Final = 20_000_000
"""Requests that took longer are reported one by one, so that a pause can be laid to its cause."""
SLOW_MAX: Final = 100_000
LATENCIES_MAX: Final = 1_000_000
ERRORS_KEPT_MAX: Final = 20
CONNECT_TIMEOUT_S: Final = 60.0
CANARY_BYTES: Final = 256
CANARY: Final = 0xA5

Token = NDArray[np.float32]


@dataclass
class Tally:
    """What became of one process's requests. `slow` holds (start, end) in monotonic ns.

    `trespasses`: how often bytes beside an output's place were found changed.
    """

    sent: int = 0
    right: int = 0
    wrong: int = 0
    failed: int = 0
    trespasses: int = 0
    errors: list[str] = field(default_factory=list)
    slow: list[tuple[int, int]] = field(default_factory=list)
    latencies_us: list[int] = field(default_factory=list)


class Asker:
    """Makes tokens and judges answers; used by several threads."""

    def __init__(self, model: str, index: int, values: int) -> None:
        self.model = model
        self.values = values
        self.tally = Tally()
        self.is_stopping = False
        self._index = index
        self._lock = threading.Lock()

    def begin(self) -> tuple[int, Token]:
        """(now, token): the process's number and a count, all exact in FP32."""
        with self._lock:
            self.tally.sent += 1
            token = np.full((1, self.values), self.tally.sent, np.float32)
        token[0, 0] = self._index
        return time.monotonic_ns(), token

    def end(self, start_ns: int, token: Token, answer: Token | NaiadError, trespass: bool) -> None:
        end_ns = time.monotonic_ns()
        tally = self.tally
        with self._lock:
            tally.trespasses += trespass
            if isinstance(answer, NaiadError):
                tally.failed += 1
                if len(tally.errors) < ERRORS_KEPT_MAX:
                    tally.errors.append(f"{answer.code}: {answer.message}")
            elif np.array_equal(answer, token):
                tally.right += 1
            else:
                tally.wrong += 1
            if len(tally.latencies_us) < LATENCIES_MAX:
                tally.latencies_us.append((end_ns - start_ns) // 1000)
            if end_ns - start_ns > SLOW_NS and len(tally.slow) < SLOW_MAX:
                tally.slow.append((start_ns, end_ns))
            if tally.right == 1:
                print("ready", flush=True)


class Plot:
    """Memory of one lane: canary, input, canary, output, canary. Used again for each request.

    So the result of an execution that should have been dead meets the next request's place.
    """

    def __init__(self, region: ClientRegion, size: int) -> None:
        self._region = region
        self._size = size
        self._in_at = CANARY_BYTES
        self._out_at = self._in_at + size + CANARY_BYTES
        self._bytes = region.array("UINT8", (region.size,))
        self._bytes[:] = CANARY

    @staticmethod
    def bytes_for(size: int) -> int:
        return 2 * size + 3 * CANARY_BYTES

    def plant(self, token: Token) -> dict[str, Any]:
        """Arguments of `infer` for a request that reads and writes here."""
        shape = token.shape
        self._region.array("FP32", shape, self._in_at)[:] = token
        self._bytes[self._out_at : self._out_at + self._size] = CANARY
        return {
            "inputs": [self._region.input("INPUT0", "FP32", shape, self._in_at)],
            "outputs": {"OUTPUT0": self._region.place(self._out_at, self._size)},
        }

    def is_trespassed(self) -> bool:
        edges = (0, self._in_at + self._size, self._out_at + self._size)
        return any((self._bytes[at : at + CANARY_BYTES] != CANARY).any() for at in edges)


def arguments(token: Token, plot: Plot | None) -> dict[str, Any]:
    return {"inputs": {"INPUT0": token}} if plot is None else plot.plant(token)


def ask_blocking(asker: Asker, client: Client, in_flight: int, shared: bool) -> None:
    """In threads, so that sharing one client is tried as well."""
    size = asker.values * 4

    def ask(plot: Plot | None) -> None:
        while not asker.is_stopping:
            start_ns, token = asker.begin()
            answer: Token | NaiadError
            try:
                answer = client.infer(asker.model, **arguments(token, plot))["OUTPUT0"]
            except NaiadError as fault:
                answer = fault
            asker.end(start_ns, token, answer, plot is not None and plot.is_trespassed())

    threads = []
    for number in range(in_flight):
        # Every second one leaves the places to the client and the server.
        is_planted = shared and number % 2 == 0
        plot = Plot(client.region(Plot.bytes_for(size)), size) if is_planted else None
        threads.append(threading.Thread(target=ask, args=(plot,)))
    for thread in threads:
        thread.start()
    sys.stdin.read()
    asker.is_stopping = True
    for thread in threads:
        thread.join()


async def ask_async(asker: Asker, client: AsyncClient, in_flight: int, shared: bool) -> None:
    """In tasks of one event loop."""
    size = asker.values * 4

    async def ask(plot: Plot | None) -> None:
        while not asker.is_stopping:
            start_ns, token = asker.begin()
            answer: Token | NaiadError
            try:
                result = await client.infer(asker.model, **arguments(token, plot))
                answer = result["OUTPUT0"]
            except NaiadError as fault:
                answer = fault
            asker.end(start_ns, token, answer, plot is not None and plot.is_trespassed())

    async with client:
        tasks = []
        for number in range(in_flight):
            is_planted = shared and number % 2 == 0
            plot = Plot(await client.region(Plot.bytes_for(size)), size) if is_planted else None
            tasks.append(asyncio.create_task(ask(plot)))
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
        asker.is_stopping = True
        await asyncio.gather(*tasks)


def main() -> None:
    run_dir, model, kind, index, in_flight, values, transport = sys.argv[1:]
    assert transport in ("inline", "shm")
    asker = Asker(model, int(index), int(values))
    options: dict[str, Any] = {
        "connect_timeout_s": CONNECT_TIMEOUT_S, "role": "chaos", "transport": transport,
    }  # fmt: skip
    if kind == "blocking":
        with Client(run_dir, **options) as client:
            ask_blocking(asker, client, int(in_flight), transport == "shm")
    else:
        other = AsyncClient(run_dir, **options)
        asyncio.run(ask_async(asker, other, int(in_flight), transport == "shm"))
    print(json.dumps(asdict(asker.tally)), flush=True)


if __name__ == "__main__":
    main()
