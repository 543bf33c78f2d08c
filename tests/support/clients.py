"""The clients behind one interface, and the broker they talk to, for tests/contract/client."""

from __future__ import annotations

import asyncio
import atexit
import functools
import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from naiad.client import AsyncClient, Client
from naiad.client.control import Operation

ROOT = Path(__file__).resolve().parents[2]
PATIENCE_S = 20.0


@functools.cache
def nursery() -> subprocess.Popen[str]:
    """The process that brokers are forked from; it ends with this one."""
    environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT / 'tests'}"}
    process = subprocess.Popen(
        [sys.executable, "-m", "support.echo_broker", "--nurse"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=environment,
        text=True,
    )
    atexit.register(end, process)
    return process


def end(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.close()
    process.stdout.close()
    process.wait()


class Broker:
    """support.echo_broker in a process of its own."""

    def __init__(self, run_dir: Path) -> None:
        self.run_dir = run_dir
        self.pid = 0

    def start(self, *options: str) -> Broker:
        nurse = nursery()
        assert nurse.stdin is not None
        assert nurse.stdout is not None
        nurse.stdin.write(json.dumps(["--run-dir", str(self.run_dir), *options]) + "\n")
        nurse.stdin.flush()
        word, pid = nurse.stdout.readline().split()
        assert word == "ready"
        self.pid = int(pid)
        return self

    def kill(self, number: int = signal.SIGKILL) -> None:
        """Send a signal, and return when the process is gone."""
        pid, self.pid = self.pid, 0
        if pid:
            descriptor = os.pidfd_open(pid)
            os.kill(pid, number)
            assert select.select([descriptor], [], [], PATIENCE_S)[0]
            os.close(descriptor)

    def stop(self) -> None:
        """Let it clean up (its segment)."""
        self.kill(signal.SIGTERM)


class Caller:
    """The same words for both clients; everything blocks."""

    client: Any

    def infer(self, *args: Any, **options: Any) -> Any:
        raise NotImplementedError

    def together(self, calls: list[tuple[Any, ...]], **options: Any) -> list[Any]:
        """Results or exceptions of requests that are in flight at the same time."""
        raise NotImplementedError

    def call(self, operation: str) -> Any:
        return self.do("call", Operation(operation))

    def do(self, method: str, *args: Any, **options: Any) -> Any:
        """Any other method of the client."""
        raise NotImplementedError

    def begin(self, *args: Any) -> None:
        """Begin a request and let it reach the broker; nobody looks at its answer."""
        raise NotImplementedError

    def abandon(self, *args: Any) -> None:
        """Begin a request, let it reach the broker, and cancel it."""
        raise NotImplementedError

    def close(self) -> None:
        raise NotImplementedError

    @property
    def session(self) -> Any:
        raise NotImplementedError

    @property
    def connection(self) -> Any:
        raise NotImplementedError


class BlockingCaller(Caller):
    def __init__(self, run_dir: Path, **options: Any) -> None:
        self.client = Client(run_dir, **options)

    def infer(self, *args: Any, **options: Any) -> Any:
        return self.client.infer(*args, **options)

    def together(self, calls: list[tuple[Any, ...]], **options: Any) -> list[Any]:
        futures = [self.client.submit(*args, **options) for args in calls]
        return [future.exception(PATIENCE_S) or future.result() for future in futures]

    def do(self, method: str, *args: Any, **options: Any) -> Any:
        return getattr(self.client, method)(*args, **options)

    def begin(self, *args: Any) -> None:
        self.client.submit(*args)
        self.client.live()  # what was submitted before is with the broker now

    def abandon(self, *args: Any) -> None:
        future = self.client.submit(*args)
        self.client.live()
        assert future.cancel()

    def close(self) -> None:
        self.client.close()

    @property
    def session(self) -> Any:
        return self.client._blocking.driver.session

    @property
    def connection(self) -> Any:
        return self.client._blocking.driver.connection


class AsyncCaller(Caller):
    def __init__(self, loop: asyncio.AbstractEventLoop, run_dir: Path, **options: Any) -> None:
        self.loop = loop
        self.client = AsyncClient(run_dir, **options)
        self.begun: list[asyncio.Task[Any]] = []

    def run(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        return self.loop.run_until_complete(asyncio.wait_for(coroutine, PATIENCE_S))

    def infer(self, *args: Any, **options: Any) -> Any:
        return self.run(self.client.infer(*args, **options))

    def together(self, calls: list[tuple[Any, ...]], **options: Any) -> list[Any]:
        async def gathered() -> list[Any]:
            begun = [self.client.infer(*args, **options) for args in calls]
            return await asyncio.gather(*begun, return_exceptions=True)

        result: list[Any] = self.run(gathered())
        return result

    def do(self, method: str, *args: Any, **options: Any) -> Any:
        return self.run(getattr(self.client, method)(*args, **options))

    def begin(self, *args: Any) -> None:
        async def begun() -> None:
            self.begun.append(asyncio.ensure_future(self.client.infer(*args)))
            await asyncio.sleep(0)
            await self.client.live()

        self.run(begun())

    def abandon(self, *args: Any) -> None:
        async def abandoned() -> None:
            task = asyncio.ensure_future(self.client.infer(*args))
            await asyncio.sleep(0)
            await self.client.live()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

        self.run(abandoned())

    def close(self) -> None:
        self.run(self.client.close())
        begun, self.begun = self.begun, []
        if begun:
            self.loop.run_until_complete(asyncio.wait(begun))
            for task in begun:
                task.exception()

    @property
    def session(self) -> Any:
        return self.client._driver.session

    @property
    def connection(self) -> Any:
        return self.client._driver.connection


Connect = Callable[..., Caller]
"""Makes a client of the kind that the test runs with; takes the client's options."""
