"""What `import triton_python_backend_utils as pb_utils` gives a model.py, by Triton's names.

The python backend puts this module into sys.modules under that name. What naiad does not serve yet
is here too and raises an error that says so.
"""

from __future__ import annotations

from typing import NoReturn

from naiad.worker.backends.triton_python.datatypes import (
    deserialize_bytes_tensor,
    numpy_to_triton_type,
    serialize_byte_tensor,
    triton_string_to_numpy,
    triton_to_numpy_type,
)
from naiad.worker.backends.triton_python.errors import (
    NotInThisRelease,
    TritonError,
    TritonModelException,
    not_in_this_release,
)
from naiad.worker.backends.triton_python.exchange import (
    TRITONSERVER_REQUEST_FLAG_SEQUENCE_END,
    TRITONSERVER_REQUEST_FLAG_SEQUENCE_START,
    TRITONSERVER_REQUEST_RELEASE_ALL,
    TRITONSERVER_REQUEST_RELEASE_RESCHEDULE,
    TRITONSERVER_RESPONSE_COMPLETE_FINAL,
    InferenceRequest,
    InferenceResponse,
    InferenceResponseSender,
    InferenceTrace,
    MemoryType,
    PreferredMemory,
)
from naiad.worker.backends.triton_python.logger import Logger, LogLevel
from naiad.worker.backends.triton_python.model_config import (
    ModelConfig,
    get_input_config_by_name,
    get_output_config_by_name,
    using_decoupled_model_transaction_policy,
)
from naiad.worker.backends.triton_python.tensor import Tensor

__all__ = [
    "TRITONSERVER_MEMORY_CPU",
    "TRITONSERVER_MEMORY_GPU",
    "TRITONSERVER_REQUEST_FLAG_SEQUENCE_END",
    "TRITONSERVER_REQUEST_FLAG_SEQUENCE_START",
    "TRITONSERVER_REQUEST_RELEASE_ALL",
    "TRITONSERVER_REQUEST_RELEASE_RESCHEDULE",
    "TRITONSERVER_RESPONSE_COMPLETE_FINAL",
    "InferenceRequest",
    "InferenceResponse",
    "InferenceResponseSender",
    "InferenceTrace",
    "LogLevel",
    "Logger",
    "MemoryType",
    "MetricFamily",
    "ModelConfig",
    "NotInThisRelease",
    "PreferredMemory",
    "Tensor",
    "TritonError",
    "TritonModelException",
    "deserialize_bytes_tensor",
    "get_input_config_by_name",
    "get_input_tensor_by_name",
    "get_output_config_by_name",
    "get_output_tensor_by_name",
    "is_model_ready",
    "load_model",
    "numpy_to_triton_type",
    "serialize_byte_tensor",
    "triton_string_to_numpy",
    "triton_to_numpy_type",
    "unload_model",
    "using_decoupled_model_transaction_policy",
]

TRITONSERVER_MEMORY_CPU = MemoryType.TRITONSERVER_MEMORY_CPU
TRITONSERVER_MEMORY_GPU = MemoryType.TRITONSERVER_MEMORY_GPU

_CONTROL = "use `naiad load` and `naiad unload`, or the client"


def get_input_tensor_by_name(inference_request: InferenceRequest, name: str) -> Tensor | None:
    """The input of that name, or None."""
    for tensor in inference_request.inputs():
        if tensor.name() == name:
            return tensor
    return None


def get_output_tensor_by_name(inference_response: InferenceResponse, name: str) -> Tensor | None:
    """The output of that name, or None."""
    for tensor in inference_response.output_tensors():
        if tensor.name() == name:
            return tensor
    return None


class MetricFamily:
    """Metrics of a model's own."""

    COUNTER = 0
    GAUGE = 1
    HISTOGRAM = 2

    def __init__(self, *_: object, **__: object) -> None:
        not_in_this_release("MetricFamily (metrics of a model)", "log what you want to know")


def load_model(model_name: str, config: str = "", files: object = None) -> NoReturn:
    not_in_this_release("load_model", _CONTROL)


def unload_model(model_name: str, unload_dependents: bool = False) -> NoReturn:
    not_in_this_release("unload_model", _CONTROL)


def is_model_ready(model_name: str, model_version: str = "") -> NoReturn:
    not_in_this_release("is_model_ready", "use `naiad status`, or the client")
