"""The one table of naiad.* parameters."""

from __future__ import annotations

import pytest

from naiad.config.parameters import TABLE, NaiadParameters, read_parameters


def test_defaults_without_parameters() -> None:
    assert read_parameters({}) == (NaiadParameters(), [])
    assert NaiadParameters().retry is True
    assert NaiadParameters().execution_timeout_ms == 0
    assert NaiadParameters().load_timeout_s == 600


def test_the_table_has_a_row_with_a_meaning_for_each_field() -> None:
    assert [row.name for row in TABLE][:2] == ["naiad.retry", "naiad.split_failed_batches"]
    assert all(row.meaning for row in TABLE)
    assert all(row.unit for row in TABLE if row.kind is int)


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("naiad.retry", "false", False),
        ("naiad.retry", " Yes ", True),
        ("naiad.late_batch", "0", False),
        ("naiad.execution_timeout_ms", "250", 250),
        ("naiad.threads", "0", 0),
        ("naiad.max_queue_size", "17", 17),
    ],
)
def test_value(name: str, text: str, expected: object) -> None:
    values, faults = read_parameters({name: text})

    assert faults == []
    assert getattr(values, name.removeprefix("naiad.")) == expected


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("naiad.retry", "maybe", '"true" or "false"'),
        ("naiad.load_timeout_s", "0", "a whole number from 1 to 604800 (s)"),
        ("naiad.threads", "-1", "a whole number from 0"),
        ("naiad.threads", "1.5", "a whole number"),
        ("naiad.threads", "٣", "a whole number"),
        ("naiad.max_queue_size", "9" * 400, "a whole number"),
    ],
)
def test_a_bad_value_is_a_fault_and_the_default_stands(name: str, text: str, expected: str) -> None:
    values, (fault,) = read_parameters({name: text})

    assert values == NaiadParameters()
    assert fault.where == f'parameters["{name}"]'
    assert expected in fault.message


def test_an_unknown_name_is_a_fault_with_the_one_that_was_meant() -> None:
    _, (near, far) = read_parameters({"naiad.retri": "true", "naiad.zzz": "1"})

    assert near.remedy == 'did you mean "naiad.retry"?'
    assert "naiad.crash_budget" in far.remedy


def test_other_parameters_are_the_backends_own() -> None:
    assert read_parameters({"intra_op_thread_count": "x", "": "y"})[1] == []
