"""Load generators of others against others' servers: wrk, perf_analyzer, tritonclient.

Each function runs one closed loop in a process of its own and returns its figures.
"""

from __future__ import annotations

import csv
import json
import os
import subprocess
import urllib.request
from pathlib import Path
from typing import Any, Final

from benchmarks.closed_loop import Measured

HERE: Final = Path(__file__).resolve().parent
GRACE_SECONDS: Final = 60.0
POST_SECONDS_MAX: Final = 20.0
WINDOW_MS_MIN: Final = 400
NO_ANSWER: Final = "No valid requests recorded"
"""What perf_analyzer fails with when one of its windows saw no answer: then it is run again."""
TRIES_MAX: Final = 3
PASSES: Final = 3
"""Measurement windows of one run of perf_analyzer; it reports their mean."""


Body = tuple[bytes, str]
"""What to POST, and the headers as post.lua takes them."""


def binary_body(array: Any) -> Body:
    """A KServe v2 request with binary tensors, and its headers for post.lua."""
    head = json.dumps(
        {
            "inputs": [
                {
                    "name": "INPUT0",
                    "datatype": "FP32",
                    "shape": list(array.shape),
                    "parameters": {"binary_data_size": array.nbytes},
                }
            ],
            "outputs": [{"name": "OUTPUT0", "parameters": {"binary_data": True}}],
        }
    ).encode()
    headers = f"Content-Type: application/octet-stream|Inference-Header-Content-Length: {len(head)}"
    return head + array.tobytes(), headers


def raw_body(array: Any) -> Body:
    """The array's bytes alone."""
    return array.tobytes(), "Content-Type: application/octet-stream"


def post(url: str, body: Body) -> bytes:
    """One request; the body of the answer."""
    headers = dict(pair.split(": ", 1) for pair in body[1].split("|"))
    with urllib.request.urlopen(
        urllib.request.Request(url, data=body[0], headers=headers), timeout=POST_SECONDS_MAX
    ) as answer:
        return bytes(answer.read())


def wrk(
    program: str, url: str, body: Body, in_flight: int, seconds: float, folder: Path
) -> Measured:
    """wrk with one thread and `in_flight` keep-alive connections."""
    path = folder / "body"
    path.write_bytes(body[0])
    command = [
        program, "-t1", f"-c{in_flight}", f"-d{max(1, round(seconds))}s", "--timeout", "10s",
        "-s", str(HERE / "peers" / "post.lua"), url,
    ]  # fmt: skip
    environment = {**os.environ, "WRK_BODY": str(path), "WRK_HEADERS": body[1]}
    output = _output(command, seconds, environment)
    for line in output.splitlines():
        if line.startswith("FIGURES "):
            requests, took, p50, p90, p99, errors = map(float, line.split()[1:])
            good = int(requests - errors)
            return Measured(good, took, p50, p90, p99, int(errors))
    raise SystemExit(f"wrk printed no figures: {output[-500:]}")


def perf_analyzer(
    program: str,
    protocol: str,
    address: str,
    model: str,
    in_flight: int,
    seconds: float,
    folder: Path,
    *,
    shared_bytes: int = 0,
    batch: bool = False,
    streaming: bool = False,
) -> Measured:
    """perf_analyzer over http or grpc, with system shared memory when `shared_bytes` are given.

    The machine may be noisy: no run is asked to be stable, its windows are averaged.
    """
    report = folder / "perf_analyzer.csv"
    report.unlink(missing_ok=True)
    window_ms = max(WINDOW_MS_MIN, round(seconds * 1000 / PASSES))
    command = [
        program, "-m", model, "-i", protocol, "-u", address, "-f", str(report),
        "--concurrency-range", str(in_flight), "--measurement-interval", str(window_ms),
        "-r", str(PASSES), "-s", "999",
    ]  # fmt: skip
    if batch:
        command += ["-b", "1"]
    if streaming:
        command += ["--streaming"]
    if shared_bytes:
        command += ["--shared-memory", "system", "--output-shared-memory-size", str(shared_bytes)]
    for attempt in range(TRIES_MAX):
        try:
            output = _output(command, seconds, None)
            break
        except SystemExit as fault:
            if attempt == TRIES_MAX - 1 or NO_ANSWER not in str(fault):
                raise
    if not report.exists():
        raise SystemExit(f"perf_analyzer wrote no report: {output[-500:]}")
    with report.open(newline="") as rows:
        row = next(csv.DictReader(rows))
    rate = float(row["Inferences/Second"])
    p50, p90, p99 = [float(row[f"{name} latency"]) for name in ("p50", "p90", "p99")]
    return Measured(round(rate * seconds), seconds, p50, p90, p99, 0)


def grpc_aio(python: str, address: str, model: str, in_flight: int, seconds: float) -> Measured:
    """One Python process with `in_flight` coroutines over tritonclient.grpc.aio."""
    script = str(HERE / "peers" / "grpc_aio.py")
    environment = {name: text for name, text in os.environ.items() if name != "PYTHONPATH"}
    output = _output(
        [python, script, address, model, str(in_flight), str(seconds)], seconds, environment
    )
    return Measured(*json.loads(output))


def _output(command: list[str], seconds: float, environment: dict[str, str] | None) -> str:
    try:
        done = subprocess.run(
            command,
            env=environment,
            capture_output=True,
            text=True,
            timeout=seconds + GRACE_SECONDS,
        )
    except FileNotFoundError as fault:
        raise SystemExit(f"{command[0]} is not there: {fault}; see --help") from fault
    if done.returncode:
        raise SystemExit(f"{command[0]}: exit code {done.returncode}: {done.stderr[-800:]}")
    return done.stdout
