"""One client process of the kill matrix: asks without pause, checks every answer, tells the sum.

`python -m support.chaos_client RUN_DIR MODEL blocking|asyncio INDEX IN_FLIGHT OPTIONS` says
"ready" after its first answer, goes on until its stdin ends, and prints a `Tally` as one line of
JSON. Each request carries a token that no other has; its answer must carry the same one.
"""

from __future__ import annotations

import asyncio
import json
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from naiad.client import AsyncClient, Client, NaiadError

VALUES_PER_REQUEST: Final = 16
SLOW_NS: Final = 20_000_000
"""Requests that took longer are reported one by one, so that a pause can be laid to its cause."""
SLOW_MAX: Final = 100_000
LATENCIES_MAX: Final = 1_000_000
ERRORS_KEPT_MAX: Final = 20
CONNECT_TIMEOUT_S: Final = 60.0

Token = NDArray[np.float32]


@dataclass
class Tally:
    """What became of one process's requests. `slow` holds (start, end) in monotonic ns."""

    sent: int = 0
    right: int = 0
    wrong: int = 0
    failed: int = 0
    errors: list[str] = field(default_factory=list)
    slow: list[tuple[int, int]] = field(default_factory=list)
    latencies_us: list[int] = field(default_factory=list)


class Asker:
    """Makes tokens and judges answers; used by several threads."""

    def __init__(self, model: str, index: int, options: Mapping[str, Any]) -> None:
        self.model = model
        self.options = dict(options)
        self.tally = Tally()
        self.is_stopping = False
        self._index = index
        self._lock = threading.Lock()

    def begin(self) -> tuple[int, Token]:
        """(now, token): the process's number and a count, all exact in FP32."""
        with self._lock:
            self.tally.sent += 1
            token = np.full((1, VALUES_PER_REQUEST), self.tally.sent, np.float32)
        token[0, 0] = self._index
        return time.monotonic_ns(), token

    def end(self, start_ns: int, token: Token, answer: Token | NaiadError) -> None:
        end_ns = time.monotonic_ns()
        tally = self.tally
        with self._lock:
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


def ask_blocking(asker: Asker, client: Client, in_flight: int) -> None:
    """In threads, so that sharing one client is tried as well."""

    def ask() -> None:
        while not asker.is_stopping:
            start_ns, token = asker.begin()
            answer: Token | NaiadError
            try:
                answer = client.infer(asker.model, {"INPUT0": token}, **asker.options)["OUTPUT0"]
            except NaiadError as fault:
                answer = fault
            asker.end(start_ns, token, answer)

    threads = [threading.Thread(target=ask) for _ in range(in_flight)]
    for thread in threads:
        thread.start()
    sys.stdin.read()
    asker.is_stopping = True
    for thread in threads:
        thread.join()


async def ask_async(asker: Asker, client: AsyncClient, in_flight: int) -> None:
    """In tasks of one event loop."""

    async def ask() -> None:
        while not asker.is_stopping:
            start_ns, token = asker.begin()
            answer: Token | NaiadError
            try:
                result = await client.infer(asker.model, {"INPUT0": token}, **asker.options)
                answer = result["OUTPUT0"]
            except NaiadError as fault:
                answer = fault
            asker.end(start_ns, token, answer)

    async with client:
        tasks = [asyncio.create_task(ask()) for _ in range(in_flight)]
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
        asker.is_stopping = True
        await asyncio.gather(*tasks)


def main() -> None:
    run_dir, model, kind, index, in_flight, options = sys.argv[1:]
    asker = Asker(model, int(index), json.loads(options))
    if kind == "blocking":
        with Client(run_dir, connect_timeout_s=CONNECT_TIMEOUT_S, role="chaos") as client:
            ask_blocking(asker, client, int(in_flight))
    else:
        other = AsyncClient(run_dir, connect_timeout_s=CONNECT_TIMEOUT_S, role="chaos")
        asyncio.run(ask_async(asker, other, int(in_flight)))
    print(json.dumps(asdict(asker.tally)), flush=True)


if __name__ == "__main__":
    main()
