"""A real browser for tests: headless Chromium over its debugging pipe, with nothing beside it.

Use it as `with Browser(folder) as browser: page = browser.open(url)`, then ask the page by
`page.evaluate("document.title")`.
"""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
import sys
import time
from collections import deque
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import pytest

from support.waiting import wait_until

NAMES: Final = ("chromium", "chromium-browser", "google-chrome")
ANSWER_SECONDS: Final = 30.0
END_SECONDS: Final = 10.0
READ_BYTES: Final = 1 << 20
EVENTS_MAX: Final = 10_000
LAUNCH: Final = """
import fcntl, os, sys
ends = [fcntl.fcntl(int(one), fcntl.F_DUPFD, 10) for one in sys.argv[1:3]]
os.dup2(ends[0], 3)
os.dup2(ends[1], 4)
os.execv(sys.argv[3], sys.argv[3:])
"""
"""It reads commands from descriptor 3 and writes to 4."""
OPTIONS: Final = (
    "--headless",
    "--remote-debugging-pipe",
    "--no-first-run",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-extensions",
    "--hide-scrollbars",
)


def chromium() -> str:
    """The program; skips the test where there is none."""
    for name in NAMES:
        found = shutil.which(name)
        if found:
            return found
    pytest.skip(f"no browser on PATH ({', '.join(NAMES)}): apt-get install chromium")


class Browser:
    """One process with a profile of its own; pages share it."""

    def __init__(self, folder: Path) -> None:
        own, theirs = os.pipe(), os.pipe()
        command = [chromium(), *OPTIONS, f"--user-data-dir={folder / 'profile'}"]
        if os.geteuid() == 0:
            command.append("--no-sandbox")  # it refuses root otherwise
        log = (folder / "browser.log").open("wb")
        self._process = subprocess.Popen(
            [sys.executable, "-c", LAUNCH, str(own[0]), str(theirs[1]), *command, "about:blank"],
            pass_fds=(own[0], theirs[1]),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=log,
        )
        log.close()
        os.close(own[0])
        os.close(theirs[1])
        self._writes, self._reads = own[1], theirs[0]
        self._received = b""
        self._count = 0
        self.events: deque[dict[str, Any]] = deque(maxlen=EVENTS_MAX)

    def open(
        self, url: str, *, width: int = 1280, height: int = 800, scheme: str = "light"
    ) -> Page:
        """A page that is loaded; `scheme` is what the person prefers."""
        target = self.call("Target.createTarget", {"url": "about:blank"})["targetId"]
        attached = self.call("Target.attachToTarget", {"targetId": target, "flatten": True})
        page = Page(self, attached["sessionId"])
        for domain in ("Page", "Runtime", "Log", "Network"):
            page.call(f"{domain}.enable")
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        page.call("Emulation.setDeviceMetricsOverride", size)
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        page.call("Emulation.setEmulatedMedia", {"features": features})
        page.call("Page.navigate", {"url": url})
        wait_until(lambda: page.evaluate("document.readyState") == "complete", f"{url} is loaded")
        return page

    def call(self, method: str, parameters: dict[str, Any], session: str = "") -> dict[str, Any]:
        self._count += 1
        message: dict[str, Any] = {"id": self._count, "method": method, "params": parameters}
        if session:
            message["sessionId"] = session
        os.write(self._writes, json.dumps(message).encode() + b"\0")
        deadline = time.monotonic() + ANSWER_SECONDS
        while True:
            answer = self._next(deadline)
            if answer.get("id") == self._count:
                assert "error" not in answer, f"{method}: {answer['error']}"
                result: dict[str, Any] = answer["result"]
                return result
            self.events.append(answer)

    def _next(self, deadline: float) -> dict[str, Any]:
        while b"\0" not in self._received:
            left = deadline - time.monotonic()
            assert left > 0, f"the browser did not answer within {ANSWER_SECONDS:g} s"
            if select.select([self._reads], [], [], left)[0]:
                read = os.read(self._reads, READ_BYTES)
                assert read, "the browser has ended"
                self._received += read
        message, _, self._received = self._received.partition(b"\0")
        found: dict[str, Any] = json.loads(message)
        return found

    def close(self) -> None:
        os.write(self._writes, b'{"id":0,"method":"Browser.close"}\0')
        try:
            self._process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        os.close(self._writes)
        os.close(self._reads)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        fault: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


class Page:
    """One tab."""

    def __init__(self, browser: Browser, session: str) -> None:
        self._browser = browser
        self._session = session

    def call(self, method: str, parameters: dict[str, Any] | None = None) -> dict[str, Any]:
        return self._browser.call(method, parameters or {}, self._session)

    def evaluate(self, expression: str) -> Any:
        """The value of a JavaScript expression."""
        given = {"expression": expression, "returnByValue": True, "awaitPromise": True}
        answer = self.call("Runtime.evaluate", given)
        assert "exceptionDetails" not in answer, f"{expression}: {answer['exceptionDetails']}"
        return answer["result"].get("value")

    def screenshot(self) -> bytes:
        """What it looks like, as PNG."""
        return base64.b64decode(self.call("Page.captureScreenshot", {"format": "png"})["data"])

    def events(self, method: str) -> list[dict[str, Any]]:
        """What was told of this page so far."""
        return [
            event["params"]
            for event in self._browser.events
            if event["method"] == method and event.get("sessionId") == self._session
        ]

    def complaints(self) -> list[str]:
        """Errors of scripts, of loading, and of the content security policy."""
        self.evaluate("0")  # what happened before has been told when this is answered
        thrown = [str(one["exceptionDetails"]) for one in self.events("Runtime.exceptionThrown")]
        logged = [one["entry"] for one in self.events("Log.entryAdded")]
        return thrown + [one["text"] for one in logged if one["level"] == "error"]

    def requested(self) -> list[str]:
        """Every address that was asked for anything."""
        self.evaluate("0")
        return [one["request"]["url"] for one in self.events("Network.requestWillBeSent")]

    def close(self) -> None:
        self.call("Page.close")
