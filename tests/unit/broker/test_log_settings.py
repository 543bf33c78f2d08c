"""Log settings: what may be set, who is told, who waits for the next change, what outlives it."""

from __future__ import annotations

import re
from typing import Any

import pytest

from naiad.broker.core import events as e
from naiad.broker.core.log_settings import LogSettings
from naiad.config.log_levels import INITIAL, shows
from naiad.protocol.errors import Code, RequestError
from naiad.protocol.messages import LogLevels
from support.simulated_bench import CLIENT, Bench

USUAL = {
    "log_file": "",
    "log_info": True,
    "log_warning": True,
    "log_error": True,
    "log_verbose_level": 0,
    "log_format": "ISO8601",
}


def announced(actions: list[e.Action]) -> list[LogLevels]:
    return [action.levels for action in actions if type(action) is e.SetLogLevels]


def asked(bench: Bench, call: int, session: int = CLIENT, **arguments: Any) -> list[e.Action]:
    return bench.do(e.ControlAsked(session, call, "log_settings", arguments, b""))


def test_the_settings_are_those_of_the_command_line_until_changed() -> None:
    bench = Bench()
    assert bench.control("log_settings")["settings"] == USUAL
    changed = bench.control("log_settings", log_info=False, log_verbose_level=3)["settings"]
    assert changed == {**USUAL, "log_info": False, "log_verbose_level": 3}
    assert bench.control("log_settings")["settings"] == changed


def test_a_change_is_announced_and_saved_and_no_change_is_neither() -> None:
    bench = Bench()
    bench.client()
    before = bench.saves
    assert announced(asked(bench, 1, log_format="default")) == [INITIAL._replace(format="default")]
    assert bench.saves == before + 1
    assert announced(asked(bench, 2, log_format="default")) == []
    assert bench.saves == before + 1


@pytest.mark.parametrize(
    ("changes", "said", "code"),
    [
        ({"log_info": 1}, "log_info: attempt to access JSON non-boolean as boolean", None),
        ({"log_error": "true"}, "non-boolean as boolean", None),
        ({"log_verbose_level": -1}, "non-unsigned-integer as unsigned-integer", None),
        ({"log_verbose_level": True}, "non-unsigned-integer as unsigned-integer", None),
        ({"log_verbose_level": 2**32}, "expected 0 to 4294967295", None),
        ({"log_format": "xml"}, "invalid argument for --log_format, got: xml", None),
        ({"log_format": 1}, "invalid argument for --log_format", None),
        ({"log_file": "/tmp/x"}, "log file location can not be updated", Code.UNSUPPORTED),
        ({"log_inf": True}, "unknown log setting 'log_inf'; did you mean \"log_info\"?", None),
        ({"log_info": False, "other": 1}, "unknown log setting 'other'", None),
    ],
)
def test_what_cannot_be_set_changes_nothing(
    changes: dict[str, Any], said: str, code: Code | None
) -> None:
    bench = Bench()
    with pytest.raises(RequestError, match=re.escape(said)) as raised:
        bench.control("log_settings", **changes)
    if code is not None:
        assert raised.value.code is code
    assert bench.control("log_settings")["settings"] == USUAL


def test_who_knows_the_settings_is_answered_at_their_next_change() -> None:
    bench = Bench()
    bench.client()
    bench.client(7)
    revision = bench.control("log_settings")["revision"]
    asked(bench, 50, 7, after=revision)
    assert (7, 50) not in bench.replies
    bench.control("log_settings", log_warning=False)
    error, found = bench.replies[7, 50]
    assert error is None
    assert found["settings"]["log_warning"] is False
    assert found["revision"] != revision
    asked(bench, 51, 7, after=revision)  # what it knows is old
    assert bench.replies[7, 51][1] == found


def test_one_session_waits_once_and_not_after_its_end() -> None:
    bench = Bench()
    bench.client()
    bench.client(7)
    revision = bench.control("log_settings")["revision"]
    asked(bench, 1, 7, after=revision)
    asked(bench, 2, 7, after=revision)
    assert bench.replies[7, 1][1]["revision"] == revision
    bench.do(e.SessionEnded(7))
    bench.control("log_settings", log_info=False)
    assert (7, 2) not in bench.replies


def test_what_was_set_outlives_the_broker() -> None:
    bench = Bench()
    bench.control("log_settings", log_error=False)
    again = bench.restarted()
    assert again.control("log_settings")["settings"] == {**USUAL, "log_error": False}


def test_a_new_command_line_counts_more_than_what_was_set_before() -> None:
    world = Bench().world
    earlier = LogSettings(world)
    earlier.levels = INITIAL._replace(error=False)
    same, other = LogSettings(world), LogSettings(world, INITIAL._replace(verbose=1))
    same.restore(earlier.saved())
    assert same.levels == INITIAL._replace(error=False)
    other.restore(earlier.saved())
    assert other.levels == INITIAL._replace(verbose=1)


@pytest.mark.parametrize(
    ("levels", "numbers"),
    [
        (INITIAL, {20, 30, 40, 50}),
        (INITIAL._replace(info=False), {30, 40, 50}),
        (INITIAL._replace(warning=False), {20, 40, 50}),
        (INITIAL._replace(error=False), {20, 30}),
        (INITIAL._replace(verbose=1), {10, 20, 30, 40, 50}),
        (INITIAL._replace(info=False, verbose=1), {10, 30, 40, 50}),
    ],
)
def test_each_level_is_a_switch_of_its_own(levels: LogLevels, numbers: set[int]) -> None:
    assert {number for number in (10, 20, 30, 40, 50) if shows(levels, number)} == numbers
