"""The command line of a gateway: wrong values end it at once, with the reason."""

from __future__ import annotations

import pytest

from naiad.gateway.options import parser
from naiad.metrics.__main__ import parser as metrics_parser

PORTS = ("65536", "-1", "8000x", "9" * 5000, "")


def refusal(capsys: pytest.CaptureFixture[str], argument: str) -> str:
    with pytest.raises(SystemExit, match="2"):
        parser().parse_args(["--run-dir", "x", argument])
    return capsys.readouterr().err


@pytest.mark.parametrize("option", ["--http-port", "--grpc-port", "--management-port"])
@pytest.mark.parametrize("value", PORTS)
def test_what_is_no_port(option: str, value: str, capsys: pytest.CaptureFixture[str]) -> None:
    said = refusal(capsys, f"{option}={value}")
    assert f"argument {option}: expected a port (0 to 65535), got '{value[:70]}" in said


@pytest.mark.parametrize("value", PORTS)
def test_what_is_no_port_for_metrics(value: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        metrics_parser().parse_args(["--run-dir", "x", f"--port={value}"])
    assert "argument --port: expected a port (0 to 65535), got" in capsys.readouterr().err


@pytest.mark.parametrize("value", ["0", "-1", "1k", "9" * 5000])
def test_what_is_no_size(value: str, capsys: pytest.CaptureFixture[str]) -> None:
    said = refusal(capsys, f"--http-max-input-size={value}")
    assert "--http-max-input-size: expected a number of bytes from 1, got" in said


@pytest.mark.parametrize("value", ["(", "*x", "a{99999999999}", "(" * 5000 + ")" * 5000])
@pytest.mark.parametrize("skin", ["http", "grpc"])
def test_what_is_no_pattern(skin: str, value: str, capsys: pytest.CaptureFixture[str]) -> None:
    said = refusal(capsys, f"--{skin}-header-forward-pattern={value}")
    assert f"--{skin}-header-forward-pattern: expected a regular expression" in said


def test_what_is_no_header(capsys: pytest.CaptureFixture[str]) -> None:
    assert "expected the name of a header, such as X-User" in refusal(capsys, "--user-header=a b")


def test_right_values() -> None:
    given = ("--http-port=0", "--http-max-input-size=7", "--grpc-header-forward-pattern=^x-.*")
    found = parser().parse_args(["--run-dir", "x", *given])
    assert (found.http_port, found.http_max_input_size) == (0, 7)
    assert found.grpc_header_forward_pattern == "^x-.*"
