"""Writes the synthetic model mlp: dense layers with pseudo-random weights, always the same bytes.

The weights come from SHAKE-256, which a standard defines, so that no library's random stream is
pinned with them: uniform within ±1/16 in steps of 2⁻¹⁹, exact in float32.
scripts/setup_models.py calls this; by itself it writes nothing.
"""

from __future__ import annotations

import hashlib

import numpy as np
from onnx import TensorProto, helper

LAYERS = 8
WIDTH = 1024
SCORES = 16
# Old enough for every onnxruntime that naiad supports.
OPSET = 17
IR_VERSION = 8


def onnx_bytes(layers: int = LAYERS, width: int = WIDTH, scores: int = SCORES) -> bytes:
    """An ONNX model of ReLU layers: `features` FP32 [n, width] → `scores` FP32 [n, scores]."""
    columns = [width] * layers + [scores]
    weights = [
        helper.make_tensor(
            f"weight_{layer}",
            TensorProto.FLOAT,
            [width, count],
            weight(layer, width * count),
            raw=True,
        )
        for layer, count in enumerate(columns)
    ]
    nodes, value = [], "features"
    for layer in range(layers):
        nodes.append(helper.make_node("MatMul", [value, f"weight_{layer}"], [f"product_{layer}"]))
        value = f"hidden_{layer}"
        nodes.append(helper.make_node("Relu", [f"product_{layer}"], [value]))
    nodes.append(helper.make_node("MatMul", [value, f"weight_{layers}"], ["scores"]))
    graph = helper.make_graph(
        nodes,
        "synthetic_mlp",
        [helper.make_tensor_value_info("features", TensorProto.FLOAT, ["batch", width])],
        [helper.make_tensor_value_info("scores", TensorProto.FLOAT, ["batch", scores])],
        weights,
    )
    opset = helper.make_opsetid("", OPSET)
    model = helper.make_model(graph, opset_imports=[opset], ir_version=IR_VERSION)
    return bytes(model.SerializeToString())


def weight(layer: int, count: int) -> bytes:
    """`count` weights as little-endian float32."""
    stream = hashlib.shake_256(f"naiad mlp {layer}".encode()).digest(2 * count)
    return (np.frombuffer(stream, dtype="<i2").astype("<f4") * np.float32(2.0**-19)).tobytes()
