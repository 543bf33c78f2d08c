"""What only the blocking client promises: futures, threads, callbacks, interruption, fork."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import CancelledError, ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from naiad.client import (
    Client,
    Future,
    InferResult,
    NaiadError,
    RequestError,
    Unavailable,
    outstanding,
)
from naiad.client.control import Operation
from support.clients import PATIENCE_S, ROOT, Broker

X = {"x": np.arange(4, dtype=np.int32)}
ANSWER = Operation("answer")


@pytest.fixture
def client(broker: Broker) -> Iterator[Client]:
    with Client(broker.run_dir) as client:
        yield client
        client._blocking.driver.session.requests.check_invariants()


def until(condition: threading.Event) -> None:
    assert condition.wait(PATIENCE_S)


def test_a_future_waits_only_as_long_as_told(client: Client) -> None:
    future = client.submit("silent", X)
    begun = time.monotonic()
    with pytest.raises(TimeoutError):
        future.result(timeout=0.05)
    assert time.monotonic() - begun < 5
    assert not future.done()
    client.call(ANSWER)
    np.testing.assert_array_equal(future.result(PATIENCE_S)["x"], X["x"])
    assert future.exception() is None
    assert future.done()


def test_a_cancelled_future_says_so(client: Client) -> None:
    future = client.submit("silent", X)
    seen: list[Future[InferResult]] = []
    future.add_done_callback(seen.append)
    assert future.cancel()
    assert future.cancel()
    assert future.cancelled()
    assert seen == [future]
    with pytest.raises(CancelledError):
        future.result()
    done = client.submit("echo", X)
    done.result()
    assert not done.cancel()


def test_callbacks_run_although_nobody_waits(client: Client) -> None:
    done = threading.Event()
    client.submit("echo", X).add_done_callback(lambda future: done.set())
    until(done)


def test_a_callback_may_submit_more(client: Client) -> None:
    left = [100]
    done = threading.Event()

    def again(future: Future[InferResult]) -> None:
        future.result()
        left[0] -= 1
        if left[0]:
            client.submit("echo", X, callback=again)
        else:
            done.set()

    client.submit("echo", X, callback=again)
    until(done)


def test_a_callback_may_not_wait(client: Client) -> None:
    faults: list[BaseException] = []
    done = threading.Event()

    def waits(future: Future[InferResult]) -> None:
        try:
            client.infer("echo", X)
        except NaiadError as fault:
            faults.append(fault)
        done.set()

    client.submit("echo", X, callback=waits)
    until(done)
    assert isinstance(faults[0], RequestError)
    assert "must not wait" in str(faults[0])


def test_a_failing_callback_is_logged_and_harms_nobody(
    client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    future = client.submit("echo", X, callback=lambda future: 1 / 0)
    future.add_done_callback(lambda future: None)
    future.result()
    assert "ZeroDivisionError" in caplog.text
    client.infer("echo", X)


def test_drive_runs_a_program_of_callbacks(client: Client) -> None:
    assert not client.drive()
    answers: list[Future[InferResult]] = []
    for _ in range(10):
        client.submit("echo", X, callback=answers.append)
    while client.drive():
        pass
    assert len(answers) == 10
    client.submit("silent", X)
    assert not client.drive(timeout=0.01)


def test_threads_share_a_client(client: Client) -> None:
    def work(number: int) -> int:
        array = np.array([number])
        return sum(int(client.infer("echo", {"x": array})["x"][0]) for _ in range(100))

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(work, range(8))) == [100 * number for number in range(8)]


def test_a_thread_waits_while_others_come_and_go(client: Client) -> None:
    held = client.submit("silent", X)
    waiting = threading.Thread(target=held.result, args=(PATIENCE_S,))
    waiting.start()
    for _ in range(50):
        client.infer("echo", X)
    client.call(ANSWER)
    waiting.join(PATIENCE_S)
    assert held.done()


def test_two_threads_may_wait_for_one_future(client: Client) -> None:
    held = client.submit("silent", X)
    with ThreadPoolExecutor(2) as pool:
        waiting = [pool.submit(held.result, PATIENCE_S) for _ in range(2)]
        client.call(ANSWER)
        assert [future.result()["x"].tolist() for future in waiting] == [[0, 1, 2, 3]] * 2


def test_closing_wakes_those_who_wait(client: Client) -> None:
    held = client.submit("silent", X)
    client.live()
    with ThreadPoolExecutor(3) as pool:
        waiting = [pool.submit(held.exception, PATIENCE_S) for _ in range(3)]
        client.close()
        for future in waiting:
            assert isinstance(future.result(PATIENCE_S), Unavailable)


def test_an_interrupted_wait_loses_no_other_answer(client: Client) -> None:
    main = threading.get_ident()
    other = client.submit("silent", X)
    client.live()
    timer = threading.Timer(0.1, signal.pthread_kill, (main, signal.SIGINT))
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        client.infer("silent", X)
    timer.join()
    seen = client.call(Operation("seen"))
    assert ["Cancel", [2]] in seen
    client.call(ANSWER)
    other.result(PATIENCE_S)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # pyzmq's own
def test_interruptions_at_any_moment_are_survived(client: Client) -> None:
    """SIGINT again and again while answers come: at worst a reconnect, never a lost answer."""
    stop = threading.Event()
    main = threading.get_ident()
    may_raise = False
    """One at a time: not where the test, or pytest, deals with the last one."""
    raised = 0

    def interrupted(*_: object) -> None:
        nonlocal may_raise, raised
        if may_raise:
            may_raise = False
            raised += 1
            raise KeyboardInterrupt

    def interrupt() -> None:
        while not stop.wait(0.003):
            signal.pthread_kill(main, signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    answered = 0
    pending: list[Future[InferResult]] = []
    before = signal.signal(signal.SIGINT, interrupted)
    thread.start()
    try:
        while answered < 2000:
            try:
                while answered < 2000:
                    may_raise = True
                    while len(pending) < 16:
                        pending.append(client.submit("echo", X))
                    pending[0].result(PATIENCE_S)
                    pending.pop(0)
                    answered += 1
                may_raise = False
            except KeyboardInterrupt:
                continue
    finally:
        stop.set()
        thread.join()
        signal.signal(signal.SIGINT, before)
    for future in pending:
        future.result(PATIENCE_S)
    assert raised > 20


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")  # of Python 3.12: that is the point
def test_a_forked_child_gets_a_clear_error(client: Client) -> None:
    client.infer("echo", X)
    held = client.submit("silent", X)
    child = os.fork()
    if child == 0:
        try:
            client.infer("echo", X)
        except RequestError as fault:
            os._exit(0 if "fork" in str(fault) else 3)
        os._exit(4)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    client.call(ANSWER)
    held.result(PATIENCE_S)


def test_a_forgotten_client_ends_with_its_program(broker: Broker) -> None:
    program = (
        "import atexit, sys, time; atexit.register(time.sleep, 1.3);"  # longer than the request
        "import numpy; from naiad.client import Client;"
        "client = Client(sys.argv[1]); client.infer('echo', {'x': numpy.zeros(2)});"
        "client.submit('silent', {'x': numpy.zeros(2)}, timeout_us=100_000)"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    ended = subprocess.run(
        [sys.executable, "-W", "error", "-c", program, str(broker.run_dir)],
        env=environment,
        timeout=PATIENCE_S,
        capture_output=True,
        text=True,
    )
    assert (ended.returncode, ended.stderr) == (0, "")


def test_importing_the_client_loads_little() -> None:
    program = (
        "import sys; before = set(sys.modules); import naiad.client;"
        "print(*{name.partition('.')[0] for name in set(sys.modules) - before})"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    output = subprocess.check_output([sys.executable, "-c", program], env=environment, text=True)
    runtimes = ("cython", "__mypyc")  # of pyzmq, and of what is compiled
    loaded = {name for name in output.split() if not any(each in name for each in runtimes)}
    foreign = loaded - set(sys.stdlib_module_names)
    assert foreign <= {"naiad", "zmq", "msgpack", "numpy", "posix_ipc"}


def test_addresses(tmp_path: Path) -> None:
    assert "run/clients.sock" in repr(Client(tmp_path / "run"))
    assert "ipc:///x/y" in repr(Client("ipc:///x/y"))
    with pytest.raises(RequestError, match="ipc:// only"):
        Client("tcp://localhost:8003")
    with pytest.raises(RequestError, match="transport"):
        Client(tmp_path, transport="rdma")  # type: ignore[arg-type]


def test_closing_while_submitted_requests_are_looked_after_disturbs_no_thread(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The thread that drives the socket meanwhile must not read a descriptor that is closed."""
    faults: list[str] = []
    monkeypatch.setattr(threading, "excepthook", lambda args: faults.append(str(args.exc_value)))
    for _ in range(20):
        client = Client(broker.run_dir)
        client.live()
        future = client.submit("silent", X)
        pump = next(one for one in threading.enumerate() if one.name == "naiad-client-pump")
        client.close()
        assert isinstance(future.exception(PATIENCE_S), Unavailable)
        pump.join(PATIENCE_S)
        assert not pump.is_alive()
    assert faults == []


def test_one_thread_times_out_while_another_waits_for_ever(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The leader sleeps without an end of its own; it must learn of the others' deadlines."""
    monkeypatch.setattr(outstanding, "TIMEOUT_MARGIN_NS", 20_000_000)
    held = client.submit("silent", X)
    waiting = threading.Thread(target=held.result, args=(PATIENCE_S,))
    waiting.start()
    with pytest.raises(Unavailable, match="no answer within the timeout"):
        client.infer("silent", X, timeout_us=20_000)
    client.call(ANSWER)
    waiting.join(PATIENCE_S)


@pytest.mark.parametrize("patience_s", [30 * 86400, 10 * 366 * 86400, 10**9, 1e300, float("inf")])
def test_any_length_of_time_may_be_waited_for(broker: Broker, patience_s: float) -> None:
    with Client(broker.run_dir, connect_timeout_s=patience_s) as client:
        assert client.submit("echo", X).result(patience_s)["x"].tolist() == [0, 1, 2, 3]
        client.submit("echo", X)
        assert client.drive(patience_s)
        held = client.submit("silent", X)
        with ThreadPoolExecutor(2) as pool:
            waiting = [pool.submit(held.result, patience_s) for _ in range(2)]
            client.call(ANSWER)
            for future in waiting:
                future.result(PATIENCE_S)


def test_what_is_not_a_length_of_time_is_refused(client: Client, tmp_path: Path) -> None:
    future = client.submit("silent", X)
    with pytest.raises(ValueError, match=r"timeout: expected seconds .* nan"):
        future.result(float("nan"))
    with pytest.raises(TypeError, match=r"timeout: expected seconds .*'5'"):
        client.drive("5")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="connect_timeout_s: expected seconds"):
        Client(tmp_path, connect_timeout_s=None)  # type: ignore[arg-type]


def test_driving_in_vain_leaves_nothing_behind(client: Client) -> None:
    client.submit("silent", X)
    for _ in range(5):
        assert not client.drive(0)
    assert client._blocking._outcomes.wishes == []
