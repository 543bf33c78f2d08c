"""The gRPC port of `naiad serve`: its supervisor listens, and its gateways inherit the socket."""

from __future__ import annotations

import os
import signal
from typing import Any

import grpc
import pytest
import tritonclient.grpc as triton
from tritonclient.utils import InferenceServerException

from naiad.config.listening import listening
from naiad.testing.server import ServerFailed, serve
from support.grpc_models import floats
from support.models import add_echo
from support.waiting import wait_until

PATIENCE_S = 20


def test_a_second_server_does_not_share_the_first_ones_port(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    repository = tmp_path_factory.mktemp("repository")
    with listening("127.0.0.1", 0, what="--grpc-port") as keeper:
        port = str(keeper.getsockname()[1])
        add_echo(repository, "echo_fp32", "FP32 -1")

        with (
            pytest.raises(ServerFailed, match="choose another --grpc-port"),
            serve(repository, arguments=["--grpc-port", port]),
        ):
            pass


def test_gateways_die_and_come_back_on_their_port(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    repository = tmp_path_factory.mktemp("repository")
    add_echo(repository, "echo_fp32", "FP32 -1")
    arguments = ["--grpc-port", "0", "--gateways", "2", "--spares", "0"]
    with serve(repository, arguments=arguments) as server:
        target = server.grpc_target

        def answer() -> Any:
            with triton.InferenceServerClient(target) as client:
                try:
                    return client.infer("echo_fp32", floats(5)).as_numpy("OUTPUT0").tolist()
                except InferenceServerException:
                    return None

        with grpc.insecure_channel(target) as channel:
            grpc.channel_ready_future(channel).result(PATIENCE_S)
        gateways = {name: pid for name, pid in server.pids.items() if "gateway" in name}
        assert len(gateways) == 2

        for pid in gateways.values():
            os.kill(pid, signal.SIGKILL)

        wait_until(lambda: answer() == [5], "answers again", PATIENCE_S)
