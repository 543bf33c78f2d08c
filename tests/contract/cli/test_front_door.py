"""The sockets of `naiad serve`: all or none, and nothing of them is left."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from naiad.cli.exit_codes import ExitCode
from naiad.cli.failure import CommandFailed
from naiad.cli.front_door import FrontDoor, opened


def door(**given: Any) -> FrontDoor:
    tls = {
        f"{skin}_{name}": None
        for skin in ("http", "grpc")
        for name in ("use_ssl", "use_ssl_mutual", "server_cert", "server_key", "root_cert")
    }
    usual: dict[str, Any] = {
        "http_port": "0", "http_address": "127.0.0.1", "grpc_port": "0", "grpc_address": None,
        "gateways": 1, "drain_seconds": 1.0, "http_max_input_size": None,
        "http_header_forward_pattern": None, "allow_client_shm": "auto",
        "allow_management": "auto", "grace_seconds": 0.0, "management_address": None,
        "management_port": None, "http_restricted_api": (), "grpc_restricted_protocol": (), **tls,
    }  # fmt: skip
    return opened(**{**usual, **given})


@pytest.mark.parametrize("option", ["http_address", "grpc_address", "management_address"])
def test_unix_sockets_are_removed_at_the_end(option: str, tmp_path: Path) -> None:
    path = tmp_path / "socket"
    one = door(**{option: f"unix:{path}"})
    assert path.is_socket()
    one.close()
    assert not path.exists()


def test_a_taken_port_leaves_nothing_open_and_no_path(tmp_path: Path) -> None:
    path = tmp_path / "socket"
    first = door()
    (taken,) = first.grpc
    port = str(taken.getsockname()[1])
    with pytest.raises(CommandFailed) as raised:
        door(http_address=f"unix:{path}", grpc_address="127.0.0.1", grpc_port=port)
    assert raised.value.code == ExitCode.PORT
    assert not path.exists()
    first.close()


def test_gateways_are_told_the_same_by_the_same_names_and_no_secret(tmp_path: Path) -> None:
    groups = tmp_path / "groups"
    groups.write_text("health:a=hidden")
    given = ("metadata:b=hidden", f"@{groups}")
    one = door(
        http_port="off", http_max_input_size=1000, http_restricted_api=given, user_header="u"
    )
    assert {
        "--no-http", "--drain-seconds=1.0", "--http-max-input-size=1000", "--user-header=u",
        f"--http-restricted-api=@{groups}",
    } <= set(one.arguments)  # fmt: skip
    assert "hidden" not in " ".join(one.arguments)
    assert one.descriptors["--http-restricted-api-fd"]
    assert not one.http
    one.close()
