"""The objects of triton_python_backend_utils, as a model.py uses them."""

import asyncio
import ctypes
import json
from typing import Any

import numpy as np
import pytest

from naiad.protocol.errors import Code
from naiad.worker.backends import triton_python_backend_utils as pb_utils
from naiad.worker.backends.base import ModelRequest, ModelResponse
from naiad.worker.backends.triton_python.exchange import InferenceRequest
from support.backend_requests import PackedInput, objects, packed, unpacked

# ---- Tensor ----


def received(name: str, datatype: str, array: Any, *, is_view: bool = False) -> pb_utils.Tensor:
    content = memoryview(packed(datatype, array))
    source = PackedInput(name, datatype, array.shape, content)
    return pb_utils.Tensor.of_input(source, is_view=is_view)


def test_a_tensor_keeps_the_arrays_own_dtype() -> None:
    for dtype, number in ((np.bool_, 1), (np.uint8, 2), (np.float16, 10), (np.float64, 12)):
        tensor = pb_utils.Tensor("T", np.zeros((2, 3), dtype))
        assert tensor.triton_dtype() == number
        assert tensor.shape() == [2, 3]
        assert tensor.as_numpy().dtype == dtype
    assert pb_utils.Tensor("T", np.zeros(1)).output().datatype == "FP64"


@pytest.mark.parametrize(
    "array", [np.zeros(1, np.complex64), np.zeros(1, "M8[s]"), np.zeros(1, "V4")]
)
def test_a_dtype_that_no_tensor_has_is_refused_by_name(array: Any) -> None:
    with pytest.raises(pb_utils.TritonModelException, match=str(array.dtype).partition("[")[0]):
        pb_utils.Tensor("T", array)


def test_what_is_no_array_is_refused() -> None:
    with pytest.raises(TypeError, match=r"expected a numpy\.ndarray, got list"):
        pb_utils.Tensor("T", [1, 2])  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("array", "content"),
    [
        (objects([b"a\0", b"\xff\0", b""]), [b"a\0", b"\xff\0", b""]),
        (objects(["\u00e9", "a\0b"]), ["\u00e9".encode(), b"a\0b"]),
        (np.array([b"ab", b"c"]), [b"ab", b"c"]),
        (np.array(["\u00e9t\u00e9", "x"]), ["\u00e9t\u00e9".encode(), b"x"]),
        (np.array([1.5, None], dtype=object), [b"1.5", b"None"]),
    ],
    ids=["bytes", "text", "S", "U", "others"],
)
def test_strings_go_out_byte_for_byte(array: Any, content: list[bytes]) -> None:
    tensor = pb_utils.Tensor("T", array)
    assert tensor.triton_dtype() == 13
    output = tensor.output()
    assert output.shape == (len(content),)
    assert unpacked("BYTES", output.shape, memoryview(output.buffer or b"")).tolist() == content


def test_an_input_is_the_models_own_copy_unless_views_are_asked_for() -> None:
    given = np.arange(4, dtype=np.float32)
    own = received("T", "FP32", given)
    own.as_numpy()[:] = 9
    assert own.as_numpy().tolist() == [9] * 4
    view = received("T", "FP32", given, is_view=True)
    with pytest.raises(ValueError, match="read-only"):
        view.as_numpy()[:] = 9
    strings = received("T", "BYTES", objects([b"\xff", b""]))
    strings.as_numpy()[0] = b"changed"
    assert strings.as_numpy().tolist() == [b"changed", b""]


@pytest.mark.parametrize("array", [np.arange(6.0).reshape(2, 3).T, np.arange(3).astype(">i4")])
def test_outputs_are_packed_in_row_major_order_and_little_endian(array: Any) -> None:
    output = pb_utils.Tensor("T", array).output()
    native = array.astype(array.dtype.newbyteorder("="))
    assert bytes(output.buffer or b"") == native.tobytes()
    assert output.shape == array.shape


def test_scalars_and_empty_tensors_keep_their_shape() -> None:
    scalar = pb_utils.Tensor("T", np.array(3.5))
    assert scalar.shape() == []
    assert bytes(scalar.output().buffer or b"") == np.array(3.5).tobytes()
    assert received("T", "FP32", np.zeros((2, 0), np.float32)).as_numpy().shape == (2, 0)


# ---- DLPack ----


def test_dlpack_in_shares_memory_and_keeps_the_type() -> None:
    source = np.arange(6, dtype=np.int16).reshape(2, 3)
    for given in (source, source.__dlpack__()):
        tensor = pb_utils.Tensor.from_dlpack("T", given)
        assert tensor.triton_dtype() == 7
        assert tensor.shape() == [2, 3]
        assert np.shares_memory(tensor.as_numpy(), source)


def test_dlpack_out_is_read_by_others() -> None:
    tensor = received("T", "FP32", np.arange(3, dtype=np.float32))
    assert tensor.__dlpack_device__() == (1, 0)
    assert np.from_dlpack(tensor).tolist() == [0.0, 1.0, 2.0]  # type: ignore[arg-type]
    again = pb_utils.Tensor.from_dlpack("U", tensor.to_dlpack())
    assert again.as_numpy().tolist() == [0.0, 1.0, 2.0]
    view = received("T", "FP32", np.arange(3, dtype=np.float32), is_view=True)
    assert pb_utils.Tensor.from_dlpack("U", view).as_numpy().tolist() == [0.0, 1.0, 2.0]


def test_bf16_travels_by_dlpack_only() -> None:
    bits = np.array([0x3F80, 0xC000], np.uint16)
    tensor = received("T", "BF16", bits)
    assert tensor.triton_dtype() == 14
    with pytest.raises(pb_utils.TritonModelException, match="to_dlpack"):
        tensor.as_numpy()
    code = ctypes.pythonapi.PyCapsule_GetPointer
    code.restype, code.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)
    capsule = tensor.to_dlpack()
    assert ctypes.string_at(code(capsule, b"dltensor") + 20, 2) == bytes([4, 16])
    output = pb_utils.Tensor.from_dlpack("U", capsule).output()
    assert output.datatype == "BF16"
    assert bytes(output.buffer or b"") == bits.tobytes()


def test_a_tensor_that_is_not_contiguous_is_made_so() -> None:
    turned = np.arange(6, dtype=np.int32).reshape(2, 3).T
    assert pb_utils.Tensor.from_dlpack("T", turned).as_numpy().tolist() == turned.tolist()


def test_dlpack_of_a_device_of_strings_or_of_nothing_is_refused() -> None:
    capsule: Any = np.zeros(2, np.float32).__dlpack__()
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype, pointer.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)
    device = ctypes.c_int32.from_address(pointer(capsule, b"dltensor") + 8)
    device.value = 13  # memory that CUDA moves by itself
    with pytest.raises(pb_utils.TritonModelException, match="expected the CPU or a CUDA GPU"):
        pb_utils.Tensor.from_dlpack("T", capsule)
    device.value = 1
    with pytest.raises(pb_utils.TritonModelException, match="no strings"):
        pb_utils.Tensor("T", objects([b"x"])).to_dlpack()
    with pytest.raises(pb_utils.TritonModelException, match="expected an unused DLPack capsule"):
        pb_utils.Tensor.from_dlpack("T", object())


# ---- requests and responses ----


def a_request(**fields: Any) -> InferenceRequest:
    array = np.zeros((1, 2), np.float32)
    tensor = PackedInput("IN", "FP32", (1, 2), memoryview(packed("FP32", array)))
    inputs: dict[str, Any] = {"IN": tensor}
    request = ModelRequest("label-1", inputs, ("OUT",), **fields)
    return InferenceRequest.received(request, are_views=False)


def test_every_accessor_of_a_received_request() -> None:
    request = a_request(
        parameters={"k": 1, "t": "x", "b": True},
        timeout_us=1500,
        sequence_id="cam-7",
        sequence_start=True,
        is_cancelled=lambda: True,
    )
    assert request.request_id() == "label-1"
    assert request.correlation_id() == "cam-7"
    assert request.flags() == pb_utils.TRITONSERVER_REQUEST_FLAG_SEQUENCE_START
    assert request.timeout() == 1500
    assert json.loads(request.parameters()) == {"k": 1, "t": "x", "b": True}
    assert request.requested_output_names() == {"OUT"}
    assert request.is_cancelled()
    assert isinstance(request.trace(), pb_utils.InferenceTrace)
    found = pb_utils.get_input_tensor_by_name(request, "IN")
    assert found is not None
    assert found.name() == "IN"
    assert found.is_cpu()
    assert pb_utils.get_input_tensor_by_name(request, "other") is None
    request.set_flags(pb_utils.TRITONSERVER_REQUEST_FLAG_SEQUENCE_END)
    assert request.flags() == 2
    request.set_release_flags(pb_utils.TRITONSERVER_REQUEST_RELEASE_ALL)


def test_a_request_of_the_models_own_takes_tritons_arguments() -> None:
    tensor = pb_utils.Tensor("IN", np.zeros(1))
    request = pb_utils.InferenceRequest(
        request_id="7",
        correlation_id=3,
        inputs=[tensor],
        requested_output_names=["OUT"],
        model_name="other",
        model_version=2,
        flags=1,
        timeout=10,
        preferred_memory=pb_utils.PreferredMemory(pb_utils.TRITONSERVER_MEMORY_GPU, 0),
        trace=a_request().trace(),
        parameters={"k": "v"},
    )
    assert request.inputs() == [tensor]
    assert request.parameters() == '{"k": "v"}'
    assert request.requested_output_names() == {"OUT"}
    assert not request.is_cancelled()


def test_a_response_carries_outputs_and_parameters() -> None:
    tensor = pb_utils.Tensor("OUT", np.arange(2, dtype=np.int64))
    response = pb_utils.InferenceResponse([tensor], parameters={"n": 3, "ok": True})
    assert pb_utils.get_output_tensor_by_name(response, "OUT") is tensor
    assert pb_utils.get_output_tensor_by_name(response, "x") is None
    assert json.loads(response.parameters()) == {"n": 3, "ok": True}
    answer = response.answer()
    assert isinstance(answer, ModelResponse)
    assert answer.parameters == {"n": 3, "ok": True}
    assert [output.name for output in answer.outputs] == ["OUT"]


@pytest.mark.parametrize("parameters", [{1: "x"}, {"x": 1.5}, {"x": None}, {"x": [1]}])
def test_parameters_of_other_types_are_refused(parameters: Any) -> None:
    with pytest.raises(pb_utils.TritonModelException, match="expected parameter"):
        pb_utils.InferenceResponse([], parameters=parameters)


def test_an_error_and_every_code_of_it() -> None:
    codes = {
        pb_utils.TritonError.UNKNOWN: Code.MODEL_ERROR,
        pb_utils.TritonError.INTERNAL: Code.MODEL_ERROR,
        pb_utils.TritonError.NOT_FOUND: Code.NOT_FOUND,
        pb_utils.TritonError.INVALID_ARG: Code.INVALID_ARGUMENT,
        pb_utils.TritonError.UNAVAILABLE: Code.UNAVAILABLE,
        pb_utils.TritonError.UNSUPPORTED: Code.UNSUPPORTED,
        pb_utils.TritonError.ALREADY_EXISTS: Code.ALREADY_EXISTS,
        pb_utils.TritonError.CANCELLED: Code.CANCELLED,
    }
    for number, code in codes.items():
        response = pb_utils.InferenceResponse(error=pb_utils.TritonError("bad row", number))
        assert response.has_error()
        answer: Any = response.answer()
        assert (answer.code, answer.message) == (code, "bad row")
    assert pb_utils.TritonError("x").code() == pb_utils.TritonError.INTERNAL
    with pytest.raises(pb_utils.TritonModelException, match="expected a code 0 to 7"):
        pb_utils.TritonError("x", 99)


def test_a_model_exception_has_a_message() -> None:
    error = pb_utils.TritonModelException("why")
    assert (str(error), error.message()) == ("why", "why")


# ---- response senders ----


def test_a_sender_takes_one_response_and_the_final_flag() -> None:
    final = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL
    response = pb_utils.InferenceResponse()
    for sends in ([(response, final)], [(response, 0), (None, final)]):
        request = a_request()
        sender = request.get_response_sender()
        for sent, flags in sends:
            sender.send(sent, flags=flags)
        assert request.reply is not None
        assert request.reply.wait() == ""
        assert request.reply.response is response
        with pytest.raises(pb_utils.TritonModelException, match="sender has been closed"):
            sender.send(response)


@pytest.mark.parametrize(
    ("sent", "flags", "text"),
    [
        (None, 0, "got neither"),
        ("response", 0, "expected an InferenceResponse, got str"),
        (None, 2, "expected flags 0 or"),
    ],
)
def test_what_a_sender_does_not_take(sent: Any, flags: int, text: str) -> None:
    sender = a_request().get_response_sender()
    with pytest.raises(pb_utils.TritonModelException, match=text):
        sender.send(sent, flags=flags)


def test_a_second_response_is_refused_and_the_first_one_stays() -> None:
    request = a_request()
    first, sender = pb_utils.InferenceResponse(), request.get_response_sender()
    sender.send(first)
    with pytest.raises(pb_utils.TritonModelException, match="one response per request"):
        sender.send(pb_utils.InferenceResponse())
    assert request.reply is not None
    assert request.reply.response is first


def test_a_sender_ends_with_the_last_that_holds_it() -> None:
    request = a_request()
    one, other = request.get_response_sender(), request.get_response_sender()
    assert request.reply is not None
    del one
    other.send(pb_utils.InferenceResponse())
    del other
    assert "let go of the response sender" in request.reply.wait()


def test_only_a_received_request_has_a_sender() -> None:
    with pytest.raises(pb_utils.TritonModelException, match="a request that execute was given"):
        pb_utils.InferenceRequest().get_response_sender()


# ---- what is not there yet ----


@pytest.mark.parametrize(
    ("feature", "use"),
    [
        ("exec", lambda: pb_utils.InferenceRequest(model_name="m").exec()),
        ("exec", lambda: pb_utils.InferenceRequest(model_name="m").exec(decoupled=True)),
        ("async_exec", lambda: asyncio.run(pb_utils.InferenceRequest().async_exec())),
        ("reschedule", lambda: a_request().set_release_flags(2)),
        (
            "MetricFamily",
            lambda: pb_utils.MetricFamily(
                name="n", description="d", kind=pb_utils.MetricFamily.COUNTER
            ),
        ),
        ("load_model", lambda: pb_utils.load_model("m")),
        ("unload_model", lambda: pb_utils.unload_model(model_name="m")),
        ("is_model_ready", lambda: pb_utils.is_model_ready("m", "1")),
    ],
)
def test_a_missing_feature_says_so(feature: str, use: Any) -> None:
    with pytest.raises(pb_utils.TritonModelException, match=rf"{feature}.*not in this release"):
        use()


# ---- functions ----


def test_types_by_number_text_and_numpy() -> None:
    for number, text, dtype in (
        (1, "TYPE_BOOL", np.bool_),
        (9, "TYPE_INT64", np.int64),
        (11, "TYPE_FP32", np.float32),
        (13, "TYPE_STRING", np.object_),
    ):
        assert pb_utils.triton_to_numpy_type(number) is dtype
        assert pb_utils.triton_string_to_numpy(text) is dtype
        assert pb_utils.numpy_to_triton_type(dtype) == number
        assert pb_utils.numpy_to_triton_type(np.dtype(dtype)) == number
    assert pb_utils.numpy_to_triton_type(np.bytes_) == 13
    for wrong in (0, 14, 99):
        with pytest.raises(pb_utils.TritonModelException):
            pb_utils.triton_to_numpy_type(wrong)
    with pytest.raises(pb_utils.TritonModelException, match="TYPE_BF16"):
        pb_utils.triton_string_to_numpy("TYPE_BF16")
    with pytest.raises(pb_utils.TritonModelException, match="complex64"):
        pb_utils.numpy_to_triton_type(np.complex64)


def test_serialized_strings_are_read_back() -> None:
    elements = [b"", b"a\0", "\u00e9".encode()]
    content = pb_utils.serialize_byte_tensor(objects(elements))
    assert content == b"\0\0\0\0\x02\0\0\0a\0\x02\0\0\0\xc3\xa9"
    assert pb_utils.deserialize_bytes_tensor(content).tolist() == elements
    assert pb_utils.deserialize_bytes_tensor(b"").shape == (0,)
    for cut in (content[:-1], content[:5], b"\xff\xff\xff\xff"):
        with pytest.raises(pb_utils.TritonModelException, match="beyond the end"):
            pb_utils.deserialize_bytes_tensor(cut)
    with pytest.raises(pb_utils.TritonModelException, match="float64"):
        pb_utils.serialize_byte_tensor(np.zeros(1))


def test_look_ups_in_a_config() -> None:
    config = {"input": [{"name": "a"}, {"name": "b"}], "output": [{"name": "c"}]}
    assert pb_utils.get_input_config_by_name(config, "b") == {"name": "b"}
    assert pb_utils.get_output_config_by_name(config, "c") == {"name": "c"}
    assert pb_utils.get_input_config_by_name(config, "c") is None
    assert pb_utils.get_output_config_by_name({}, "c") is None
    assert not pb_utils.using_decoupled_model_transaction_policy(config)
    assert pb_utils.using_decoupled_model_transaction_policy(
        {"model_transaction_policy": {"decoupled": True}}
    )


# ---- auto_complete_config ----


def editor(**config: Any) -> pb_utils.ModelConfig:
    return pb_utils.ModelConfig({"name": "m", "max_batch_size": 0, **config})


def test_a_config_is_completed() -> None:
    config = editor(input=[{"name": "a", "data_type": "TYPE_INVALID", "dims": []}])
    config.set_max_batch_size(8)
    config.set_dynamic_batching()
    config.add_input({"name": "a", "data_type": "TYPE_FP32", "dims": [4]})
    config.add_input({"name": "b", "data_type": "TYPE_INT8", "dims": (2,), "optional": True})
    config.add_output({"name": "c", "data_type": "TYPE_FP32", "dims": [-1]})
    config.add_output({"name": "c", "data_type": "TYPE_FP32", "dims": [-1]})
    config.set_model_transaction_policy({"decoupled": False})
    assert config.as_dict() == {
        "name": "m",
        "max_batch_size": 8,
        "dynamic_batching": {},
        "input": [
            {"name": "a", "data_type": "TYPE_FP32", "dims": [4]},
            {"name": "b", "data_type": "TYPE_INT8", "dims": [2], "optional": True},
        ],
        "output": [{"name": "c", "data_type": "TYPE_FP32", "dims": [-1]}],
        "model_transaction_policy": {"decoupled": False},
    }


FP32_A = {"name": "a", "data_type": "TYPE_FP32", "dims": [4]}


@pytest.mark.parametrize(
    ("config", "edit", "text"),
    [
        ({"max_batch_size": 8}, lambda c: c.set_max_batch_size(4), "max_batch_size 8"),
        ({"sequence_batching": {}}, lambda c: c.set_dynamic_batching(), "sequence_batching"),
        ({}, lambda c: c.add_input({**FP32_A, "shape": [4]}), r"\['shape'\]"),
        ({}, lambda c: c.add_output({**FP32_A, "optional": True}), r"\['optional'\]"),
        ({}, lambda c: c.add_input({"name": "a", "dims": [4]}), "missing 'data_type'"),
        ({"input": [FP32_A]}, lambda c: c.add_input({**FP32_A, "dims": [5]}), r"dims \[4\].*\[5\]"),
        (
            {"output": [FP32_A]},
            lambda c: c.add_output({**FP32_A, "data_type": "TYPE_INT8"}),
            "TYPE_FP32.*TYPE_INT8",
        ),
        (
            {"model_transaction_policy": {"decoupled": False}},
            lambda c: c.set_model_transaction_policy({"decoupled": True}),
            "already set to 'False'",
        ),
        ({}, lambda c: c.set_model_transaction_policy({"x": 1}), r"\['x'\]"),
    ],
)
def test_a_contradiction_is_a_value_error(config: dict[str, Any], edit: Any, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        edit(editor(**config))


def test_a_logger_has_every_level(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("DEBUG", "naiad.model"):
        pb_utils.Logger.log_info("i")
        pb_utils.Logger.log_warn("w")
        pb_utils.Logger.log_error("e")
        pb_utils.Logger.log_verbose("v")
        pb_utils.Logger.log("l", pb_utils.Logger.LogLevel.WARNING)
        pb_utils.Logger.log("100%")
    found = [(record.levelname, record.getMessage()) for record in caplog.records]
    assert found == [
        ("INFO", "i"),
        ("WARNING", "w"),
        ("ERROR", "e"),
        ("DEBUG", "v"),
        ("WARNING", "l"),
        ("INFO", "100%"),
    ]
