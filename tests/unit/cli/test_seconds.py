"""Numbers on a command line that are none, or that nobody can mean."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from naiad.cli.exit_codes import ExitCode
from naiad.cli.main import main
from naiad.config.settings import SECONDS_MAX, SPARES_MAX, Settings
from naiad.worker.__main__ import main as worker

SECONDS = [
    ["serve", ".", "--drain-seconds"],
    ["serve", ".", "--scan-timeout-seconds"],
    ["serve", ".", "--grace-seconds"],
    ["perf", "-m", "m", "--duration"],
    ["infer", "m", "--timeout"],
]


@pytest.mark.parametrize("option", SECONDS, ids=lambda option: option[-1])
@pytest.mark.parametrize("value", ["nan", "inf", "-inf", "1e300", "-1", "9" * 400, "soon"])
def test_no_number_of_seconds(
    option: list[str], value: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*option, value]) == ExitCode.USAGE
    (line,) = capsys.readouterr().err.splitlines()
    assert f"Invalid value for '{option[-1]}': expected seconds, " in line
    assert " to 31536000 (a year), got " in line
    assert len(line) < 300


@pytest.mark.parametrize("value", ["nan", "inf", "1e300", "-1"])
def test_every_time_of_the_settings_has_a_bound(value: str) -> None:
    times = [row.name for row in dataclasses.fields(Settings) if row.name.endswith("_seconds")]
    assert "drain_seconds" in times
    for name in times:
        given: dict[str, Any] = {name: float(value)}
        settings = Settings(run_dir="/r", **given)
        (fault,) = settings.faults()
        assert fault.startswith(f"{name}: expected ")
        given[name] = SECONDS_MAX
        assert Settings(run_dir="/r", **given).faults() == []


@pytest.mark.parametrize("option", ["--grace", "--absence-max"])
@pytest.mark.parametrize("value", ["nan", "inf", "1e300", "-1", "soon"])
def test_a_worker_takes_no_such_number_either(
    option: str, value: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as end:
        worker(["--run-dir", "/nowhere", "--slot", "cpu-0", f"{option}={value}"])
    assert end.value.code == ExitCode.USAGE
    assert f"argument {option}: " in capsys.readouterr().err.splitlines()[-1]


@pytest.mark.parametrize("version", ["-1", "9223372036854775808", "9" * 30, "1.0"])
def test_no_version(version: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["infer", "m", "--version", version]) == ExitCode.USAGE
    assert "Invalid value for '--version'" in capsys.readouterr().err


def test_spares_have_a_bound() -> None:
    assert Settings(run_dir="/r", spare_workers_count=SPARES_MAX).faults() == []
    (fault,) = Settings(run_dir="/r", spare_workers_count=SPARES_MAX + 1).faults()
    assert fault.startswith("spare_workers_count: expected at most ")
