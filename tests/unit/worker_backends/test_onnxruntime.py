"""The ONNX Runtime backend on tiny models: options, declarations, batches, errors."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnxruntime import OrtValue, get_available_providers

from naiad.protocol.errors import Code, ModelError, RequestError
from naiad.worker.backends import onnx_session, onnxruntime
from naiad.worker.backends.onnxruntime import OnnxRuntimeBackend
from support.backend_requests import Served, instance, objects, place
from support.onnx_models import Tensor, write_echo, write_model

needs_bf16 = pytest.mark.skipif(
    not hasattr(OrtValue, onnxruntime.BF16_NEEDS), reason="this ONNX Runtime is older than 1.20"
)


def served(directory: Path, config: dict[str, Any] | None = None) -> Served:
    return Served(OnnxRuntimeBackend(), instance(directory, config or {}))


def refusal(directory: Path, config: dict[str, Any] | None = None, kind: str = "KIND_CPU") -> str:
    with pytest.raises(ModelError) as caught:
        OnnxRuntimeBackend().load(instance(directory, config or {}, kind=kind))
    assert caught.value.code == Code.LOAD_FAILED
    return caught.value.message


def parameters(**values: str) -> dict[str, Any]:
    return {"parameters": {key: {"string_value": value} for key, value in values.items()}}


def floats(*shape: int) -> Any:
    return np.arange(np.prod(shape), dtype=np.float32).reshape(shape)


# ---- loading ----


def test_a_missing_file_is_named_with_what_is_there(tmp_path: Path) -> None:
    write_echo(tmp_path / "m", "FP32", ["n", 2])
    message = refusal(tmp_path / "m", {"default_model_filename": "other.onnx"})
    assert "other.onnx" in message
    assert "there: model.onnx" in message


def test_a_directory_may_stand_for_the_file(tmp_path: Path) -> None:
    model = write_model(
        tmp_path / "m",
        [("Neg", ["x"], ["y"])],
        [Tensor("x", "FP32", [2])],
        [Tensor("y", "FP32", [2])],
        filename="model.onnx.d",
    )
    folder = model / "1" / "net"
    folder.mkdir()
    (model / "1" / "model.onnx.d").rename(folder / "model.onnx")
    answer = served(model, {"default_model_filename": "net"}).ask({"x": floats(2)})
    assert answer["y"].tolist() == [0.0, -1.0]


def test_a_file_that_is_no_model_is_a_load_error_on_one_line(tmp_path: Path) -> None:
    path = tmp_path / "m" / "1" / "model.onnx"
    path.parent.mkdir(parents=True)
    path.write_bytes(b"not a model" * 10)
    message = refusal(tmp_path / "m")
    assert str(path) in message
    assert "Protobuf parsing failed" in message
    assert "ONNXRuntimeError" not in message
    assert "\n" not in message


def test_threads_are_the_instances_unless_the_model_says_otherwise(tmp_path: Path) -> None:
    plain = onnx_session.session_options(instance(tmp_path, {}, threads=3))
    assert plain.intra_op_num_threads == 3
    own = parameters(intra_op_thread_count="2", inter_op_thread_count="5", execution_mode="1")
    options = onnx_session.session_options(instance(tmp_path, own, threads=3))
    assert (options.intra_op_num_threads, options.inter_op_num_threads) == (2, 5)
    assert options.execution_mode.name == "ORT_PARALLEL"


def test_memory_graph_and_session_options_reach_the_engine(tmp_path: Path) -> None:
    config = parameters(enable_mem_arena="0", enable_mem_pattern="0") | {
        "optimization": {"graph": {"level": -1}}
    }
    config["parameters"]["session.disable_prepacking"] = {"string_value": "1"}
    options = onnx_session.session_options(instance(tmp_path, config))
    assert not options.enable_cpu_mem_arena
    assert not options.enable_mem_pattern
    assert options.graph_optimization_level.name == "ORT_ENABLE_BASIC"
    assert options.get_session_config_entry("session.disable_prepacking") == "1"


@pytest.mark.parametrize(
    ("config", "text"),
    [
        (parameters(intra_op_thread_count="two"), '"intra_op_thread_count"'),
        (parameters(execution_mode="2"), "0 to 1"),
        ({"optimization": {"graph": {"level": 7}}}, "got 7"),
        (
            {
                "optimization": {
                    "execution_accelerators": {"cpu_execution_accelerator": [{"name": "openvino"}]}
                }
            },
            "openvino is not in this release",
        ),
        ({"model_operations": {"op_library_filename": ["missing.so"]}}, "missing.so"),
    ],
)
def test_a_faulty_option_is_a_load_error_that_names_it(
    tmp_path: Path, config: dict[str, Any], text: str
) -> None:
    write_echo(tmp_path / "m", "FP32", ["n", 2])
    assert text in refusal(tmp_path / "m", config)


def test_a_gpu_that_cannot_be_used_is_a_load_error_with_the_devices(tmp_path: Path) -> None:
    if "CUDAExecutionProvider" in get_available_providers():
        pytest.skip("this ONNX Runtime has the CUDA provider")
    write_echo(tmp_path / "m", "FP32", ["n", 2])
    message = refusal(tmp_path / "m", kind="KIND_GPU")
    assert "visible GPU devices" in message
    assert "KIND_CPU" in message


def test_arena_shrinkage_is_an_option_of_every_run(tmp_path: Path) -> None:
    write_echo(tmp_path / "m", "FP32", ["n", 2])
    config: dict[str, Any] = {
        "parameters": {"memory.enable_memory_arena_shrinkage": {"string_value": "cpu:0"}}
    }
    assert served(tmp_path / "m", config).ask({"INPUT0": floats(1, 2)})


# ---- what the model declares ----


def test_odd_declarations_are_any_size(tmp_path: Path) -> None:
    model = write_echo(tmp_path / "m", "FP32", [-1, "?", None])
    config = served(model).config
    assert config.max_batch_size == 4
    assert config.inputs[0].dims == (-1, -1)


def test_an_output_whose_shape_the_file_does_not_tell_is_tried_out(tmp_path: Path) -> None:
    model = write_model(
        tmp_path / "m",
        [("Reshape", ["x", "shape"], ["y"]), ("ReduceSum", ["x"], ["s"], {"keepdims": 0})],
        [Tensor("x", "FP32", ["n"]), Tensor("shape", "INT64", ["k"])],
        [Tensor("y", "FP32", None), Tensor("s", "FP32", [])],
    )
    model_served = served(model)
    assert [output.dims for output in model_served.config.outputs] == [(-1,), (1,)]
    assert model_served.config.max_batch_size == 0
    answer = model_served.ask({"x": floats(6), "shape": np.array([-1])})
    assert answer["y"].tolist() == floats(6).tolist()
    assert answer["s"].tolist() == [15.0]
    whole = {"name": "y", "data_type": "TYPE_FP32", "dims": [-1, -1]}
    model_served = served(model, {"output": [whole]})
    answer = model_served.ask({"x": floats(6), "shape": np.array([2, 3])})
    assert answer["y"].shape == (2, 3)


def test_an_output_that_is_no_tensor_is_left_out_by_the_config(tmp_path: Path) -> None:
    model = write_model(
        tmp_path / "m",
        [("Neg", ["x"], ["y"]), ("SequenceConstruct", ["x", "x"], ["q"])],
        [Tensor("x", "FP32", ["n", 3])],
        [Tensor("y", "FP32", ["n", 3])],
    )
    import onnx
    from onnx import TensorProto, helper

    path = model / "1" / "model.onnx"
    proto = onnx.load(str(path))
    sequence = helper.make_tensor_sequence_value_info("q", TensorProto.FLOAT, None)
    proto.graph.output.append(sequence)
    onnx.save(proto, str(path))
    assert "seq(tensor(float))" in refusal(model)
    config = {"output": [{"name": "y", "data_type": "TYPE_FP32", "dims": [3]}]}
    assert served(model, config).ask({"x": floats(1, 3)})["y"].tolist() == [[0.0, -1.0, -2.0]]


def test_an_initialiser_may_be_sent_or_left_out(tmp_path: Path) -> None:
    model = write_model(
        tmp_path / "m",
        [("Add", ["x", "bias"], ["y"])],
        [Tensor("x", "FP32", [2]), Tensor("bias", "FP32", [2])],
        [Tensor("y", "FP32", [2])],
        initialisers={"bias": np.array([10, 20], np.float32)},
    )
    both = served(model, {"input": [{"name": "x"}, {"name": "bias"}]})
    assert both.config.inputs[1].optional
    without = both.request({"x": floats(2)})
    with_bias = both.request({"x": floats(2), "bias": floats(2)})
    first, second = both.answers(without, with_bias)
    assert first["y"].tolist() == [10.0, 21.0]
    assert second["y"].tolist() == [0.0, 2.0]


# ---- batches ----


def scaled(tmp_path: Path, dims: list[Any]) -> Path:
    """y = 2 x, and the number of the batch's row sums in t."""
    return write_model(
        tmp_path / "m",
        [("Add", ["x", "x"], ["y"]), ("Shape", ["x"], ["t0"]), ("Neg", ["x"], ["z"])],
        [Tensor("x", "FP32", dims)],
        [Tensor("y", "FP32", dims), Tensor("z", "FP32", dims)],
    )


def test_a_batch_is_one_run_and_each_request_gets_its_rows(tmp_path: Path) -> None:
    model = served(scaled(tmp_path, ["n", 3]), {"max_batch_size": 8})
    runs: list[Any] = []
    session = model.backend._session  # type: ignore[attr-defined]

    class Counting:
        def run(self, names: Any, feeds: Any, options: Any) -> Any:
            runs.append((tuple(names), {name: array.shape for name, array in feeds.items()}))
            return session.run(names, feeds, options)

    model.backend._session = Counting()  # type: ignore[attr-defined]
    requests = [
        model.request({"x": floats(1, 3) + 1}, outputs=["y"]),
        model.request({"x": floats(3, 3) + 20}, outputs=["z"]),
        model.request({"x": floats(2, 3) + 300}, outputs=["z", "y"]),
    ]
    answers = model.answers(*requests)
    assert runs == [(("y", "z"), {"x": (6, 3)})]
    assert np.array_equal(answers[0]["y"], 2 * (floats(1, 3) + 1))
    assert np.array_equal(answers[1]["z"], -(floats(3, 3) + 20))
    assert list(answers[2]) == ["z", "y"]
    assert np.array_equal(answers[2]["y"], 2 * (floats(2, 3) + 300))


def test_other_shapes_in_a_batch_run_apart(tmp_path: Path) -> None:
    model = served(scaled(tmp_path, ["n", "k"]), {"max_batch_size": 8})
    shapes = [(1, 3), (2, 4), (1, 3), (1, 5)]
    answers = model.answers(*[model.request({"x": floats(*shape) + 1}) for shape in shapes])
    for shape, answer in zip(shapes, answers, strict=True):
        assert np.array_equal(answer["y"], 2 * (floats(*shape) + 1))


def test_a_batch_after_a_larger_one_does_not_see_its_rows(tmp_path: Path) -> None:
    model = served(scaled(tmp_path, ["n", "k"]), {"max_batch_size": 4})
    for rows, width in ((2, 5), (1, 2), (2, 7), (1, 1)):
        given = [floats(rows, width) + base for base in (1, 50)]
        answers = model.answers(*[model.request({"x": array}) for array in given])
        for array, answer in zip(given, answers, strict=True):
            assert np.array_equal(answer["y"], 2 * array)


def test_an_output_handed_through_is_no_view_of_the_gather_buffer(tmp_path: Path) -> None:
    model = write_model(
        tmp_path / "m",
        [("Neg", ["x"], ["y"])],
        [Tensor("x", "FP32", ["n", 2])],
        [Tensor("y", "FP32", ["n", 2]), Tensor("x", "FP32", ["n", 2])],
    )
    model_served = served(model, {"max_batch_size": 4})
    backend = model_served.backend
    first = backend.execute([model_served.request({"x": floats(1, 2)}) for _ in range(2)])
    backend.execute([model_served.request({"x": floats(1, 2) + 9}) for _ in range(2)])
    for response in first:
        assert not isinstance(response, Exception)
        for output in response.outputs:
            values = np.frombuffer(output.buffer or b"", np.float32)
            assert abs(values).tolist() == [0.0, 1.0]


def test_a_batch_that_comes_back_with_another_first_dimension_is_the_models_fault(
    tmp_path: Path,
) -> None:
    model = write_model(
        tmp_path / "m",
        [("Concat", ["x", "x"], ["y"], {"axis": 0})],
        [Tensor("x", "FP32", ["n", 2])],
        [Tensor("y", "FP32", ["k", 2])],
    )
    model_served = served(model, {"max_batch_size": 4})
    with pytest.raises(ModelError, match=r"batch of 2 .* got \[4, 2\]"):
        model_served.answers(*[model_served.request({"x": floats(1, 2)}) for _ in range(2)])


# ---- datatypes ----


def test_strings_that_are_not_utf8_are_refused_and_say_where(tmp_path: Path) -> None:
    model = served(write_echo(tmp_path / "m", "BYTES", ["n", 2]), {"max_batch_size": 4})
    request = model.request({"INPUT0": objects([b"fine", b"\xff\xfe"], (1, 2))})
    with pytest.raises(RequestError, match="'INPUT0': element 1 is not UTF-8"):
        model.answers(request)


@needs_bf16
def test_bf16_travels_as_bits(tmp_path: Path) -> None:
    model = served(write_echo(tmp_path / "m", "BF16", ["n", 2]))
    bits = np.array([[0x3F80, 0x4000]], np.uint16)
    requests = [model.request({"INPUT0": ("BF16", bits + index)}) for index in range(3)]
    for index, answer in enumerate(model.answers(*requests)):
        assert answer["OUTPUT0"].tolist() == (bits + index).tolist()


def test_bf16_without_the_engines_help_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(OrtValue, onnxruntime.BF16_NEEDS, raising=False)
    message = refusal(write_echo(tmp_path / "m", "BF16", ["n", 2]))
    assert "BF16" in message
    assert "install 1.20 or newer" in message


# ---- client memory ----


def test_a_large_output_is_written_where_the_client_wants_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(onnxruntime, "DIRECT_BYTES_MIN", 1)
    model = served(scaled(tmp_path, ["n", 3]), {"max_batch_size": 4})
    target = place(2 * 3 * 4)
    request = model.request({"x": floats(2, 3)}, places={"y": target})
    (response,) = model.backend.execute([request])
    by_name = {output.name: output for output in response.outputs}  # type: ignore[union-attr]
    placed = np.frombuffer(by_name["y"].buffer or b"", np.uint8)
    assert np.shares_memory(placed, target)
    assert np.array_equal(target.view(np.float32), (2 * floats(2, 3)).ravel())
    assert np.array_equal(
        np.frombuffer(by_name["z"].buffer or b"", np.float32), -floats(2, 3).ravel()
    )


@pytest.mark.parametrize("size_bytes", [8, 4096])
def test_a_place_that_is_too_small_or_unaligned_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size_bytes: int
) -> None:
    monkeypatch.setattr(onnxruntime, "DIRECT_BYTES_MIN", 1)
    model = served(scaled(tmp_path, ["n", 3]), {"max_batch_size": 4})
    target = place(size_bytes + 1)[1:]
    answer = model.ask({"x": floats(2, 3)}, places={"y": target})
    assert np.array_equal(answer["y"], 2 * floats(2, 3))
    assert not target.any()


def test_a_shape_other_than_configured_is_answered_by_a_plain_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(onnxruntime, "DIRECT_BYTES_MIN", 1)
    model = write_model(
        tmp_path / "m",
        [("Concat", ["x", "x"], ["y"], {"axis": 0})],
        [Tensor("x", "FP32", ["n"])],
        [Tensor("y", "FP32", None)],
    )
    config = {"output": [{"name": "y", "data_type": "TYPE_FP32", "dims": [3]}]}
    model_served = served(model, config)
    request = model_served.request({"x": floats(2)}, places={"y": place(12)})
    (response,) = model_served.backend.execute([request])
    assert response.outputs[0].shape == (4,)  # type: ignore[union-attr]


# ---- errors ----


def test_an_engine_error_is_one_readable_line(tmp_path: Path) -> None:
    model = write_model(
        tmp_path / "m",
        [("Gather", ["table", "x"], ["y"])],
        [Tensor("x", "INT64", ["n", 1])],
        [Tensor("y", "FP32", ["n", 1])],
        initialisers={"table": floats(4)},
    )
    model_served = served(model, {"max_batch_size": 4})
    good, bad = np.array([[2]]), np.array([[9]])
    with pytest.raises(ModelError) as caught:
        model_served.answers(model_served.request({"x": bad}))
    message = caught.value.message
    assert message.startswith("ONNX Runtime: ")
    assert "indices element out of data bounds, idx=9" in message
    assert "\n" not in message
    assert "onnxruntime_src" not in message
    assert model_served.ask({"x": good})["y"].tolist() == [[2.0]]


def test_requests_that_cannot_be_joined_fail_alone(tmp_path: Path) -> None:
    model = write_model(
        tmp_path / "m",
        [("Gather", ["table", "x"], ["y"])],
        [Tensor("x", "INT64", [1])],
        [Tensor("y", "FP32", [1])],
        initialisers={"table": floats(4)},
    )
    model_served = served(model)
    answers = model_served.answers(
        *[model_served.request({"x": np.array([index])}) for index in (1, 9, 3)]
    )
    assert answers[0]["y"].tolist() == [1.0]
    assert isinstance(answers[1], ModelError)
    assert answers[2]["y"].tolist() == [3.0]


def test_nothing_holds_the_clients_memory_after_a_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(onnxruntime, "DIRECT_BYTES_MIN", 1)
    model = served(scaled(tmp_path, ["n", 3]), {"max_batch_size": 4})
    content = bytearray(floats(1, 3).tobytes())
    request = model.request({"x": floats(1, 3)}, places={"y": place(12)})
    request.inputs["x"].buffer = memoryview(content)
    model.backend.execute([request])
    model.backend.execute([request, request])
    del request
    content.append(0)  # a BufferError while a view is alive
