"""Log settings over both protocols, obeyed by every process, and kept over the broker's death."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as triton_grpc
import tritonclient.http as triton_http
from tritonclient.utils import InferenceServerException

from naiad.testing.server import Server, serve
from support.models import add_python
from support.models_python import python_model
from support.waiting import wait_until

TALKS = python_model(
    """
    pb_utils.Logger.log_info("said as info")
    pb_utils.Logger.log_verbose("said as verbose")
    pb_utils.Logger.log_error("said as error")
    return [output(array_of(request)) for request in requests]
    """
)
WRONG = {"400", "StatusCode.INVALID_ARGUMENT"}
USUAL = {
    "log_info": True,
    "log_warning": True,
    "log_error": True,
    "log_verbose_level": 0,
    "log_format": "ISO8601",
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    repository = tmp_path_factory.mktemp("repository")
    add_python(repository, "talks", TALKS, ["INPUT0 FP32 -1"], ["OUTPUT0 FP32 -1"])
    arguments = ["--http-port", "0", "--grpc-port", "0", "--gateways", "2", "--spares", "0"]
    with serve(repository, arguments=arguments) as server:
        yield server


@pytest.fixture(params=["http", "grpc"])
def door(request: pytest.FixtureRequest, server: Server) -> Iterator[Any]:
    if request.param == "http":
        client = triton_http.InferenceServerClient(server.http_url.removeprefix("http://"))
    else:
        client = triton_grpc.InferenceServerClient(server.grpc_target)
    yield client
    client.update_log_settings(USUAL)
    client.close()


def settings(found: Any) -> dict[str, Any]:
    """As plain values, from either protocol's answer."""
    if isinstance(found, dict):
        return found
    return {
        name: getattr(value, value.WhichOneof("parameter_choice"))
        for name, value in found.settings.items()
    }


def said(server: Server, what: str) -> int:
    """How often the log says so, once another inference has been answered."""
    with server.client() as client:
        client.infer("talks", {"INPUT0": np.zeros(1, np.float32)})
        count = server.log.count("said as error")
        # What a worker writes arrives in order, and every inference ends with this line.
        client.infer("talks", {"INPUT0": np.zeros(1, np.float32)})
        wait_until(lambda: server.log.count("said as error") > count, "the worker's last line")
    return server.log.count(what)


def test_the_settings_are_those_of_triton_and_change_together(door: Any) -> None:
    assert settings(door.get_log_settings()) == {"log_file": "", **USUAL}
    changed = {"log_verbose_level": 2, "log_warning": False, "log_format": "default"}
    assert settings(door.update_log_settings(changed)) == {"log_file": "", **USUAL, **changed}
    assert settings(door.get_log_settings()) == {"log_file": "", **USUAL, **changed}
    assert settings(door.update_log_settings({})) == {"log_file": "", **USUAL, **changed}


@pytest.mark.parametrize(
    ("change", "text", "statuses"),
    [
        ({"log_file": "/tmp/x"}, "can not be updated", {"501", "StatusCode.UNIMPLEMENTED"}),
        ({"log_format": "xml"}, "invalid argument for --log_format", WRONG),
        ({"log_inf": True}, 'did you mean "log_info"', WRONG),
    ],
)
def test_what_cannot_be_set_is_refused(
    door: Any, change: dict[str, Any], text: str, statuses: set[str]
) -> None:
    with pytest.raises(InferenceServerException, match=re.escape(text)) as raised:
        door.update_log_settings(change)
    assert raised.value.status() in statuses
    assert settings(door.get_log_settings()) == {"log_file": "", **USUAL}


def test_models_log_what_the_settings_say(server: Server, door: Any) -> None:
    before = said(server, "said as verbose")
    assert said(server, "said as verbose") == before
    door.update_log_settings({"log_verbose_level": 1})
    assert said(server, "said as verbose") > before
    door.update_log_settings({"log_info": False})
    before = said(server, "said as info")
    assert said(server, "said as info") == before


def test_every_gateway_follows(server: Server, door: Any) -> None:
    door.update_log_settings({"log_verbose_level": 1})
    gateways = [name for name in server.pids if name.startswith("gateway-")]
    assert len(gateways) == 2
    ports = server.http_url.removeprefix("http://")

    def all_told() -> bool:
        client = triton_http.InferenceServerClient(ports)
        try:
            client.is_server_live()
        finally:
            client.close()
        lines = [rf"{one}\[\d+\] DEBUG GET /v2/health/live" for one in gateways]
        return all(re.search(line, server.log) for line in lines)

    wait_until(all_told, "a verbose line of each gateway")


def test_the_settings_outlive_the_broker_and_its_log_obeys(server: Server, door: Any) -> None:
    door.update_log_settings({"log_info": False, "log_format": "default"})
    end = len(server.log)
    os.kill(server.pids["broker"], signal.SIGKILL)

    def answers() -> bool:
        try:
            return settings(door.get_log_settings())["log_info"] is False
        except InferenceServerException:
            return False

    wait_until(answers, "the next broker answers")
    assert settings(door.get_log_settings())["log_format"] == "default"
    wait_until(lambda: "restarting it" in server.log[end:], "the supervisor's line")
    written = server.log[end:]
    assert re.search(r"^W\d{4} \d\d:\d\d:\d\d\.\d{6} \d+ supervisor broker", written, re.M)
    assert "INFO broker:" not in written.split("restarting it")[1]
    before = said(server, "said as info")
    assert said(server, "said as info") == before
