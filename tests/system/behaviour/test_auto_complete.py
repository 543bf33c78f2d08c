"""With --disable-auto-complete-config a configuration is what the operator wrote."""

from __future__ import annotations

from pathlib import Path

from naiad.testing.server import serve
from support.models import add_python

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
