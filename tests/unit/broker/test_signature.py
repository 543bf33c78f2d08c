"""What a model accepts: Triton's checks, in Triton's order, with Triton's texts."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest

from naiad.broker.core.signature import Signature
from naiad.config.model import ModelConfig
from naiad.protocol import messages as m
from naiad.protocol.errors import Code, RequestError

Shape = tuple[int, ...]


def signature(rows_max: int, *inputs: dict[str, Any], **fields: Any) -> Signature:
    found = {"name": "M", "max_batch_size": rows_max, "input": list(inputs), **fields}
    found.setdefault("output", [{"name": "Y", "data_type": "TYPE_FP32", "dims": [-1]}])
    return Signature(ModelConfig.from_json(found))


def x(*dims: int, name: str = "X", kind: str = "FP32", **fields: Any) -> dict[str, Any]:
    return {"name": name, "data_type": f"TYPE_{kind}", "dims": list(dims), **fields}


def given(shape: Shape, size: int, name: str = "X", kind: str = "FP32") -> m.Tensor:
    return m.Tensor(name, kind, shape, int(m.Place.INLINE), 0, 0, size)


def check(model: Signature, *inputs: m.Tensor, outputs: tuple[str, ...] = ()) -> tuple[int, object]:
    wanted = tuple(m.OutputRequest(name) for name in outputs)
    return model.check(m.InferRequest(1, 1, "M", -1, "", inputs, wanted))


class Bad(NamedTuple):
    name: str
    model: Signature
    inputs: list[m.Tensor]
    text: str
    outputs: tuple[str, ...] = ()


FLAT = signature(0, x(2))
ROWS = signature(4, x(2))
TWO = signature(4, x(2), x(3, name="Z"))
OPEN = signature(0, x(-1))
OPTIONAL = signature(0, x(2), x(2, name="Z", optional=True))
SHAPED = signature(4, x(2, kind="INT32", name="S", is_shape_tensor=True), x(3))
BYTES = signature(0, x(-1, kind="STRING"))
PAIR = given((1, 2), 8)

BAD = [
    Bad("an unknown output", FLAT, [given((2,), 8)],
        "unexpected inference output 'Q' for model 'M'", ("Q",)),
    Bad("an output twice", FLAT, [given((2,), 8)],
        "requested output 'Y' already exists in request", ("Y", "Y")),
    Bad("an input twice", TWO, [PAIR, PAIR], "input 'X' already exists in request"),
    Bad("an input twice where one is expected", FLAT, [given((2,), 8)] * 2,
        "input 'X' already exists in request"),
    Bad("no input", FLAT, [], "expected 1 inputs but got 0 inputs for model 'M'. Got input(s) [],"
        " but missing required input(s) ['X']. Please provide all required input(s)."),
    Bad("one of two inputs", TWO, [PAIR],
        "expected 2 inputs but got 1 inputs for model 'M'. Got input(s) ['X'], but missing required"
        " input(s) ['Z']"),
    Bad("too many inputs", FLAT, [given((2,), 8), given((2,), 8, "Z")],
        "expected 1 inputs but got 2 inputs for model 'M'"),
    Bad("only the optional one", OPTIONAL, [],
        "expected number of inputs between 1 and 2 but got 0 inputs"),
    Bad("the right count, a wrong name", FLAT, [given((2,), 8, "Q")],
        "unexpected inference input 'Q' for model 'M'"),
    Bad("a scalar where rows are expected", ROWS, [given((), 4)],
        "input 'X' has no shape but model requires batch dimension for 'M'"),
    Bad("different rows", TWO, [given((1, 2), 8), given((2, 3), 24, "Z")],
        "input 'Z' batch size does not match other inputs for 'M'"),
    Bad("too many rows", ROWS, [given((100, 2), 800)],
        "inference request batch-size must be <= 4 for 'M', got 100"),
    Bad("no rows", ROWS, [given((0, 2), 0)], "batch size 0 in a request for 'M'"),
    Bad("negative rows", ROWS, [given((-1, 2), 8)],
        "All input dimensions should be specified for input 'X' for model 'M', got [-1,2]"),
    Bad("a wrong data type", FLAT, [given((2,), 4, kind="FP16")],
        "inference input 'X' data-type is 'FP16', but model 'M' expects 'FP32'"),
    Bad("no data type at all", FLAT, [given((2,), 4, kind="FLOAT")],
        "data-type is '<invalid> (FLOAT)'"),
    Bad("a wrong rank", FLAT, [given((1, 2), 8)],
        "unexpected shape for input 'X' for model 'M'. Expected [2], got [1,2]."),
    Bad("a wrong dimension, with the note about the batch dimension", ROWS, [given((2, 3), 24)],
        "Expected [-1,2], got [2,3]. NOTE: Setting a non-zero max_batch_size"),
    Bad("a dimension of -1 where any is allowed", OPEN, [given((-1,), 4)],
        "All input dimensions should be specified for input 'X'"),
    Bad("two dimensions of -1, whose product is positive", signature(0, x(-1, -1)),
        [given((-2, -2), 16)], "All input dimensions should be specified"),
    Bad("too few bytes", FLAT, [given((2,), 7)],
        "input byte size mismatch for input 'X' for model 'M'. Expected 8, got 7"),
    Bad("too many bytes", FLAT, [given((2,), 9)], "Expected 8, got 9"),
    Bad("bytes for a shape of none", OPEN, [given((0,), 4)], "Expected 0, got 4"),
    Bad("a shape of a terabyte with a small body", OPEN, [given((2**40,), 8)],
        f"Expected {2**42}, got 8"),
    Bad("a shape beyond 64 bits", signature(0, x(-1, -1, -1)),
        [given((2**62, 2**62, 2**62), 8)], f"Expected {2**188}, got 8"),
    Bad("fewer bytes than the length prefixes of BYTES", BYTES, [given((3,), 11, kind="BYTES")],
        "Expected 12 or more, got 11"),
    Bad("bytes for no BYTES elements", BYTES, [given((0,), 4, kind="BYTES")],
        "Expected 0 or more, got 4"),
]  # fmt: skip


@pytest.mark.parametrize("bad", BAD, ids=lambda bad: bad.name)
def test_refused_with_tritons_words(bad: Bad) -> None:
    with pytest.raises(RequestError) as caught:
        check(bad.model, *bad.inputs, outputs=bad.outputs)
    assert bad.text in caught.value.message
    assert caught.value.code is Code.INVALID_ARGUMENT
    assert not caught.value.retryable


@pytest.mark.parametrize(
    ("model", "tensor", "rows"),
    [
        (FLAT, given((2,), 8), 1),
        (ROWS, given((3, 2), 24), 3),
        (ROWS, given((4, 2), 32), 4),
        (OPEN, given((0,), 0), 1),
        (signature(0, x()), given((), 4), 1),
        (signature(4, x()), given((3,), 12), 3),
        (signature(4, x(-1)), given((2, 0), 0), 2),
        (signature(0, x(-1, 2)), given((0, 2), 0), 1),
        (BYTES, given((0,), 0, kind="BYTES"), 1),
        (BYTES, given((1,), 4, kind="BYTES"), 1),
        (signature(8, x(1, reshape={"shape": []})), given((5, 1), 20), 5),
    ],
)
def test_accepted(model: Signature, tensor: m.Tensor, rows: int) -> None:
    assert check(model, tensor)[0] == rows


def key(model: Signature, *inputs: m.Tensor) -> object:
    return check(model, *inputs)[1]


def test_fixed_shapes_always_share_a_batch_whatever_the_rows() -> None:
    assert key(ROWS, given((1, 2), 8)) == key(ROWS, given((4, 2), 32))


def test_open_shapes_share_a_batch_when_equal_beyond_the_rows() -> None:
    model = signature(8, x(-1))
    assert key(model, given((1, 3), 12)) == key(model, given((2, 3), 24))
    assert key(model, given((1, 3), 12)) != key(model, given((1, 4), 16))


def test_ragged_inputs_share_a_batch_whatever_their_shape() -> None:
    model = signature(8, x(-1, allow_ragged_batch=True))
    assert key(model, given((1, 3), 12)) == key(model, given((1, 4), 16))


def test_the_set_of_inputs_decides_where_some_are_optional() -> None:
    one, both = given((2,), 8), (given((2,), 8), given((2,), 8, "Z"))
    assert key(OPTIONAL, one) != key(OPTIONAL, *both)
    assert key(OPTIONAL, *both) == key(OPTIONAL, *reversed(both))


def test_the_order_of_inputs_does_not_decide() -> None:
    model = signature(0, x(-1), x(-1, name="Z"))
    a, z = given((2,), 8), given((3,), 12, "Z")
    assert key(model, a, z) == key(model, z, a)
    assert key(model, a, z) != key(model, given((3,), 12), given((2,), 8, "Z"))
    assert key(model, z, a) != key(model, given((2,), 8, "Z"), given((3,), 12))


def test_a_config_without_a_data_type_is_refused() -> None:
    with pytest.raises(RequestError, match="has no data type"):
        signature(0, {"name": "X", "dims": [1]})


def test_of_a_shape_tensor_the_batch_is_one_more_value() -> None:
    shape = given((3,), 12, "S", "INT32")
    assert check(SHAPED, shape, given((2, 3), 24)) == (2, None)
    assert check(SHAPED, given((4, 3), 48), shape) == (4, None)
    for wrong in ((2,), (4,), (2, 3)):
        with pytest.raises(RequestError, match=r"unexpected shape for input 'S'.*Expected \[3\]"):
            check(SHAPED, given(wrong, 4 * wrong[0], "S", "INT32"), given((2, 3), 24))
    with pytest.raises(RequestError, match="batch-size must be <= 4 for 'M', got 5"):
        check(SHAPED, shape, given((5, 3), 60))


def test_free_numbers_of_values_are_not_joined() -> None:
    model = signature(4, x(-1, kind="INT32", name="S", is_shape_tensor=True), x(3))
    keys = [check(model, given((n,), 4 * n, "S", "INT32"), given((1, 3), 12))[1] for n in (2, 3)]
    assert keys[0] != keys[1]
