"""The parts of the broker's shell, each alone against the real kernel and the real libzmq."""

from __future__ import annotations

import fcntl
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import zmq

from naiad.broker.core.deadlines import NEVER_NS
from naiad.broker.core.events import ScanRepository
from naiad.broker.liveness import Liveness, open_same, start_time
from naiad.broker.log import LINES_MAX, TRACEBACK_LINES_MAX, Log
from naiad.broker.repository import RESTARTS_MAX, RepositoryHelper
from naiad.broker.state import RunDirectoryBusy, StateFile
from naiad.broker.timer import Timer
from naiad.broker.transport import Received, Transport, peer_of
from naiad.protocol.endpoints import Endpoints
from support.helper_process import helper_of

DEADLINE_S = 10.0


def sleeper() -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])


def until(condition: object, what: str) -> None:
    """Wait for a callable to be true, or fail naming what did not happen."""
    assert callable(condition)
    end = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < end, what
        select.select([], [], [], 0.005)


# --- timer ---------------------------------------------------------------------------------


@pytest.fixture
def timer() -> Iterator[Timer]:
    one = Timer()
    one.start()
    yield one
    one.close()


def fires_within(timer: Timer, seconds: float) -> bool:
    return bool(select.select([timer.descriptor], [], [], seconds)[0])


def test_the_timer_fires_at_its_deadline_and_not_before(timer: Timer) -> None:
    deadline_ns = time.monotonic_ns() + 30_000_000
    timer.arm(deadline_ns)
    assert fires_within(timer, DEADLINE_S)
    assert time.monotonic_ns() >= deadline_ns
    timer.fired()
    assert not fires_within(timer, 0)


def test_an_earlier_deadline_replaces_a_later_one_and_not_the_other_way_round(timer: Timer) -> None:
    timer.arm(time.monotonic_ns() + 3_600_000_000_000)
    timer.arm(time.monotonic_ns() + 5_000_000)
    timer.arm(time.monotonic_ns() + 7_200_000_000_000)
    assert fires_within(timer, DEADLINE_S)


def test_a_deadline_that_has_passed_fires_at_once(timer: Timer) -> None:
    timer.arm(1)
    assert fires_within(timer, DEADLINE_S)


def test_reading_a_timer_that_did_not_fire_is_harmless(timer: Timer) -> None:
    timer.arm(NEVER_NS - 1)
    timer.fired()
    timer.arm(time.monotonic_ns())
    assert fires_within(timer, DEADLINE_S)


# --- liveness ------------------------------------------------------------------------------


@pytest.fixture
def liveness() -> Iterator[Liveness]:
    one = Liveness()
    yield one
    one.close()


def test_a_death_is_seen_once_through_one_descriptor(liveness: Liveness) -> None:
    first, second = sleeper(), sleeper()
    for key, process in ((1, first), (2, second)):
        pidfd = os.pidfd_open(process.pid)
        liveness.watch(key, is_slot=True, pid=process.pid, pidfd=pidfd)
    assert liveness.dead() == []

    liveness.signal(1, signal.SIGKILL)
    assert select.select([liveness.descriptor], [], [], DEADLINE_S)[0]
    assert [(one.key, one.pid) for one in liveness.dead()] == [(1, first.pid)]
    assert liveness.dead() == []
    assert not liveness.is_watched(1, is_slot=True)
    assert liveness.is_watched(2, is_slot=True)

    liveness.signal(1, signal.SIGKILL)  # nobody any more: nothing happens
    second.kill()
    assert first.wait(DEADLINE_S) == -signal.SIGKILL
    second.wait(DEADLINE_S)


def test_a_second_pidfd_of_the_same_key_replaces_the_first(liveness: Liveness) -> None:
    process = sleeper()
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(20):
        pidfd = os.pidfd_open(process.pid)
        liveness.watch(5, is_slot=False, pid=process.pid, pidfd=pidfd)
    assert len(os.listdir("/proc/self/fd")) == before + 1
    process.kill()
    process.wait(DEADLINE_S)


def test_a_process_is_known_again_by_pid_and_start_time() -> None:
    process = sleeper()
    started = start_time(process.pid)
    assert started > 0
    pidfd = open_same(process.pid, started)
    assert pidfd is not None
    os.close(pidfd)
    assert open_same(process.pid, started + 1) is None  # the pid was given to another one
    process.kill()
    process.wait(DEADLINE_S)
    assert open_same(process.pid, started) is None


# --- state file ------------------------------------------------------------------------------


def test_state_is_kept_whole_and_locked(tmp_path: Path) -> None:
    endpoints = Endpoints(str(tmp_path / "run"))
    first = StateFile(endpoints)
    first.start()
    assert first.load() is None
    first.save({"format": 1, "slots": [{"slot": 5}], "models": []})

    with pytest.raises(RunDirectoryBusy, match=f"pid {os.getpid()}"):
        StateFile(endpoints).start()
    first.close()

    second = StateFile(endpoints)
    second.start()
    assert second.load() == {"format": 1, "slots": ({"slot": 5},), "models": ()}
    second.close()
    assert (tmp_path / "run").stat().st_mode & 0o777 == 0o700


def test_parents_of_a_run_directory_are_not_made(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        StateFile(Endpoints(str(tmp_path / "wrong" / "run"))).start()
    assert not list(tmp_path.iterdir())


def test_a_lock_that_was_removed_keeps_nobody_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    endpoints = Endpoints(str(tmp_path))
    flock = fcntl.flock

    def removed_meanwhile(descriptor: int, how: int) -> None:
        monkeypatch.setattr(fcntl, "flock", flock)
        os.unlink(endpoints.lock_path)
        flock(descriptor, how)

    monkeypatch.setattr(fcntl, "flock", removed_meanwhile)
    first = StateFile(endpoints)
    first.start()
    with pytest.raises(RunDirectoryBusy):
        StateFile(endpoints).start()
    first.close()


@pytest.mark.parametrize("content", [b"", b"\xc1", b"\x93\x01", b"[]", b"\xc0"])
def test_a_broken_state_file_is_no_state(tmp_path: Path, content: bytes) -> None:
    endpoints = Endpoints(str(tmp_path))
    Path(endpoints.state_path).write_bytes(content)
    assert StateFile(endpoints).load() is None


# --- log -------------------------------------------------------------------------------------


def test_a_reader_that_stops_never_blocks_the_writer() -> None:
    read, write = os.pipe()
    log = Log(write)
    for number in range(LINES_MAX * 3):
        log.write("info", f"line {number} " + "x" * 100)
    assert log.is_waiting

    lines: list[bytes] = []

    def collect() -> None:
        with os.fdopen(read, "rb") as file:
            lines.extend(file)

    def emptied() -> bool:
        log.flush()
        return not log.is_waiting

    reader = threading.Thread(target=collect)
    reader.start()
    until(emptied, "the log never emptied")
    os.close(write)
    reader.join(DEADLINE_S)
    assert lines[0].endswith(b"x\n")
    assert any(b"lines were dropped" in line for line in lines)
    assert len(lines) < LINES_MAX * 3


def test_a_line_is_one_line_whatever_is_in_it() -> None:
    read, write = os.pipe()
    Log(write).write("warning", "a\nb\x1b[31m\r\n" + "z" * 10_000)
    os.close(write)
    with os.fdopen(read, "rb") as file:
        text = file.read()
    assert text.count(b"\n") == 1
    assert b"\x1b" not in text
    assert b"WARNING broker: a b" in text


def test_a_fault_is_told_with_its_traceback_and_no_more_than_that() -> None:
    def deep(levels: int) -> None:
        if levels:
            deep(levels - 1)
        raise KeyError("planted")

    read, write = os.pipe()
    log = Log(write)
    for levels in (1, 200):
        with pytest.raises(KeyError) as caught:
            deep(levels)
        log.fault("the call index", caught.value)
    os.close(write)
    with os.fdopen(read, "rb") as file:
        lines = file.read().splitlines()
    assert b"the call index failed by a fault of the broker itself" in lines[0]
    assert sum(line.endswith(b"KeyError: 'planted'") for line in lines) == 2
    assert len(lines) <= 2 * (TRACEBACK_LINES_MAX + 1)
    assert all(b"ERROR broker: " in line for line in lines)


# --- transport -------------------------------------------------------------------------------


@pytest.fixture
def transport(tmp_path: Path) -> Iterator[Transport]:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    one = Transport(
        context,
        f"ipc://{tmp_path}/t.sock",
        frame_bytes_max=1 << 20,
        outbox_bytes_max=1 << 20,
        connections_max=20,
    )
    one.start()
    yield one
    one.close()
    context.term()


def dealer(transport: Transport) -> zmq.Socket[bytes]:
    socket: zmq.Socket[bytes] = zmq.Context.instance().socket(zmq.DEALER)
    socket.linger = 0
    socket.connect(transport.address)
    return socket


def received(transport: Transport, count: int) -> list[Received]:
    found: list[Received] = []

    def enough() -> bool:
        found.extend(transport.drain())
        return len(found) >= count

    until(enough, f"{count} messages did not arrive")
    return found


def test_a_message_arrives_with_its_frames_and_the_kernels_word_on_its_sender(
    transport: Transport,
) -> None:
    peer = dealer(transport)
    peer.send_multipart([b"header", b"one", b"x" * 300_000])
    (message,) = received(transport, 1)
    assert (message.header, message.payload) == (b"header", [b"one", b"x" * 300_000])
    who = peer_of(message.descriptor())
    assert (who.pid, who.uid) == (os.getpid(), os.getuid())
    os.close(who.pidfd)

    assert transport.send(message.peer, [b"answer", b"y" * 300_000])
    assert peer.poll(int(DEADLINE_S * 1000))
    assert peer.recv_multipart() == [b"answer", b"y" * 300_000]
    descriptor = message.descriptor()
    peer.close()
    until(lambda: descriptor in transport.disconnected(), "no word of the lost connection")
    until(lambda: not transport.send(message.peer, [b"x"]), "a send to nobody must say so")


def test_a_descriptor_that_means_something_else_by_now_costs_none() -> None:
    """The number of a connection that has ended may be anybody's before its message is read."""
    other = os.pidfd_open(os.getpid())
    try:
        before = len(os.listdir("/proc/self/fd"))
        with pytest.raises(OSError, match="socket"):
            peer_of(other)
        assert len(os.listdir("/proc/self/fd")) == before
    finally:
        os.close(other)


def test_a_peer_that_does_not_read_is_given_up_at_its_limit(transport: Transport) -> None:
    peer = dealer(transport)
    peer.rcvhwm = 1
    peer.send(b"hello")
    (message,) = received(transport, 1)
    sent = 0
    while transport.send(message.peer, [b"z" * 60_000]):
        sent += 1
        assert sent < 100_000, "an outbox without a limit"
    assert sent > 10
    assert not transport.is_waiting
    assert transport.unread == 1
    peer.close()


def test_a_peer_that_reads_again_gets_everything_in_order(transport: Transport) -> None:
    peer = dealer(transport)
    peer.send(b"hello")
    (message,) = received(transport, 1)
    count = 0
    while not transport.is_waiting:
        assert transport.send(message.peer, [b"%d" % count, b"z" * 1000])
        count += 1
    got = 0

    def read() -> bool:
        nonlocal got
        transport.flush()
        while peer.poll(0):
            assert peer.recv_multipart()[0] == b"%d" % got
            got += 1
        return got == count

    until(read, "the outbox did not empty")
    peer.close()


# --- repository helper -----------------------------------------------------------------------


def wait_for_answers(helper: RepositoryHelper) -> list[tuple[int, str | None]]:
    found: list[tuple[int, str | None]] = []

    def answered() -> bool:
        if select.select([helper.descriptor], [], [], 0.05)[0]:
            found.extend((one.token, one.fault) for one in helper.answers())
        return bool(found)

    until(answered, "the helper did not answer")
    return found


def test_the_helper_scans_rests_and_is_started_again(tmp_path: Path) -> None:
    model = tmp_path / "m"
    (model / "1").mkdir(parents=True)
    (model / "config.pbtxt").write_text('backend: "identity" max_batch_size: 4')
    helper = helper_of(tmp_path)
    helper.ask(ScanRepository(1, None, None))
    helper.rest()  # a question is open: it must not end
    assert helper.descriptor >= 0
    assert wait_for_answers(helper) == [(1, None)]
    helper.rest()
    assert helper.descriptor == -1
    helper.ask(ScanRepository(2, ("m",), None))
    assert wait_for_answers(helper) == [(2, None)]
    helper.close()


def test_a_helper_that_is_killed_answers_all_the_same(tmp_path: Path) -> None:
    helper = helper_of(tmp_path)
    helper.ask(ScanRepository(1, None, None))
    os.kill(helper.pid, signal.SIGKILL)
    token, fault = wait_for_answers(helper)[0]
    assert token == 1
    assert fault is not None
    assert "holds no models" in fault
    helper.close()


def test_a_helper_that_keeps_dying_is_an_error_and_no_endless_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    helper = helper_of(tmp_path)
    helper.ask(ScanRepository(7, None, None))
    assert wait_for_answers(helper) == [(7, "the repository helper keeps dying; see the log")]
    assert RESTARTS_MAX < 10
    helper.close()
