"""`NAME=value` of a command line as arrays of the type and shape that a model expects.

Reads the files that are named; knows nothing of servers. What does not fit the shape is sent as it
is: the server's refusal says what it expected.
"""

from __future__ import annotations

import io
import json
import math
import sys
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from naiad.cli.exit_codes import ExitCode
from naiad.cli.failure import CommandFailed
from naiad.client.tensors import to_bfloat16
from naiad.protocol.datatypes import NUMPY_NAME

Array = npt.NDArray[Any]
SHOWN_CHARS_MAX: Final = 40


def split(argument: str) -> tuple[str, str]:
    """NAME and what stands after the first =. Raises CommandFailed (USAGE)."""
    name, separator, value = argument.partition("=")
    if not separator or not name:
        raise _wrong(f"expected NAME=value or NAME=@file, got {_cut(argument)!r}")
    return name, value


def array(name: str, value: str, datatype: str, shape: tuple[int, ...]) -> Array:
    """The input's array.

    Args:
        value: JSON, plain text (BYTES), @file (.npy, .json, otherwise raw bytes) or @- (stdin).
        datatype: KServe's name, e.g. FP32.
        shape: what the model takes, -1 for any; a missing batch dimension is added.

    Raises CommandFailed (USAGE) for what cannot become such an array.
    """
    found = _from_file(name, value[1:], datatype) if value.startswith("@") else None
    if found is None:
        found = _from_text(name, value, datatype)
    return fitted(found, shape)


def fitted(given: Array, shape: tuple[int, ...]) -> Array:
    """The array in the model's shape where that is without doubt, else unchanged."""
    if _matches(given.shape, shape):
        return given
    if _matches((1,) * (len(shape) - given.ndim) + given.shape, shape):
        return given.reshape((1,) * (len(shape) - given.ndim) + given.shape)
    free = [index for index, dim in enumerate(shape) if dim < 0]
    fixed = math.prod(dim for dim in shape if dim >= 0)
    if given.ndim <= 1 and fixed and given.size % fixed == 0:
        filled = [1 if dim < 0 else dim for dim in shape]
        if free:
            filled[free[-1]] = given.size // fixed
        if math.prod(filled) == given.size:
            return given.reshape(filled)
    return given


def _matches(given: tuple[int, ...], wanted: tuple[int, ...]) -> bool:
    return len(given) == len(wanted) and all(
        want in (-1, have) for have, want in zip(given, wanted, strict=True)
    )


def _from_text(name: str, text: str, datatype: str) -> Array:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        if datatype == "BYTES":
            return _strings([text])
        raise _wrong(
            f"input {name}: expected a number or a JSON list for {datatype}, got {_cut(text)!r}; "
            "a file is given as @path"
        ) from error
    if datatype == "BYTES" and isinstance(value, int | float | bool | dict):
        return _strings([text])
    return _from_json(name, value, datatype)


def _from_json(name: str, value: Any, datatype: str) -> Array:
    try:
        if datatype == "BYTES":
            shape = np.shape(np.array(value, dtype=object))
            return _strings(_flat(value)).reshape(shape)
        if datatype == "BF16":
            return to_bfloat16(np.array(value, dtype=np.float32))
        return np.array(value, dtype=NUMPY_NAME[datatype])
    except (ValueError, TypeError, OverflowError) as error:
        raise _wrong(f"input {name}: {error}; expected values for {datatype}") from error


def _flat(value: Any) -> list[str]:
    if isinstance(value, list):
        return [leaf for item in value for leaf in _flat(item)]
    if not isinstance(value, str):
        raise TypeError(f"got {_cut(json.dumps(value))} among strings")
    return [value]


def _strings(items: list[str] | list[bytes]) -> Array:
    out = np.empty(len(items), dtype=object)
    out[:] = [item.encode() if isinstance(item, str) else item for item in items]
    return out


def _from_file(name: str, path: str, datatype: str) -> Array:
    try:
        content = sys.stdin.buffer.read() if path == "-" else Path(path).read_bytes()
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise _wrong(f"input {name}: cannot read {path}: {reason}") from error
    if path.endswith(".npy"):
        return _from_npy(name, path, content)
    if path.endswith(".json"):
        return _from_text(name, content.decode("utf-8", "replace"), datatype)
    if datatype == "BYTES":
        return _strings([content])
    kind = np.dtype("<u2" if datatype == "BF16" else NUMPY_NAME[datatype]).newbyteorder("<")
    if len(content) % kind.itemsize:
        raise _wrong(
            f"input {name}: {path} has {len(content)} bytes, not a multiple of the "
            f"{kind.itemsize} bytes of {datatype}"
        )
    return np.frombuffer(content, dtype=kind)


def _from_npy(name: str, path: str, content: bytes) -> Array:
    try:
        loaded: Array = np.lib.format.read_array(io.BytesIO(content), allow_pickle=False)
    except (ValueError, EOFError, MemoryError, OverflowError, TypeError, SyntaxError) as error:
        raise _wrong(
            f"input {name}: {path} is not an array of numbers or strings as numpy.save writes it "
            f"({len(content)} bytes; an array of Python objects cannot be read)"
        ) from error
    return loaded


def _cut(text: str) -> str:
    return text if len(text) <= SHOWN_CHARS_MAX else f"{text[:SHOWN_CHARS_MAX]}…"


def _wrong(text: str) -> CommandFailed:
    return CommandFailed(text, ExitCode.USAGE)
