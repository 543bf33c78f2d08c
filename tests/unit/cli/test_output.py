"""Children's output: whole lines, prefixed, cut, harmless, limited."""

from naiad.cli.output import LINE_BYTES_MAX, LINES_BURST_MAX, LINES_PER_SECOND_MAX, NS, ChildOutput


def output() -> ChildOutput:
    return ChildOutput("cpu-0[7] ", 0)


def test_lines_come_whole_however_they_arrive() -> None:
    child, lines = output(), []
    for byte in b"one\ntwo\n\nthree":
        lines += child.feed(bytes([byte]), 0)
    assert lines == ["cpu-0[7] one", "cpu-0[7] two"]
    assert child.close(0) == ["cpu-0[7] three"]
    assert child.last_line == "three"
    assert child.close(0) == []


def test_what_would_play_tricks_on_a_terminal_is_taken_out() -> None:
    assert output().feed(b"a\x1b[2J\x07b\tc\xff\r\n", 0) == ["cpu-0[7] a[2Jb\tc\ufffd"]


def test_a_time_at_the_beginning_is_taken_out_because_the_log_adds_one() -> None:
    line = b"2026-11-29T18:25:56.766Z ERROR broker: no 2026-11-29T18:25:56.766Z\n"
    assert output().feed(line, 0) == ["cpu-0[7] ERROR broker: no 2026-11-29T18:25:56.766Z"]


def test_a_line_without_end_is_cut_into_lines() -> None:
    child = output()
    lines = child.feed(b"x" * (2 * LINE_BYTES_MAX + 5), 0)
    assert [len(line) for line in lines] == [LINE_BYTES_MAX + 9] * 2
    assert child.close(0) == ["cpu-0[7] xxxxx"]


def test_over_the_rate_lines_are_counted_and_the_count_is_shown_when_it_calms_down() -> None:
    child = output()
    flood = child.feed(b"spam\n" * (LINES_BURST_MAX + 300), 0)
    assert len(flood) == LINES_BURST_MAX
    (report, line) = child.feed(b"calm\n", NS)
    assert report == f"cpu-0[7] (300 lines suppressed: over {LINES_PER_SECOND_MAX} a second)"
    assert line == "cpu-0[7] calm"
    assert len(child.feed(b"spam\n" * LINES_BURST_MAX, NS)) == LINES_PER_SECOND_MAX - 1


def test_the_end_tells_what_was_never_shown() -> None:
    child = output()
    child.feed(b"spam\n" * (LINES_BURST_MAX + 1), 0)
    assert child.close(0) == [
        f"cpu-0[7] (1 lines suppressed: over {LINES_PER_SECOND_MAX} a second)"
    ]
