"""The metrics port as it is asked for on the command line."""

from __future__ import annotations

import re

import click
import pytest

from naiad.cli.exit_codes import ExitCode
from naiad.cli.failure import CommandFailed
from naiad.cli.metrics_listener import opened


def test_off_is_nothing_at_all() -> None:
    listener = opened("off", None, "127.0.0.1")
    assert (listener.url, listener.descriptors) == ("", {})
    listener.close()


@pytest.mark.parametrize(
    ("metrics_address", "http_address", "host"),
    [
        (None, "127.0.0.1", "127.0.0.1"),
        (None, "127.0.0.3", "127.0.0.3"),
        (None, "unix:/run/http.sock", "127.0.0.1"),
        ("127.0.0.2", "127.0.0.3", "127.0.0.2"),
        ("127.0.0.2", "unix:/run/http.sock", "127.0.0.2"),
    ],
)
def test_it_listens_where_http_does_unless_told_otherwise(
    metrics_address: str | None, http_address: str, host: str
) -> None:
    listener = opened("0", metrics_address, http_address)
    try:
        assert re.fullmatch(rf"http://{re.escape(host)}:[1-9]\d*/metrics", listener.url)
        assert listener.socket is not None
        assert listener.descriptors == {"--fd": [listener.socket.fileno()]}
    finally:
        listener.close()


@pytest.mark.parametrize("port", ["", "-1", "65536", "8002x", "٣", "8002.0", "OFF"])
def test_what_is_no_port_is_refused_by_name(port: str) -> None:
    with pytest.raises(click.UsageError, match="--metrics-port: expected a port"):
        opened(port, None, "127.0.0.1")


def test_an_address_must_be_one_that_prometheus_can_ask() -> None:
    with pytest.raises(click.UsageError, match="--metrics-address"):
        opened("0", "unix:/run/metrics.sock", "127.0.0.1")


def test_a_taken_port_is_one_sentence_and_an_exit_code_of_its_own() -> None:
    first = opened("0", None, "127.0.0.1")
    assert first.socket is not None
    port = first.socket.getsockname()[1]
    try:
        with pytest.raises(CommandFailed, match=f"port {port} on 127.0.0.1 is taken") as raised:
            opened(str(port), None, "127.0.0.1")
        assert raised.value.code == ExitCode.PORT
    finally:
        first.close()
