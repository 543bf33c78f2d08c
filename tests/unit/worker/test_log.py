"""Log lines never block and never flood; what is left out is said."""

import logging
import os
from collections.abc import Iterator

import pytest

from naiad.worker.log import LINE_BYTES_MAX, TRACEBACKS_PER_SECOND_MAX, Log, LogHandler


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    reading, writing = os.pipe2(os.O_NONBLOCK)
    os.set_blocking(writing, True)
    yield reading, writing
    os.close(reading)
    os.close(writing)


def test_one_line_each_with_its_prefix(pipe: tuple[int, int]) -> None:
    reading, writing = pipe
    log = Log("m_0", writing)
    log.line("two\nlines")
    log.line("x" * 10_000)
    first, second = os.read(reading, 1 << 16).decode().splitlines()
    assert first == "naiad-worker[m_0] two | lines"
    assert len(second) == LINE_BYTES_MAX - 1


def test_a_pipe_that_nobody_reads_costs_lines_and_no_time(pipe: tuple[int, int]) -> None:
    reading, writing = pipe
    log = Log("m_0", writing)
    while not log.dropped_lines:
        log.line("y" * 1000)
    log.line("also lost")
    lost = log.dropped_lines
    assert lost == 2
    while len(os.read(reading, 4096)) == 4096:
        continue
    log.line("after")
    assert os.read(reading, 4096).decode().splitlines() == [
        f"naiad-worker[m_0] {lost} lines lost before this one",
        "naiad-worker[m_0] after",
    ]


def test_tracebacks_are_limited(pipe: tuple[int, int]) -> None:
    reading, writing = pipe
    log = Log("m_0", writing)
    for _ in range(5 * TRACEBACKS_PER_SECOND_MAX):
        log.failure("it failed", ValueError("why"))
    text = os.read(reading, 1 << 16).decode()
    shown = text.count("ValueError: why")
    assert TRACEBACKS_PER_SECOND_MAX <= shown <= 2 * TRACEBACKS_PER_SECOND_MAX
    assert "ValueError: why" in text.splitlines()[1]


def test_a_closed_stderr_is_survived(pipe: tuple[int, int]) -> None:
    reading, writing = pipe
    log = Log("m_0", os.dup(writing))
    os.close(reading)
    os.dup2(os.open("/dev/null", os.O_RDONLY), reading)
    log.line("nobody")
    assert log.dropped_lines == 1


def test_pythons_own_logging_ends_up_there(pipe: tuple[int, int]) -> None:
    reading, writing = pipe
    logger = logging.Logger("test")
    logger.addHandler(LogHandler(Log("m_0", writing)))
    logger.warning("%d bytes", 7)
    logger.info("not this")
    assert os.read(reading, 4096) == b"naiad-worker[m_0] warning: 7 bytes\n"


class NoText:
    def __str__(self) -> str:
        raise SystemExit(3)


class OddError(Exception):
    __str__ = NoText.__str__


def test_a_line_never_fails_on_its_text(pipe: tuple[int, int]) -> None:
    reading, writing = pipe
    log = Log("m_0", writing)
    log.line("label \ud800")
    log.failure("it failed", OddError())
    lines = os.read(reading, 1 << 16).decode().splitlines()
    assert lines[0] == "naiad-worker[m_0] label \\ud800"
    assert any("OddError" in line for line in lines[2:])


@pytest.mark.parametrize("arguments", [("a", "b"), (OddError(),)])
def test_a_logged_message_whose_arguments_do_not_fit_is_told_with_its_place(
    pipe: tuple[int, int], arguments: tuple[object, ...]
) -> None:
    reading, writing = pipe
    about = {"msg": "%s", "args": arguments, "pathname": "/m.py", "levelno": logging.WARNING}
    record = logging.makeLogRecord(about)
    LogHandler(Log("m_0", writing)).emit(record)
    assert "a message from /m.py:" in os.read(reading, 1 << 16).decode()


def test_only_levels_that_are_on_are_written(pipe: tuple[int, int]) -> None:
    reading, writing = pipe
    log = Log("m_0", writing)
    log.levels = log.levels._replace(info=False)
    log.line("loaded")
    log.failure("it failed", ValueError("no"))
    log.levels = log.levels._replace(info=True, error=False)
    log.line("loaded again")
    log.failure("it failed again", ValueError("no"))
    text = os.read(reading, 1 << 16).decode()
    assert "error: it failed" in text
    assert "ValueError: no" in text
    assert text.splitlines()[-1] == "naiad-worker[m_0] loaded again"
    assert "loaded\n" not in text
