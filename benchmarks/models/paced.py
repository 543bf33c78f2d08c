"""A model.py whose executions take `execution_ms` of its config, whatever the batch: it sleeps, as
a worker does that waits for a device. Output i is input i."""

from __future__ import annotations

import json
import time
from typing import Any

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args: dict[str, str]) -> None:
        parameters = json.loads(args["model_config"])["parameters"]
        self._seconds = float(parameters["execution_ms"]["string_value"]) / 1e3

    def execute(self, requests: list[Any]) -> list[Any]:
        responses = []
        for request in requests:
            array = pb_utils.get_input_tensor_by_name(request, "INPUT0").as_numpy()
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", array)]))
        if self._seconds:
            time.sleep(self._seconds)
        return responses
