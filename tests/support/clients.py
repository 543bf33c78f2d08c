"""The clients behind one interface, and the broker they talk to, for tests/contract/client."""

from __future__ import annotations

import asyncio
import os
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


class Broker:
    """support.echo_broker as a child process."""

    def __init__(self, run_dir: Path) -> None:
        self.run_dir = run_dir
        self.process: subprocess.Popen[str] | None = None

    def start(self, *options: str) -> Broker:
        environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT / 'tests'}"}
        command = [sys.executable, "-m", "support.echo_broker", "--run-dir", str(self.run_dir)]
        self.process = subprocess.Popen(
            [*command, *options], stdout=subprocess.PIPE, env=environment, text=True
        )
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == "ready\n"
        return self

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            assert self.process.stdout is not None
            self.process.stdout.close()
            self.process = None

    def stop(self) -> None:
        """Let it clean up (its segment)."""
        if self.process is not None:
            self.process.terminate()
            self.process.wait(PATIENCE_S)
            self.kill()


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


Connect = Callable[..., Caller]
"""Makes a client of the kind that the test runs with; takes the client's options."""
