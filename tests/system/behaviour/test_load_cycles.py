"""Models come and go for hours and nothing grows: memory, descriptors, processes, threads."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from operator import le
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from naiad.client import Client, NaiadError
from naiad.testing.server import Server, serve
from support.models import add_echo, add_onnx_echo, add_python
from support.models_python import ECHO
from support.waiting import wait_until

ARRAYS = {"INPUT0": np.arange(16, dtype=np.float32)[None]}
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
CYCLES = [pytest.param(10, id="short"), pytest.param(200, marks=pytest.mark.soak, id="full")]
FIRST_CYCLES = 3
"""Until everything that is made once has been made: modules, buffers, connections."""
GROWTH_BYTES_MAX = 2 * 2**20
"""Of the broker; a leak of 20 KB per cycle shows in the full run."""
KINDS = ("echo", "python", "onnx")


class Usage(NamedTuple):
    """What a server takes; `rss_bytes` is the broker's."""

    rss_bytes: int
    others: tuple[int, ...]
    """Descriptors and threads of the broker; processes and segments of the whole server."""


def usage(server: Server, client: Client) -> Usage:
    """At rest."""

    def is_at_rest() -> bool:
        told = client.status()["server"]
        return bool(told["spares"] == 1 and told["slots"] == 2 and len(server.pids) == 4)

    with pytest.raises(NaiadError):
        client.load("no such model")  # so that the repository helper runs, which ends when idle
    wait_until(is_at_rest, "one model, one spare, and nobody on his way out")
    pids = server.pids
    process = Path(f"/proc/{pids['broker']}")
    return Usage(
        rss_bytes=int((process / "statm").read_text().split()[1]) * PAGE_BYTES,
        others=(
            len(os.listdir(process / "fd")),
            len(os.listdir(process / "task")),
            len(pids),
            sum(server.name in entry for entry in os.listdir("/dev/shm")),
        ),
    )


@contextmanager
def under_load(server: Server, model: str) -> Iterator[list[int]]:
    """Somebody asks another model all the time; the list counts the answers."""
    answers = [0]
    faults: list[NaiadError] = []
    ended = threading.Event()

    def ask() -> None:
        with Client(server.run_dir) as client:
            while not ended.is_set() and not faults:
                try:
                    assert (client.infer(model, ARRAYS)["OUTPUT0"] == ARRAYS["INPUT0"]).all()
                except NaiadError as fault:
                    faults.append(fault)
                answers[0] += 1

    thread = threading.Thread(target=ask)
    thread.start()
    try:
        yield answers
    finally:
        ended.set()
        thread.join(20)
    assert not faults, faults[0]


def cycle(client: Client, model: str) -> None:
    client.load(model)
    assert (client.infer(model, ARRAYS)["OUTPUT0"] == ARRAYS["INPUT0"]).all()
    client.unload(model)
    wait_until(
        lambda: [row["state"] for row in client.index() if row["name"] == model] == ["UNAVAILABLE"],
        "it is unloaded",
    )


@pytest.mark.parametrize("cycles", CYCLES)
def test_loading_and_unloading_under_load_takes_nothing_for_good(
    tmp_path: Path, cycles: int
) -> None:
    add_echo(tmp_path, "busy", max_batch_size=4)
    add_echo(tmp_path, "echo", max_batch_size=4)
    io = ["INPUT0 FP32 16"], ["OUTPUT0 FP32 16"]
    add_python(tmp_path, "python", ECHO, *io, max_batch_size=4)
    add_onnx_echo(tmp_path, "onnx")
    arguments = ["--control-mode", "explicit", "--load-model", "busy"]
    with serve(tmp_path, arguments=arguments) as server, under_load(server, "busy") as answers:
        client = server.client()
        for number in range(FIRST_CYCLES):
            cycle(client, KINDS[number % len(KINDS)])
        before, answered_before = usage(server, client), answers[0]
        for number in range(cycles):
            cycle(client, KINDS[number % len(KINDS)])
        assert answers[0] - answered_before > cycles

        def is_flat() -> bool:
            now = usage(server, client)
            growth_bytes = now.rss_bytes - before.rss_bytes
            return growth_bytes < GROWTH_BYTES_MAX and all(map(le, now.others, before.others))

        wait_until(is_flat, f"no more than before, {before}; now it is {usage(server, client)}")
        assert client.status()["counters"]["worker_deaths"] == {}
