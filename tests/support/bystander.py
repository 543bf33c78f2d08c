"""A process of decent clients beside hostile ones: how long do they wait, and is anything wrong?

`python -m support.bystander HTTP_URL GRPC_TARGET` asks over both without pause between answers but
a short one, one request at a time each. Lines on stdin name the phase from then on; at the end of
stdin it prints for each phase and protocol (latencies in µs, errors) as a line of JSON.
"""

from __future__ import annotations

import http.client
import json
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import numpy as np

from support.chaos_server import ENVIRONMENT, ROOT
from support.waiting import wait_until

PAUSE_S: Final = 0.002
LATENCIES_MAX: Final = 500_000
ERRORS_MAX: Final = 20
MODEL: Final = "echo"
COUNT: Final = "count"
"""On stdin: print how many requests of this phase there were, over each protocol."""


class Ledger:
    """Of one protocol; `phase` is set from outside."""

    def __init__(self) -> None:
        self.latencies_us: defaultdict[str, list[int]] = defaultdict(list)
        self.errors: list[str] = []

    def ask(self, phase: str, work: Callable[[], None]) -> None:
        start = time.monotonic_ns()
        try:
            work()
        except Exception as fault:
            if len(self.errors) < ERRORS_MAX:
                self.errors.append(f"{phase}: {fault!r}")
        found = self.latencies_us[phase]
        if len(found) < LATENCIES_MAX:
            found.append((time.monotonic_ns() - start) // 1000)


@contextmanager
def http_asker(url: str) -> Iterator[Callable[[], None]]:
    """Asks one thing over one connection, as long as the server keeps it."""
    place = urlsplit(url)
    connection = http.client.HTTPConnection(str(place.hostname), place.port, timeout=60)
    tensor = {"name": "INPUT0", "shape": [1, 16], "datatype": "FP32"}
    binary = {**tensor, "parameters": {"binary_data_size": 64}}
    text = json.dumps({"inputs": [binary], "parameters": {"binary_data_output": True}}).encode()
    data = np.arange(16, dtype=np.float32).tobytes()
    headers = {"Inference-Header-Content-Length": str(len(text))}

    def ask() -> None:
        connection.request("POST", f"/v2/models/{MODEL}/infer", text + data, headers)
        answer = connection.getresponse()
        found = answer.read()
        assert (answer.status, found[-64:]) == (200, data), (answer.status, found)

    try:
        yield ask
    finally:
        connection.close()


@contextmanager
def grpc_asker(target: str) -> Iterator[Callable[[], None]]:
    """The same through a client of Triton's."""
    import tritonclient.grpc as triton

    client = triton.InferenceServerClient(target)
    tensor = triton.InferInput("INPUT0", [1, 16], "FP32")
    data = np.arange(16, dtype=np.float32).reshape(1, 16)
    tensor.set_data_from_numpy(data)

    def ask() -> None:
        found = client.infer(MODEL, [tensor], client_timeout=60).as_numpy("OUTPUT0")
        assert np.array_equal(found, data), found

    with client:
        yield ask


class Bystanders:
    """The test's end of such a process."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self.latencies_us: dict[str, dict[str, list[int]]] = {}
        self.errors: list[str] = []

    def phase(self, name: str) -> None:
        """What follows belongs to this phase."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{name}\n")
        self._process.stdin.flush()

    def count(self) -> int:
        """How many requests this phase has had so far, over each protocol."""
        self.phase(COUNT)
        assert self._process.stdout is not None
        return int(self._process.stdout.readline())

    def wait(self, count: int) -> None:
        """Until this phase has had so many."""
        wait_until(lambda: self.count() >= count, f"{count} answers")

    def end(self) -> None:
        out, _ = self._process.communicate()
        assert self._process.returncode == 0
        found = json.loads(out.splitlines()[-1])
        self.latencies_us = {name: one["latencies_us"] for name, one in found.items()}
        self.errors = [error for one in found.values() for error in one["errors"]]

    def quantile_ms(self, protocol: str, phase: str, part: float) -> float:
        ordered = sorted(self.latencies_us[protocol][phase])
        return ordered[min(len(ordered) - 1, int(len(ordered) * part))] / 1000

    def table(self) -> str:
        """For people: p50, p99 and the worst of each phase, and the ratio of the p99."""
        lines = []
        for protocol in self.latencies_us:
            for phase in self.latencies_us[protocol]:
                quantiles = [self.quantile_ms(protocol, phase, part) for part in (0.5, 0.99, 1)]
                count = len(self.latencies_us[protocol][phase])
                lines.append(
                    f"  {protocol} {phase:<8} {count:>7} requests, p50 {quantiles[0]:.2f} ms,"
                    f" p99 {quantiles[1]:.2f} ms, max {quantiles[2]:.0f} ms"
                )
        return "\n".join(lines)


@contextmanager
def bystanders(http_url: str, grpc_target: str) -> Iterator[Bystanders]:
    """Decent clients for the length of a with block, in the phase "warm" until told another."""
    process = subprocess.Popen(
        [sys.executable, "-m", "support.bystander", http_url, grpc_target],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=Path(ROOT),
        env=ENVIRONMENT,
        text=True,
    )
    found = Bystanders(process)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        yield found
        found.end()
    finally:
        process.kill()
        process.communicate()


def main() -> None:
    http_url, grpc_target = sys.argv[1:]
    phase = "warm"
    is_over = threading.Event()
    ledgers = {"http": Ledger(), "grpc": Ledger()}
    stack = ExitStack()
    askers = {
        "http": stack.enter_context(http_asker(http_url)),
        "grpc": stack.enter_context(grpc_asker(grpc_target)),
    }

    def work(protocol: str) -> None:
        while not is_over.wait(PAUSE_S):
            ledgers[protocol].ask(phase, askers[protocol])

    for protocol in ledgers:
        askers[protocol]()
    threads = [threading.Thread(target=work, args=(protocol,)) for protocol in ledgers]
    for thread in threads:
        thread.start()
    print("ready", flush=True)
    for line in sys.stdin:
        if line.strip() == COUNT:
            counts = [len(one.latencies_us[phase]) for one in ledgers.values()]
            print(min(counts), flush=True)
        else:
            phase = line.strip()
    is_over.set()
    for thread in threads:
        thread.join()
    stack.close()
    found = {
        protocol: {"latencies_us": one.latencies_us, "errors": one.errors}
        for protocol, one in ledgers.items()
    }
    print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
