"""How lines of the log begin, and what a child's line says of itself."""

from __future__ import annotations

import re

import pytest

from naiad.config.log_lines import OWN_TIME, level_of, pid_of, start


@pytest.mark.parametrize(
    ("style", "level", "pattern"),
    [
        ("default", "info", r"I\d{4} \d\d:\d\d:\d\d\.\d{6} 77 "),
        ("default", "verbose", r"I\d{4} \d\d:\d\d:\d\d\.\d{6} 77 "),
        ("default", "warning", r"W\d{4} \d\d:\d\d:\d\d\.\d{6} 77 "),
        ("default", "error", r"E\d{4} \d\d:\d\d:\d\d\.\d{6} 77 "),
        ("ISO8601", "error", r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z "),
    ],
)
def test_a_line_begins_as_its_style_says(style: str, level: str, pattern: str) -> None:
    found = start(style, level, 77)
    assert re.fullmatch(pattern, found)
    assert OWN_TIME.sub("", f"{found}text") == "text"


@pytest.mark.parametrize(
    ("text", "level", "pid"),
    [
        ("broker[12] ERROR broker: no", "error", 12),
        ("broker[12] WARNING broker: no", "warning", 12),
        ("cpu-0[13] naiad-worker[m_0] error: it failed", "error", 13),
        ("cpu-0[13] naiad-worker[m_0] m version 1 loaded in 0.02 s", "info", 13),
        ("gateway-1[14] DEBUG GET /v2", "info", 14),
        ("supervisor broker[12] ended", "info", 99),
        (f"cpu-0[13] {'x' * 100} ERROR", "info", 13),
    ],
)
def test_a_child_s_line_says_how_grave_it_is_and_whose(text: str, level: str, pid: int) -> None:
    assert level_of(text) == level
    assert pid_of(text, 99) == pid
