"""Values of every datatype for the echo models of the gRPC tests, and requests with them."""

from __future__ import annotations

from typing import Any, Final

import ml_dtypes
import numpy as np
import tritonclient.grpc as triton

DATATYPES: Final = {
    "BOOL": np.array([True, False, True]),
    "INT8": np.array([-128, 0, 127], np.int8),
    "INT16": np.array([-(2**15), 0, 2**15 - 1], np.int16),
    "INT32": np.array([-(2**31), 0, 2**31 - 1], np.int32),
    "INT64": np.array([-(2**63), 0, 2**63 - 1], np.int64),
    "UINT8": np.array([0, 1, 255], np.uint8),
    "UINT16": np.array([0, 1, 2**16 - 1], np.uint16),
    "UINT32": np.array([0, 1, 2**32 - 1], np.uint32),
    "UINT64": np.array([0, 1, 2**64 - 1], np.uint64),
    "FP16": np.array([0.5, -2.0, np.inf], np.float16),
    "FP32": np.array([0.5, -2.0, np.nan], np.float32),
    "FP64": np.array([0.5, -2.0, -np.inf], np.float64),
    "BF16": np.array([0.5, -2.0, 4.0], ml_dtypes.bfloat16),
    "BYTES": np.array([b"one", b"", b"\0\xff"], object),
}

FINAL: Final = "triton_final_response"


def tensor(datatype: str, array: Any, name: str = "INPUT0") -> Any:
    """An InferInput with these values."""
    return triton.InferInput(name, list(array.shape), datatype).set_data_from_numpy(array)


def floats(*values: float) -> list[Any]:
    """The inputs of `echo_fp32`."""
    return [tensor("FP32", np.array(values, np.float32))]
