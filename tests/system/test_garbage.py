"""Anybody may send anything: the broker lives, stays small, and a good client sees no error.

The short forms are part of every run of the suite; `make soak` sends 200,000 messages.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
import zmq

from naiad.client import Client
from naiad.protocol import messages as m
from naiad.protocol.codec import decode, encode
from naiad.protocol.endpoints import Endpoints
from naiad.testing.server import Server, serve
from support.chaos import ROOT, clients
from support.chaos_client import Tally
from support.repositories import add_identity
from support.waiting import wait_until

FULL = pytest.param(100_000, 20_000, marks=pytest.mark.soak, id="full")
SHORT = pytest.param(2_500, 1_000, id="short")
PATIENCE_S = 60.0
RSS_GROWTH_BYTES_MAX = 160 * 2**20
"""For a few messages of the largest size at once, and what malloc keeps of them."""
DESCRIPTORS_GROWTH_MAX = 4
ERRORS_GROWTH_BYTES_MAX = 24 * 2**20
LOG_CHARACTERS_MAX = 8_000
"""That are shown when a test fails."""
LATENCY_P99_US_MAX = 500_000
"""Far above what is usual (see what is printed): others work on this machine as well."""
ENVIRONMENT = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT / 'tests'}"}


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    """Anybody may load and register here."""
    add_identity(tmp_path, "echo", max_batch_size=64)
    arguments = ["--control-mode", "explicit", "--load-model", "echo"]
    with serve(tmp_path, arguments=arguments) as running:
        yield running


class Broker:
    """What it uses; the same process to the end."""

    def __init__(self, server: Server) -> None:
        self._server = server
        with Client(str(server.run_dir)) as client:
            wait_until(lambda: spares(client) == 1, "all of its workers")
        self.process = psutil.Process(server.pids["broker"])
        self.descriptors = self.process.num_fds()
        self.rss_bytes = self.process.memory_info().rss

    def check(self, growth_bytes_max: int = RSS_GROWTH_BYTES_MAX) -> None:
        """It lives, and kept neither memory nor descriptors."""
        assert self._server.pids["broker"] == self.process.pid
        wait_until(
            lambda: self.process.num_fds() <= self.descriptors + DESCRIPTORS_GROWTH_MAX,
            "the descriptors of connections that have ended",
        )
        grown = self.process.memory_info().rss - self.rss_bytes
        print(f"the broker grew by {grown / 2**20:.0f} MiB")
        assert grown < growth_bytes_max


def check_unharmed(tallies: list[Tally]) -> None:
    for tally in tallies:
        assert tally.errors == []
        assert tally.wrong == tally.failed == 0
        ordered = sorted(tally.latencies_us)
        p50, p99 = ordered[len(ordered) // 2], ordered[len(ordered) * 99 // 100]
        print(
            f"the good client: {tally.right:,} right answers, p50 {p50 / 1e3:.1f} ms,"
            f" p99 {p99 / 1e3:.1f} ms, max {ordered[-1] / 1e3:.0f} ms"
        )
        assert p99 < LATENCY_P99_US_MAX


def noise(server: Server, which: str, count: int) -> Counter[str]:
    """Send so many messages of garbage; how often what was answered.

    The sender may be killed by the broker (see support.chaos_noise): another one goes on.
    """
    answers: Counter[str] = Counter()
    sent = seed = 0
    while sent < count:
        seed += 1
        arguments = [str(server.run_dir), which, str(seed), str(count - sent)]
        run = subprocess.run(
            [sys.executable, "-m", "support.chaos_noise", *arguments],
            env=ENVIRONMENT,
            capture_output=True,
            text=True,
        )
        assert run.returncode == 0 or (which == "workers" and run.returncode == -signal.SIGKILL), (
            f"exit code {run.returncode}: {run.stderr}"
        )
        lines = run.stdout.splitlines()
        told = Counter(json.loads(lines[-1])) if lines else Counter({"sent": 1})
        sent += told.pop("sent")
        answers += told
    return answers


@pytest.mark.parametrize("which", ["clients", "workers"])
@pytest.mark.parametrize(("messages", "connections"), [SHORT, FULL])
def test_garbage_in_messages(server: Server, which: str, messages: int, connections: int) -> None:
    broker = Broker(server)
    before = server.client().status()["counters"]
    with clients(server, "echo", count=2, in_flight=1) as tallies:
        answers = noise(server, which, messages)
    print(f"\n{messages:,} messages to {which}.sock: {dict(answers)}")
    check_unharmed(tallies)
    broker.check()
    assert answers["Refused protocol_error"] > messages / 20
    assert answers["Refused version_mismatch"] > messages / 200
    client = server.client()
    assert client.ready()
    assert client.status()["server"]["phase"] == "serving"
    refused = answers["Refused protocol_error"] + answers["Refused version_mismatch"]
    after = client.status()["counters"]
    assert after["protocol_errors"] - before["protocol_errors"] >= refused
    if which == "clients":
        assert after["dropped_sessions"] > before["dropped_sessions"]


@pytest.mark.parametrize(("messages", "connections"), [SHORT, FULL])
def test_garbage_below_zeromq(server: Server, messages: int, connections: int) -> None:
    broker = Broker(server)
    with clients(server, "echo", count=2, in_flight=1) as tallies:
        arguments = [str(server.run_dir), "1", str(connections)]
        noisy = subprocess.Popen(
            [sys.executable, "-m", "support.chaos_sockets", *arguments],
            env=ENVIRONMENT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            assert noisy.stdout is not None
            assert noisy.stdout.readline() == "held\n"
            late = Client(str(server.run_dir))  # a new one gets through all the same
            assert late.live()
            late.close()
            noisy.communicate(timeout=PATIENCE_S)
            assert noisy.returncode == 0
        finally:
            noisy.kill()
            noisy.communicate()
    print(f"\n{connections:,} connections that speak no ZMTP")
    check_unharmed(tallies)
    broker.check()


@contextlib.contextmanager
def dealer(address: str) -> Iterator[zmq.Socket[bytes]]:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    one = context.socket(zmq.DEALER)
    one.linger = 0
    one.connect(address)
    yield one
    one.close()
    context.term()


def answer(peer: zmq.Socket[bytes]) -> m.Message:
    assert peer.poll(int(PATIENCE_S * 1000)), "no answer"
    header, *payload = peer.recv_multipart()
    return decode(header, [len(frame) for frame in payload])


@pytest.mark.parametrize("which", ["clients", "workers"])
def test_a_peer_of_another_version_is_refused_with_both_named(server: Server, which: str) -> None:
    endpoints = Endpoints(str(server.run_dir))
    address = endpoints.clients if which == "clients" else endpoints.workers
    hello = bytearray(encode(m.Hello(b"x" * 16, "client", "9.9", 1, 0)))
    assert hello[1] == m.WIRE_VERSION
    hello[1] = m.WIRE_VERSION + 1
    with dealer(address) as peer:
        peer.send(bytes(hello))
        refused = answer(peer)
    assert isinstance(refused, m.Refused)
    assert refused.code == "version_mismatch"
    assert f"version {m.WIRE_VERSION + 1}" in refused.message
    assert f"speaks {m.WIRE_VERSION}" in refused.message


def test_thousands_of_sessions_leave_nothing_behind(server: Server) -> None:
    """Each with a connection of its own and no BYE, from one process that lives on."""
    broker = Broker(server)
    endpoints = Endpoints(str(server.run_dir))
    for _ in range(20):
        with contextlib.ExitStack() as crowd:
            peers = [crowd.enter_context(dealer(endpoints.clients)) for _ in range(50)]
            for peer in peers:
                peer.send(encode(m.Hello(os.urandom(16), "crowd", "0", 1, 0)))
            for peer in peers:
                assert isinstance(answer(peer), m.Welcome)
    client = server.client()
    wait_until(
        lambda: all(one["role"] != "crowd" for one in client.status()["sessions"]),
        "the end of the sessions",
    )
    client.close()
    broker.check()


def test_a_client_that_never_reads_costs_little(server: Server) -> None:
    """Neither its refusals nor the broker's time for looking at them pile up."""
    broker = Broker(server)
    with clients(server, "echo", count=1, in_flight=1) as tallies:
        with dealer(Endpoints(str(server.run_dir)).clients) as deaf:
            deaf.rcvhwm = 1
            for _ in range(20_000):
                deaf.send(b"\xc1")
        broker.check()
    check_unharmed(tallies)


def test_errors_do_not_pile_up_while_the_broker_is_busy(server: Server) -> None:
    """They form cycles with their frames, which are collected in time although gc is off."""
    broker = Broker(server)
    with dealer(Endpoints(str(server.run_dir)).clients) as peer:
        peer.send(encode(m.Hello(os.urandom(16), "garbage", "0", 1, 0)))
        assert isinstance(answer(peer), m.Welcome)
        for _ in range(150):
            for call in range(100):
                peer.send(encode(m.Control(call, "model_config", {"model": "no"})))
            for _ in range(100):
                assert isinstance(answer(peer), m.Reply)
    broker.check(ERRORS_GROWTH_BYTES_MAX)


def test_a_stranger_cannot_take_the_supervisors_place(server: Server) -> None:
    """And asking for it keeps no descriptor."""
    broker = Broker(server)
    with dealer(Endpoints(str(server.run_dir)).workers) as stranger:
        for number in range(100):
            stranger.send(encode(m.SupervisorHello(number.to_bytes(16, "big"), 1, 0, ())))
            refused = answer(stranger)
            assert isinstance(refused, m.Refused)
            assert "supervisor" in refused.message
        client = server.client()
        (row,) = [row for row in client.status()["instances"] if row["model"] == "echo"]
        os.kill(row["pid"], signal.SIGKILL)
        wait_until(lambda: spares(client) == 0, "the spare's promotion")
        wait_until(lambda: spares(client) == 1, "a new spare from the true supervisor")
        client.close()
    broker.check()


def spares(client: Client) -> int:
    return sum(row["state"] == "SPARE" for row in client.status()["instances"])


def test_garbage_fills_no_log(server: Server) -> None:
    endpoints = Endpoints(str(server.run_dir))
    for address in (endpoints.clients, endpoints.workers):
        with dealer(address) as peer:
            for _ in range(1_000):
                peer.send(b"\xc1")
                assert isinstance(answer(peer), m.Refused)
    assert server.log.count("not valid msgpack") == 200
    assert server.log.count("later ones are not logged") == 2


def test_more_connections_than_descriptors_do_not_end_the_broker(tmp_path: Path) -> None:
    """libzmq would abort the process when it accepts one and has no descriptor for it."""
    run_dir, log = tmp_path / "run", tmp_path / "broker.log"
    command = [sys.executable, "-m", "naiad.broker", "--run-dir", str(run_dir), "--name", "crowded"]
    # By a shell: a function for the child would fork this process, and grpcio, where a test before
    # has loaded it, aborts children of forks.
    limited = ["sh", "-c", 'ulimit -n 1024 && exec "$@"', "sh", *command]
    with log.open("wb") as stderr:
        broker = subprocess.Popen(limited, env=ENVIRONMENT, stderr=stderr)
    try:
        with Client(str(run_dir), connect_timeout_s=PATIENCE_S) as client:
            assert client.live()
            with contextlib.ExitStack() as crowd:
                turned_away = 0
                for number in range(1_500):
                    one = crowd.enter_context(socket.socket(socket.AF_UNIX))
                    try:
                        one.connect(Endpoints(str(run_dir)).clients_path)
                    except OSError:
                        turned_away += 1
                    if number % 50 == 0:
                        assert client.live()  # no rush: it has had time to notice
                assert turned_away > 500
                assert client.live()
            assert broker.poll() is None
        with Client(str(run_dir), connect_timeout_s=PATIENCE_S) as another:
            assert another.live()
        broker.terminate()
        assert broker.wait(PATIENCE_S) == 0
    finally:
        broker.kill()
        print(f"broker: exit code {broker.wait()}\n{log.read_text()[-LOG_CHARACTERS_MAX:]}")
