"""Optimization profiles: from a config, from the command line, and what fits no model."""

from __future__ import annotations

from typing import Any

import pytest

from naiad.cli.building.profiles import (
    PROFILES_MAX,
    ProfileRequest,
    ShapeRange,
    batch_gaps,
    choose_profiles,
    parse_profile,
)
from naiad.config.model import ModelConfig
from naiad.protocol.errors import RequestError


def config(max_batch_size: int = 0, **fields: Any) -> ModelConfig:
    return ModelConfig.from_json({"name": "m", "max_batch_size": max_batch_size, **fields})


def tensor(name: str, *dims: int) -> dict[str, Any]:
    return {"name": name, "data_type": "TYPE_FP32", "dims": list(dims)}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("8", ProfileRequest(ShapeRange((8,), (8,), (8,)))),
        ("1:4:8", ProfileRequest(ShapeRange((1,), (4,), (8,)))),
        ("x=1x3:2x3:4x3", ProfileRequest(None, {"x": ShapeRange((1, 3), (2, 3), (4, 3))})),
        (
            "1:2:4, a:0=7 ,b=c=1:2:3",
            ProfileRequest(
                ShapeRange((1,), (2,), (4,)),
                {"a:0": ShapeRange((7,), (7,), (7,)), "b=c": ShapeRange((1,), (2,), (3,))},
            ),
        ),
    ],
)
def test_a_profile_is_read(text: str, expected: ProfileRequest) -> None:
    assert parse_profile(text) == expected


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "expected MIN:OPT:MAX"),
        ("1:2", "expected MIN:OPT:MAX"),
        ("1:2:3:4", "expected MIN:OPT:MAX"),
        ("x=", "expected MIN:OPT:MAX"),
        ("=1", "each once"),
        ("x=1,x=2", "each once"),
        ("1,2", "each once"),
        ("1x3:1x3:1x3", "each once"),
        ("x=1x-3", "expected MIN:OPT:MAX"),
        ("x=1x٣", "expected MIN:OPT:MAX"),
        ("x=1:1x2:1x2", "differ in their dimensions"),
        ("4:2:8", "1 <= MIN <= OPT <= MAX in every dimension, got 4:2:8"),
        ("0:1:8", "got 0:1:8"),
        ("x=1x9:2x8:3x9", "got 9:8:9"),
        ("1:1:9999999999", "got 1:1:9999999999"),
    ],
)
def test_what_is_no_profile_says_why(text: str, said: str) -> None:
    with pytest.raises(RequestError, match="profile ") as fault:
        parse_profile(text)
    assert said in str(fault.value)


@pytest.mark.parametrize(
    ("fields", "usual"),
    [
        ({}, 1),
        ({"dynamic_batching": {}}, 16),
        ({"dynamic_batching": {"preferred_batch_size": [4, 8]}}, 8),
        ({"dynamic_batching": {"preferred_batch_size": [4, 99]}}, 4),
    ],
)
def test_the_batch_is_at_its_best_where_the_batcher_makes_most(
    fields: dict[str, Any], usual: int
) -> None:
    given = config(16, input=[tensor("x", 3, 5), tensor("z", 2)], **fields)
    (profile,) = choose_profiles(given, {"x": (-1, 3, 5), "z": (-1, 2)})
    assert profile == {
        "x": ShapeRange((1, 3, 5), (usual, 3, 5), (16, 3, 5)),
        "z": ShapeRange((1, 2), (usual, 2), (16, 2)),
    }


def test_dims_of_the_config_narrow_what_the_model_leaves_free() -> None:
    given = config(4, input=[tensor("x", 7)])
    (profile,) = choose_profiles(given, {"x": (-1, -1)})
    assert profile == {"x": ShapeRange((1, 7), (1, 7), (4, 7))}
    reshaped = config(4, input=[{**tensor("x", 6), "reshape": {"shape": [2, 3]}}])
    (profile,) = choose_profiles(reshaped, {"x": (-1, 2, 3)})
    assert profile["x"].max == (4, 2, 3)


def test_a_model_with_fixed_shapes_has_no_profile() -> None:
    given = config(input=[tensor("x", 1, 4)])
    assert choose_profiles(given, {"x": (1, 4)}) == []
    with pytest.raises(RequestError, match="every dimension of every input is fixed"):
        choose_profiles(given, {"x": (1, 4)}, [parse_profile("x=1x4")])


def test_requests_name_dims_or_whole_shapes_and_one_profile_each() -> None:
    given = config(16, input=[tensor("x", -1), tensor("z", 2)])
    requests = [parse_profile("1:2:4,x=5:6:7"), parse_profile("8,x=1x1:2x2:3x3")]
    first, second = choose_profiles(given, {"x": (-1, -1), "z": (-1, 2)}, requests)
    assert first == {
        "x": ShapeRange((1, 5), (2, 6), (4, 7)),
        "z": ShapeRange((1, 2), (2, 2), (4, 2)),
    }
    assert second == {
        "x": ShapeRange((1, 1), (2, 2), (3, 3)),
        "z": ShapeRange((8, 2), (8, 2), (8, 2)),
    }
    unbatched = config(input=[tensor("x", -1, 4)])
    (profile,) = choose_profiles(unbatched, {"x": (-1, 4)}, [parse_profile("x=1x4:2x4:3x4")])
    assert profile == {"x": ShapeRange((1, 4), (2, 4), (3, 4))}


@pytest.mark.parametrize(
    ("max_batch_size", "dims", "declared", "request_text", "said"),
    [
        (8, [-1], (-1, -1), None, "--profile x=N:N:N with numbers for N"),
        (0, [-1, 4], (-1, 4), None, "--profile x=Nx4:Nx4:Nx4 with numbers for N"),
        (8, [4], (-1, 4), "xx=4", 'no input "xx"; did you mean "x"?'),
        (0, [-1, 4], (-1, 4), "1:2:3", "does not batch (max_batch_size 0); give whole shapes"),
        (8, [4], (-1, 4), "x=5", 'input "x" cannot be 1x5: the ONNX declares [-1, 4]'),
        (8, [4], (-1, 4), "x=1x4x1", 'input "x" cannot be 1x1x4x1'),
    ],
)
def test_what_does_not_fit_says_what_would(
    max_batch_size: int,
    dims: list[int],
    declared: tuple[int, ...],
    request_text: str | None,
    said: str,
) -> None:
    given = config(max_batch_size, input=[tensor("x", *dims)])
    requests = [] if request_text is None else [parse_profile(request_text)]
    with pytest.raises(RequestError) as fault:
        choose_profiles(given, {"x": declared}, requests)
    assert said in str(fault.value)


def test_profiles_are_limited() -> None:
    given = config(8, input=[tensor("x", 4)])
    one = parse_profile("1")
    assert len(choose_profiles(given, {"x": (-1, 4)}, [one] * PROFILES_MAX)) == PROFILES_MAX
    with pytest.raises(RequestError, match=f"at most {PROFILES_MAX}"):
        choose_profiles(given, {"x": (-1, 4)}, [one] * (PROFILES_MAX + 1))


@pytest.mark.parametrize(
    ("texts", "max_batch_size", "gaps"),
    [
        (["1:4:8"], 8, []),
        (["1:1:4", "5:8:8"], 8, []),
        (["5:8:8", "1:1:6"], 8, []),
        (["1", "4", "8"], 8, [(2, 3), (5, 7)]),
        (["2:4:6"], 8, [(1, 1), (7, 8)]),
        (["20"], 8, [(1, 8)]),
    ],
)
def test_batches_that_no_profile_takes_are_known(
    texts: list[str], max_batch_size: int, gaps: list[tuple[int, int]]
) -> None:
    given = config(max_batch_size, input=[tensor("x", 4)])
    profiles = choose_profiles(given, {"x": (-1, 4)}, list(map(parse_profile, texts)))
    assert batch_gaps(profiles, max_batch_size) == gaps
