"""Large JSON, read and written by a process beside the gateway.

Whatever reads 60 MB of numbers holds the interpreter lock meanwhile, for seconds, and everybody
else of the same gateway would wait. The process is started when it is needed, has one piece of work
at a time, and ends when there was none for a while, which returns its memory.
"""

from __future__ import annotations

import asyncio
import ctypes
import signal
from collections.abc import Callable
from concurrent.futures import BrokenExecutor, Executor
from typing import Any, Final, TypeVar

from naiad.gateway.calls import InferCall
from naiad.gateway.http_request import infer_call
from naiad.gateway.json_tensors import from_json, to_json
from naiad.gateway.pending import over_budget
from naiad.protocol.errors import Code, NaiadError, Unavailable, error_from_wire

TEXT_BYTES_MIN: Final = 512 * 1024
"""Of a request's JSON; smaller ones are read at once, in some tens of milliseconds."""
TENSOR_BYTES_MIN: Final = 256 * 1024
"""Of an output that is written as JSON, likewise."""
WAITING_MAX: Final = 16
"""Pieces of work that are under way or wait; beyond, requests are refused."""
IDLE_SECONDS: Final = 30.0
_PR_SET_PDEATHSIG: Final = 1

T = TypeVar("T")


class LargeJson:
    """`call`, `text`; `close` at the end."""

    def __init__(self) -> None:
        self._pool: Executor | None = None
        self._was_used = False
        self._count = 0
        self._idle: asyncio.TimerHandle | None = None

    async def call(
        self, model: str, version: int, body: bytes, length: int, limit_bytes: int
    ) -> InferCall:
        """What `infer_call` makes of a body. Raises NaiadError."""
        return await self._run(_call, model, version, body, length, limit_bytes)

    async def text(self, name: str, datatype: str, shape: tuple[int, ...], data: bytes) -> bytes:
        """What `to_json` makes of an output. Raises RequestError."""
        return await self._run(_text, name, datatype, shape, data)

    async def _run(self, work: Callable[..., T | _Failed], *given: Any) -> T:
        if self._count >= WAITING_MAX:
            raise over_budget(
                f"{self._count} requests or answers with large JSON are under way in this gateway,"
                f" at most {WAITING_MAX}; use binary data"
            )
        loop = asyncio.get_running_loop()
        if self._idle is not None:
            self._idle.cancel()
        self._count += 1
        try:
            if self._pool is None:
                self._pool = _new_pool()
                self._was_used = True
            found = await loop.run_in_executor(self._pool, work, *given)
        except BrokenExecutor as fault:
            self._pool = None
            raise Unavailable(
                "the process that reads and writes large JSON died; use binary data",
                code=Code.WORKER_DIED,
            ) from fault
        finally:
            self._count -= 1
            if not self._count:
                self._idle = loop.call_later(IDLE_SECONDS, self._end_process)
        if isinstance(found, _Failed):
            raise error_from_wire(found.wire)
        return found

    def _end_process(self) -> None:
        pool, self._pool = self._pool, None
        if pool is not None:
            pool.shutdown(wait=False, cancel_futures=True)

    def close(self) -> None:
        """Nobody waits for it any more."""
        if self._idle is not None:
            self._idle.cancel()
        self._end_process()
        if self._was_used:
            from multiprocessing import active_children

            for child in active_children():
                child.kill()


def _new_pool() -> Executor:
    # Only here: most gateways never need these modules, and each start would take longer.
    from concurrent.futures import ProcessPoolExecutor
    from multiprocessing import get_context

    return ProcessPoolExecutor(1, get_context("spawn"), _begin)


class _Failed:
    """An error as it travels between the processes."""

    def __init__(self, fault: NaiadError) -> None:
        self.wire = fault.wire()


# --- in the process beside -----------------------------------------------------------------------


def _begin() -> None:
    """End with the gateway, and only then: signals are for it to handle."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)


def _call(
    model: str, version: int, body: bytes, length: int, limit_bytes: int
) -> InferCall | _Failed:
    try:
        call = infer_call(model, version, body, length, from_json, limit_bytes, None)
    except NaiadError as fault:
        return _Failed(fault)
    inputs = [
        one._replace(data=bytes(one.data)) if isinstance(one.data, memoryview) else one
        for one in call.inputs
    ]
    return call._replace(inputs=tuple(inputs))


def _text(name: str, datatype: str, shape: tuple[int, ...], data: bytes) -> bytes | _Failed:
    try:
        return to_json(name, datatype, shape, memoryview(data))
    except NaiadError as fault:
        return _Failed(fault)
