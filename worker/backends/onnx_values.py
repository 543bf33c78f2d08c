"""What ONNX Runtime's NumPy interface cannot carry: text kept exactly, and BF16.

Strings are UTF-8 text there, in and out; NumPy has no BF16, whose bits travel as uint16.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import onnxruntime

from naiad.protocol.errors import RequestError

if TYPE_CHECKING:
    from naiad.worker.backends.base import Array

_ONNX_BFLOAT16 = 16


def text_array(name: str, array: Array) -> Array:
    """An object array of str for one of bytes.

    Raises RequestError for an element that is not UTF-8: this engine's Python interface takes
    text only, and changing the bytes would change the answer.
    """
    texts = np.empty(array.size, dtype=np.object_)
    for index, element in enumerate(array.ravel().tolist()):
        try:
            texts[index] = element.decode()
        except UnicodeDecodeError as error:
            raise RequestError(
                f"input {name!r}: element {index} is not UTF-8 ({error.reason} at byte "
                f"{error.start}); ONNX Runtime takes strings as UTF-8 text only"
            ) from error
    return texts.reshape(array.shape)


def run_as_values(
    session: Any,
    names: Sequence[str],
    feeds: Mapping[str, Array],
    datatypes: Mapping[str, str],
    options: Any,
) -> list[Array]:
    """session.run for models with BF16 tensors: their bits are uint16 on both sides."""
    from_bits = onnxruntime.OrtValue.ortvalue_from_numpy_with_onnx_type
    values = {
        name: from_bits(np.ascontiguousarray(array).reshape(array.shape), _ONNX_BFLOAT16)
        if datatypes[name] == "BF16"
        else onnxruntime.OrtValue.ortvalue_from_numpy(array)
        for name, array in feeds.items()
    }
    results = session.run_with_ort_values(list(names), values, options)
    return [
        _bits(result) if result.element_type() == _ONNX_BFLOAT16 else result.numpy()
        for result in results
    ]


def _bits(value: Any) -> Array:
    """A copy of a BF16 tensor's bits."""
    packed = ctypes.string_at(value.data_ptr(), value.tensor_size_in_bytes())
    return np.frombuffer(packed, dtype=np.uint16).reshape(value.shape())
