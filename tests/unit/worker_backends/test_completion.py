"""Auto-complete: every rule of Triton's ONNX backend, and every contradiction with both values."""

from typing import Any

import pytest

from naiad.config.model import ModelConfig
from naiad.protocol.errors import Code, ModelError
from naiad.worker.backends.completion import DeclaredTensor, complete_config

BATCHED_IN = DeclaredTensor("x", "FP32", (-1, 3, -1))
BATCHED_OUT = DeclaredTensor("y", "INT64", (-1, 10))


def completed(
    config: dict[str, Any],
    inputs: list[DeclaredTensor] | None = None,
    outputs: list[DeclaredTensor] | None = None,
) -> ModelConfig:
    return complete_config(
        ModelConfig.from_json({"name": "m", **config}),
        [BATCHED_IN] if inputs is None else inputs,
        [BATCHED_OUT] if outputs is None else outputs,
    )


def refusal(*arguments: Any) -> str:
    with pytest.raises(ModelError) as caught:
        completed(*arguments)
    assert caught.value.code == Code.LOAD_FAILED
    return caught.value.message


def tensor(name: str, data_type: str = "", dims: list[int] | None = None, **more: Any) -> Any:
    entry: dict[str, Any] = {"name": name, **more}
    if data_type:
        entry["data_type"] = data_type
    if dims is not None:
        entry["dims"] = dims
    return entry


def test_an_empty_config_is_filled_in_and_batches_by_four() -> None:
    config = completed({})
    assert config.max_batch_size == 4
    assert config.dynamic_batching is not None
    (x,), (y,) = config.inputs, config.outputs
    assert (x.name, x.data_type, x.dims) == ("x", "FP32", (3, -1))
    assert (y.name, y.data_type, y.dims) == ("y", "INT64", (10,))


def test_what_is_filled_in_shows_in_the_json_with_every_default() -> None:
    json = completed({}).to_json()
    assert json["input"] == [
        {
            "name": "x",
            "data_type": "TYPE_FP32",
            "format": "FORMAT_NONE",
            "dims": [3, -1],
            "is_shape_tensor": False,
            "allow_ragged_batch": False,
            "optional": False,
            "is_non_linear_format_io": False,
        }
    ]
    assert json["output"][0]["label_filename"] == ""


@pytest.mark.parametrize("scheduler", ["dynamic_batching", "sequence_batching"])
def test_a_chosen_scheduler_stays(scheduler: str) -> None:
    config = completed({scheduler: {"preferred_batch_size": [2]}})
    assert config.max_batch_size == 4
    assert config.raw[scheduler] == {"preferred_batch_size": [2]}
    assert ("dynamic_batching" in config.raw) == (scheduler == "dynamic_batching")


def test_a_model_does_not_begin_to_batch_where_that_is_switched_off() -> None:
    config = ModelConfig.from_json(
        {"name": "m", "input": [tensor("x", "TYPE_FP32", [-1, 3, -1])], "output": [tensor("y")]}
    )
    config = complete_config(config, [BATCHED_IN], [BATCHED_OUT], may_batch=False)
    assert config.max_batch_size == 0
    assert config.dynamic_batching is None


def test_a_given_max_batch_size_stays_and_gets_no_scheduler() -> None:
    config = completed({"max_batch_size": 16})
    assert config.max_batch_size == 16
    assert config.dynamic_batching is None


@pytest.mark.parametrize(
    ("inputs", "outputs"),
    [
        ([DeclaredTensor("x", "FP32", (1, 3))], [BATCHED_OUT]),
        ([BATCHED_IN], [DeclaredTensor("y", "FP32", (1, 3))]),
        ([BATCHED_IN, DeclaredTensor("sr", "INT64", ())], [BATCHED_OUT]),
        ([BATCHED_IN], [DeclaredTensor("y", "FP32", (-1, -1), is_probed=True)]),
    ],
    ids=["fixed input", "fixed output", "scalar input", "output shape not told"],
)
def test_one_tensor_without_a_free_first_dimension_forbids_batching(
    inputs: list[DeclaredTensor], outputs: list[DeclaredTensor]
) -> None:
    config = completed({}, inputs, outputs)
    assert config.max_batch_size == 0
    assert config.dynamic_batching is None
    assert config.inputs[0].dims == (inputs[0].dims)


def test_configured_whole_shapes_mean_no_batching() -> None:
    config = completed({"input": [tensor("x", "TYPE_FP32", [-1, 3, 5])]})
    assert config.max_batch_size == 0
    assert config.inputs[0].dims == (-1, 3, 5)
    assert config.outputs[0].dims == (-1, 10)


def test_configured_dims_without_the_batch_mean_batching() -> None:
    config = completed({"output": [tensor("y", "TYPE_INT64", [10])]})
    assert config.max_batch_size == 4


def test_only_what_is_missing_is_filled_in() -> None:
    given = tensor("x", dims=[3, 7])
    config = completed({"max_batch_size": 2, "input": [given], "output": [tensor("y")]})
    assert config.inputs[0].data_type == "FP32"
    assert config.inputs[0].dims == (3, 7)
    assert config.outputs[0].dims == (10,)


def test_a_label_file_and_other_fields_stay() -> None:
    given = tensor("y", label_filename="labels.txt")
    assert completed({"output": [given]}).outputs[0].label_filename == "labels.txt"


def test_a_batch_of_scalars_is_dims_1_with_an_empty_reshape() -> None:
    config = completed({}, [DeclaredTensor("x", "FP32", (-1,))])
    assert config.inputs[0].dims == (1,)
    assert config.inputs[0].reshape == ()


def test_a_scalar_without_batching_is_dims_1() -> None:
    config = completed({}, [DeclaredTensor("x", "FP32", ())], [DeclaredTensor("y", "FP32", ())])
    assert config.inputs[0].dims == (1,)
    assert config.inputs[0].reshape is None
    assert completed({"input": [tensor("x", dims=[1])]}, [DeclaredTensor("x", "FP32", ())])


def test_a_reshape_is_compared_in_place_of_dims() -> None:
    given = tensor("x", dims=[12], reshape={"shape": [3, 4]})
    config = completed({"max_batch_size": 8, "input": [given]})
    assert config.inputs[0].dims == (12,)
    given = tensor("x", dims=[12], reshape={"shape": [4, 3]})
    text = refusal({"max_batch_size": 8, "input": [given]})
    assert "reshape [4, 3]" in text
    assert "[-1, 3, -1]" in text


def test_an_initialiser_is_an_optional_input_only_where_configured() -> None:
    inputs = [
        DeclaredTensor("x", "FP32", (1, 3)),
        DeclaredTensor("w", "FP32", (3,), is_optional=True),
    ]
    assert [t.name for t in completed({}, inputs).inputs] == ["x"]
    config = completed({"input": [tensor("x"), tensor("w")]}, inputs)
    assert [t.optional for t in config.inputs] == [False, True]


def test_outputs_may_be_a_choice() -> None:
    outputs = [DeclaredTensor("a", "FP32", (-1, 2)), BATCHED_OUT]
    assert [t.name for t in completed({"output": [tensor("y")]}, None, outputs).outputs] == ["y"]
    assert [t.name for t in completed({}, None, outputs).outputs] == ["a", "y"]


def test_a_configured_output_of_unknown_shape_is_taken_as_it_is() -> None:
    unknown = DeclaredTensor("y", "INT64", None)
    config = completed(
        {"max_batch_size": 8, "output": [tensor("y", dims=[7, -1])]}, None, [unknown]
    )
    assert config.outputs[0].dims == (7, -1)


CONTRADICTIONS: list[tuple[str, dict[str, Any], list[DeclaredTensor], list[str]]] = [
    ("data type", {"input": [tensor("x", "TYPE_FP64")]}, [], ["TYPE_FP64", "TYPE_FP32", '"x"']),
    ("rank", {"max_batch_size": 2, "input": [tensor("x", dims=[3])]}, [], ["[3]", "[-1, 3, -1]"]),
    (
        "fixed dimension",
        {"max_batch_size": 2, "input": [tensor("x", dims=[4, 2])]},
        [],
        ["[4, 2]", "[-1, 4, 2]", "[-1, 3, -1]"],
    ),
    (
        "free in the config, fixed in the model",
        {"max_batch_size": 2, "output": [tensor("y", dims=[-1])]},
        [],
        ["[-1]", "[-1, 10]"],
    ),
    ("input name", {"input": [tensor("X1")]}, [], ['"X1"', "inputs are x", "add x"]),
    ("output name", {"output": [tensor("yy")]}, [], ['"yy"', "outputs are y", 'did you mean "y"']),
    (
        "missing input",
        {"input": [tensor("x")]},
        [BATCHED_IN, DeclaredTensor("z", "FP32", (-1, 1))],
        ["lists x", "requires x, z", "add z"],
    ),
    (
        "no batching in the model",
        {"max_batch_size": 8},
        [DeclaredTensor("x", "FP32", (1, 16))],
        ["8 is configured", '"x"', "[1, 16]", "max_batch_size: 0"],
    ),
    (
        "optional input in a batch",
        {"max_batch_size": 8, "input": [tensor("x"), tensor("w")]},
        [BATCHED_IN, DeclaredTensor("w", "FP32", (-1, 3), is_optional=True)],
        ['"w" is optional', "max_batch_size: 0"],
    ),
]


@pytest.mark.parametrize(
    ("config", "inputs", "texts"),
    [case[1:] for case in CONTRADICTIONS],
    ids=[case[0] for case in CONTRADICTIONS],
)
def test_a_contradiction_names_both_values(
    config: dict[str, Any], inputs: list[DeclaredTensor], texts: list[str]
) -> None:
    message = refusal(config, inputs or None)
    assert [text for text in texts if text not in message] == []


def test_all_contradictions_are_reported_at_once() -> None:
    config = {"input": [tensor("x", "TYPE_INT8", [3, 2])], "output": [tensor("y", "TYPE_INT8")]}
    message = refusal({"max_batch_size": 4, **config})
    assert "TYPE_FP32" in message
    assert "TYPE_INT64" in message


def test_an_output_of_unknown_shape_must_be_configured() -> None:
    message = refusal({}, None, [DeclaredTensor("y", "INT64", None)])
    assert 'output "y"' in message
    assert "configure its dims" in message
