"""How long one request with much JSON takes, and how long it keeps others waiting.

    PYTHONPATH=src python -m benchmarks.large_json --numbers 5200000

One client sends an FP32 tensor as JSON numbers to an identity model and gets it back as JSON, again
and again; another asks small questions of the same gateway, one after the other. Prints how long
the first waited, and of the other's waits the median, the p99 and the longest, beside those of a
time without the first.
"""

from __future__ import annotations

import argparse
import socket
import tempfile
import threading
import time
from http.client import HTTPConnection
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import numpy as np
from benchmarks.processes import cpu_of

from naiad.testing.server import Server, serve

PATH: Final = "/v2/models/identity/infer"
CONFIG: Final = """backend: "identity"
input [ { name: "INPUT0" data_type: TYPE_FP32 dims: [ -1 ] } ]
output [ { name: "OUTPUT0" data_type: TYPE_FP32 dims: [ -1 ] } ]
"""
QUIET_SECONDS: Final = 3.0
REPLY_SECONDS_MAX: Final = 300.0
RECEIVED_BYTES: Final = 1 << 20


def main() -> None:
    options = _options()
    body = _body(options.numbers)
    with tempfile.TemporaryDirectory(prefix="naiad-large-json-") as folder:
        model = Path(folder) / "repository" / "identity"
        (model / "1").mkdir(parents=True)
        (model / "config.pbtxt").write_text(CONFIG)
        with serve(model.parent, arguments=["--http-port", "0"]) as server:
            quiet = _waits(server, time.monotonic() + QUIET_SECONDS, None)
            print(f"request {len(body) / 1e6:.1f} MB\n")
            print("| | large s | gateway CPU s | small | p50 ms | p99 ms | longest ms |")
            print("|---|---|---|---|---|---|---|")
            print(f"| alone | | | {_row(quiet)}", flush=True)
            for round_ in range(options.rounds):
                done = threading.Event()
                times: list[float] = []
                before = _gateway_cpu(server)
                large = threading.Thread(target=_ask_large, args=(server, body, times, done))
                large.start()
                waits = _waits(server, float("inf"), done)
                large.join()
                used = _gateway_cpu(server) - before
                print(f"| {round_ + 1} | {times[0]:.1f} | {used:.1f} | {_row(waits)}", flush=True)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--numbers", type=int, default=5_200_000, help="in the large tensor")
    parser.add_argument("--rounds", type=int, default=3)
    return parser.parse_args()


def _body(count: int) -> bytes:
    """Numbers with eight digits behind the point, 11 bytes each."""
    numbers = np.random.default_rng(1).random(count)
    data = ",".join([f"{number:.8f}" for number in numbers.tolist()])
    head = f'{{"inputs":[{{"name":"INPUT0","datatype":"FP32","shape":[{count}],"data":['
    return f"{head}{data}]}}]}}".encode()


def _ask_large(server: Server, body: bytes, times: list[float], done: threading.Event) -> None:
    """Over a plain socket, which holds this process's interpreter lock the least."""
    place = urlsplit(server.http_url)
    head = f"POST {PATH} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {len(body)}"
    begun = time.monotonic()
    received, begin = 0, b""
    try:
        with socket.create_connection((place.hostname, place.port), REPLY_SECONDS_MAX) as one:
            one.sendall(f"{head}\r\n\r\n".encode())
            one.sendall(body)
            buffer = bytearray(RECEIVED_BYTES)
            while size := one.recv_into(buffer):
                begin = begin or bytes(buffer[:12])
                received += size
        times.append(time.monotonic() - begun)
    finally:
        done.set()
    if not begin.endswith(b" 200"):
        raise SystemExit(f"expected 200, got {begin!r}")


def _waits(server: Server, until: float, done: threading.Event | None) -> list[float]:
    """Milliseconds of each of several small requests, until a moment or the end of the large."""
    place = urlsplit(server.http_url)
    connection = HTTPConnection(str(place.hostname), place.port, timeout=REPLY_SECONDS_MAX)
    waits: list[float] = []
    while time.monotonic() < until and not (done is not None and done.is_set()):
        begun = time.monotonic()
        connection.request("POST", PATH, _body(4))
        connection.getresponse().read()
        waits.append((time.monotonic() - begun) * 1e3)
    connection.close()
    return waits


def _row(waits: list[float]) -> str:
    p50, p99, longest = np.quantile(waits, [0.5, 0.99, 1.0])
    return f"{len(waits)} | {p50:.1f} | {p99:.1f} | {longest:.0f} |"


def _gateway_cpu(server: Server) -> float:
    return sum(cpu_of(pid).total for name, pid in server.pids.items() if "gateway" in name)


if __name__ == "__main__":
    main()
