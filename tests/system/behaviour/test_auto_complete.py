"""Configurations that backends and models complete, and those that stay as the operator wrote."""

from __future__ import annotations

import json
import urllib.request
from pathlib import Path

import numpy as np
import tritonclient.grpc as triton_grpc

from naiad.testing.server import serve
from support.models import add_onnx_echo, add_python

COMPLETES = """
class TritonPythonModel:
    @staticmethod
    def auto_complete_config(config):
        config.add_input({"name": "added", "data_type": "TYPE_FP32", "dims": [1]})
        return config

    def execute(self, requests):
        raise NotImplementedError
"""


def test_a_models_own_code_adds_nothing(tmp_path: Path) -> None:
    add_python(tmp_path, "m", COMPLETES)
    for arguments, added in (([], True), (["--disable-auto-complete-config"], False)):
        with serve(tmp_path, arguments=arguments) as server, server.client() as client:
            names = [one["name"] for one in client.config("m")["input"]]
            assert ("added" in names) == added


COMPLETES_ALL = """
import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    @staticmethod
    def auto_complete_config(config):
        config.add_input({"name": "I", "data_type": "TYPE_FP32", "dims": [4]})
        config.add_output({"name": "CONFIG", "data_type": "TYPE_STRING", "dims": [1]})
        config.set_max_batch_size(4)
        config.set_dynamic_batching()
        return config

    def initialize(self, args):
        self.seen = np.array([[args["model_config"]]], object)

    def execute(self, requests):
        return [pb_utils.InferenceResponse([pb_utils.Tensor("CONFIG", self.seen)])]
"""


def test_a_completed_config_is_whole_wherever_it_is_read(tmp_path: Path) -> None:
    (tmp_path / "code" / "1").mkdir(parents=True)
    (tmp_path / "code" / "1" / "model.py").write_text(COMPLETES_ALL)
    add_onnx_echo(tmp_path, "graph")
    arguments = ["--http-port", "0", "--grpc-port", "0"]
    with serve(tmp_path, arguments=arguments) as server, server.client() as client:
        shown = {name: client.config(name) for name in ("code", "graph")}
        for name, config in shown.items():
            assert config["max_batch_size"] == 4
            assert config["dynamic_batching"]["preferred_batch_size"] == [4]
            assert config["dynamic_batching"]["priority_queue_policy"] == {}
            assert config["input"][0]["format"] == "FORMAT_NONE"
            assert config["output"][0]["label_filename"] == ""
            with urllib.request.urlopen(f"{server.http_url}/v2/models/{name}/config") as answer:
                assert json.load(answer) == config
            with triton_grpc.InferenceServerClient(server.grpc_target) as door:
                message = door.get_model_config(name).config
            assert list(message.dynamic_batching.preferred_batch_size) == [4]
        found = client.infer("code", {"I": np.zeros((1, 4), np.float32)})
        assert json.loads(found["CONFIG"][0, 0]) == shown["code"]
