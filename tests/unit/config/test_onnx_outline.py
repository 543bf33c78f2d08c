"""The outline of ONNX files, as the real package writes them."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from naiad.config import onnx_outline
from naiad.config.onnx_outline import Broken, read_outline


def model() -> onnx.ModelProto:
    weight = numpy_helper.from_array(np.ones((4, 4), np.float32), "w")
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"])],
        "g",
        [
            value("x", TensorProto.DOUBLE, ["n", 4]),
            value("w", TensorProto.FLOAT, [4, 4]),  # has a value of its own
        ],
        [value("y", TensorProto.FLOAT16, None)],
        [weight],
    )
    return helper.make_model(graph)


def test_what_a_file_says() -> None:
    found = read_outline(io.BytesIO(model().SerializeToString()))
    assert found.inputs == {"x": TensorProto.DOUBLE}
    assert found.outputs == {"y": TensorProto.FLOAT16}
    assert found.external == set()


def test_weights_in_other_files(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    onnx.save_model(
        model(), str(path), save_as_external_data=True, location="weights.bin", size_threshold=0
    )
    with path.open("rb") as file:
        assert read_outline(file).external == {"weights.bin"}


def test_no_part_of_a_graph_is_one() -> None:
    whole, graph = model().SerializeToString(), model().graph.SerializeToString()
    for end in range(whole.index(graph) + len(graph)):
        with pytest.raises(Broken):
            read_outline(io.BytesIO(whole[:end]))


@pytest.mark.parametrize(
    "content", [b"x" * 500, bytes(500), b"\x08\x0a", b"\x3a\x00", b"\xff" * 50]
)
def test_other_bytes(content: bytes) -> None:
    with pytest.raises(Broken):
        read_outline(io.BytesIO(content))


def test_a_file_cannot_keep_it_busy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(onnx_outline, "FIELDS_MAX", 9)
    with pytest.raises(Broken):
        read_outline(io.BytesIO(model().SerializeToString()))
