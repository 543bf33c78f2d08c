"""The log writer: order, time stamps, rotation, and a disk that fails."""

from pathlib import Path

from naiad.cli.log import BUFFER_LINES_MAX, LogWriter


def test_lines_are_written_in_order_with_the_time(tmp_path: Path) -> None:
    log = LogWriter(str(tmp_path / "log"))
    log.start()
    log.show("hello")
    log.write("first")
    log.event("second")
    log.close()
    hello, first, second = (tmp_path / "log").read_text().splitlines()
    assert hello == "hello"
    assert first[10] == "T"
    assert first.endswith("Z first")
    assert second.endswith("Z supervisor second")


def test_reopening_goes_on_in_a_new_file(tmp_path: Path) -> None:
    path = tmp_path / "log"
    log = LogWriter(str(path))
    log.start()
    path.rename(tmp_path / "log.1")
    log.reopen()
    log.show("after")
    log.close()
    assert path.read_text() == "after\n"


def test_what_does_not_fit_is_counted(tmp_path: Path) -> None:
    log = LogWriter(str(tmp_path / "log"))
    for _ in range(BUFFER_LINES_MAX + 7):  # the thread does not run yet
        log.show("x")
    log.start()
    log.close()
    lines = (tmp_path / "log").read_text().splitlines()
    assert len(lines) == BUFFER_LINES_MAX + 1
    assert lines[-1].startswith("(7 log lines lost")


def test_a_full_disk_stops_nobody() -> None:
    log = LogWriter("/dev/full")
    log.start()
    for _ in range(100):
        log.show("x")
    log.close()
