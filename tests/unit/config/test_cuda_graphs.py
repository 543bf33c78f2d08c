"""graph_spec is judged by the config alone, as far as that tells."""

from __future__ import annotations

from typing import Any

import pytest

from naiad.config.cuda_graphs import SPECS_MAX, graph_spec_faults, graph_warnings
from naiad.config.model import ModelConfig

X = {"name": "x", "data_type": "TYPE_FP32", "dims": [4]}


def model(
    *specs: dict[str, Any],
    graphs: bool = True,
    rows: int = 8,
    backend: str = "tensorrt",
    **more: Any,
) -> ModelConfig:
    cuda = {"graphs": graphs, "graph_spec": list(specs)}
    json = {"backend": backend, "max_batch_size": rows, "input": [X], **more}
    return ModelConfig.from_json({"name": "m", "optimization": {"cuda": cuda}, **json})


def spec(rows: int, *inputs: str, **more: Any) -> dict[str, Any]:
    return {"batch_size": rows, "input": {name: {"dim": ["4"]} for name in inputs}, **more}


WHERE = "optimization.cuda.graph_spec[0]"


@pytest.mark.parametrize(
    ("given", "faults"),
    [
        (spec(8, "x"), []),
        (spec(9), [f"{WHERE}.batch_size: expected 1 to 8, got 9"]),
        (spec(0), [f"{WHERE}.batch_size: expected 1 to 8, got 0"]),
        (spec(1, "X"), [f'{WHERE}.input: the model has no input "X"; did you mean "x"?']),
        (spec(1, "image"), [f'{WHERE}.input: the model has no input "image"; expected x']),
        (
            spec(4, graph_lower_bound=spec(5, "y")),
            [
                f'{WHERE}.graph_lower_bound.input: the model has no input "y"; expected x',
                f"{WHERE}.graph_lower_bound.batch_size: expected at most the 4 of the spec, got 5",
            ],
        ),
    ],
)
def test_a_spec(given: dict[str, Any], faults: list[str]) -> None:
    assert [str(fault) for fault in graph_spec_faults(model(given))] == faults


def test_what_only_the_engine_tells_is_left_to_it() -> None:
    untold = model(spec(3, "y"), rows=0, input=[])
    assert list(graph_spec_faults(untold)) == []
    (fault,) = graph_spec_faults(untold, is_complete=True)
    assert str(fault) == f"{WHERE}.batch_size: expected 0 to 0, got 3"


def test_their_number_is_bounded() -> None:
    assert list(graph_spec_faults(model(*[spec(1)] * SPECS_MAX))) == []
    (fault,) = graph_spec_faults(model(*[spec(1)] * (SPECS_MAX + 1)))
    assert f"expected at most {SPECS_MAX}, got {SPECS_MAX + 1}" in str(fault)


def test_what_has_no_effect_is_said() -> None:
    off = model(spec(9), graphs=False)
    assert list(graph_spec_faults(off)) == []
    assert list(graph_warnings(off)) == [
        "optimization.cuda.graph_spec has no effect without graphs: true"
    ]
    assert list(graph_warnings(model(spec(1)))) == []
    other = model(spec(9), backend="onnxruntime")
    assert list(graph_spec_faults(other)) == []
    (said,) = graph_warnings(other)
    assert 'backend "onnxruntime" captures no CUDA graphs' in said
