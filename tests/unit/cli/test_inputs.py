"""NAME=value as arrays: every way to give one, and what is said about those that are none."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from naiad.cli import inputs
from naiad.cli.failure import CommandFailed
from naiad.client.tensors import from_bfloat16
from naiad.protocol.datatypes import NUMPY_NAME


@pytest.mark.parametrize(
    ("value", "datatype", "shape", "expected"),
    [
        ("[1, 2, 3]", "FP32", (-1, 3), [[1, 2, 3]]),
        ("[[1, 2, 3], [4, 5, 6]]", "FP32", (-1, 3), [[1, 2, 3], [4, 5, 6]]),
        ("[1, 2, 3, 4, 5, 6]", "INT64", (-1, 3), [[1, 2, 3], [4, 5, 6]]),
        ("[1, 2, 3, 4]", "INT8", (2, 2), [[1, 2], [3, 4]]),
        ("7", "INT32", (1,), [7]),
        ("7", "INT32", (-1, 1), [[7]]),
        ("[true, false]", "BOOL", (2,), [True, False]),
        ("hello", "BYTES", (-1, -1), [[b"hello"]]),
        ('["a", "b"]', "BYTES", (-1, -1), [[b"a", b"b"]]),
        ('[["a"], ["b"]]', "BYTES", (-1, 1), [[b"a"], [b"b"]]),
        ('["\u00e9"]', "BYTES", (1,), ["\u00e9".encode()]),
        ("12", "BYTES", (1,), [b"12"]),
        ('{"a": 1}', "BYTES", (1,), [b'{"a": 1}']),
        ("[1, 2, 3, 4]", "FP32", (-1, 3), [1, 2, 3, 4]),  # does not fit: the server says so
    ],
)
def test_values(value: str, datatype: str, shape: tuple[int, ...], expected: Any) -> None:
    array = inputs.array("x", value, datatype, shape)
    assert array.tolist() == expected
    if datatype != "BYTES":
        assert array.dtype == np.dtype(NUMPY_NAME[datatype])


def test_bfloat16_is_rounded_to_its_bits() -> None:
    array = inputs.array("x", "[1.0, 2.5]", "BF16", (2,))
    assert from_bfloat16(array).tolist() == [1.0, 2.5]


def test_files(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.arange(6, dtype=np.float32))
    assert inputs.array("x", f"@{tmp_path}/a.npy", "FP32", (-1, 3)).shape == (2, 3)
    (tmp_path / "a.json").write_text("[1, 2]")
    assert inputs.array("x", f"@{tmp_path}/a.json", "INT32", (2,)).tolist() == [1, 2]
    (tmp_path / "a.bin").write_bytes(b"\x01\x00\x02\x00")
    assert inputs.array("x", f"@{tmp_path}/a.bin", "INT16", (-1, 2)).tolist() == [[1, 2]]
    assert inputs.array("x", f"@{tmp_path}/a.bin", "BYTES", (-1, 1))[0, 0] == b"\x01\x00\x02\x00"


@pytest.mark.parametrize(
    ("value", "datatype", "said"),
    [
        ("abc", "FP32", "expected a number or a JSON list for FP32, got 'abc'; a file is given"),
        ("[1, [2]]", "FP32", "expected values for FP32"),
        ("[1, 300]", "UINT8", "expected values for UINT8"),
        ('["a", 1]', "BYTES", "got 1 among strings"),
        ("@/nowhere/x", "FP32", "cannot read /nowhere/x: No such file or directory"),
        ("@/nowhere/x.npy", "FP32", "cannot read /nowhere/x.npy: No such file or directory"),
        ("@/proc/self/comm", "FP64", "not a multiple of the 8 bytes of FP64"),
    ],
)
def test_what_is_no_such_array_is_said(value: str, datatype: str, said: str) -> None:
    with pytest.raises(CommandFailed) as failure:
        inputs.array("x", value, datatype, (1,))
    assert failure.value.message.startswith("input x: ")
    assert said in failure.value.message


def test_arguments_are_split_at_the_first_equals_sign() -> None:
    assert inputs.split("x=a=b") == ("x", "a=b")
    for wrong in ("x", "=1"):
        with pytest.raises(CommandFailed, match="expected NAME=value"):
            inputs.split(wrong)


def test_not_every_npy_is_an_array(tmp_path: Path) -> None:
    good = tmp_path / "good.npy"
    np.save(good, np.arange(3, dtype=np.float32))
    whole = good.read_bytes()
    objects = tmp_path / "objects.npy"
    np.save(objects, np.array([{}, None]), allow_pickle=True)
    huge = whole.replace(b"(3,), ", b"(9" + b"9" * 14 + b",)")
    bad = tmp_path / "bad.npy"
    for content in (b"", b"hello", whole[:40], whole[:-1], objects.read_bytes(), b"PK\3\4", huge):
        bad.write_bytes(content)
        with pytest.raises(CommandFailed) as failure:
            inputs.array("x", f"@{bad}", "FP32", (-1,))
        assert f"{bad} is not an array of numbers or strings" in failure.value.message
        assert "pickle" not in failure.value.message
    assert inputs.array("x", f"@{good}", "FP32", (-1,)).tolist() == [0, 1, 2]


def test_lists_without_end_are_no_input() -> None:
    with pytest.raises(CommandFailed, match="expected a number or a JSON list"):
        inputs.array("x", "[" * 100_000, "FP32", (-1,))
