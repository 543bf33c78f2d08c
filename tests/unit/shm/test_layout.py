"""Names and ranges: what is accepted, what is refused, and in which words."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from naiad.protocol.errors import Code, RequestError
from naiad.protocol.messages import OutputRequest, Place, Tensor
from naiad.shm.layout import (
    KEY_CHARS_MAX,
    RANDOM_BYTES,
    REGION_BYTES_MAX,
    SegmentName,
    aligned_up,
    checked_key,
    checked_range,
    is_written_over,
    parse_segment_name,
    power_of_two_up,
    sanitised_server,
    segment_name,
)

RANDOM = bytes(range(RANDOM_BYTES))


@given(
    st.text(max_size=100),
    st.from_regex(r"[a-z0-9_-]{1,16}", fullmatch=True),
    st.integers(1, 2**32 - 1),
    st.binary(min_size=RANDOM_BYTES, max_size=RANDOM_BYTES),
)
def test_a_name_is_parsed_into_what_it_was_built_from(
    server: str, role: str, pid: int, random: bytes
) -> None:
    key = segment_name(server, role, pid, random)
    assert parse_segment_name(key) == SegmentName(sanitised_server(server), role, pid, random.hex())
    assert len(key) <= KEY_CHARS_MAX
    assert checked_key(key, foreign=False) == key
    with pytest.raises(RequestError):
        checked_key(key, foreign=True)


@pytest.mark.parametrize(
    "key",
    [
        "",
        "/naiad",
        "/naiad.",
        "naiad.s.client.1.0001020304050607",
        "/naiad.s.client.1.000102030405060",
        "/naiad.s.client.1.0001020304050607.x",
        "/naiad.s.client.0.0001020304050607",
        "/naiad.s.client.-1.0001020304050607",
        "/naiad.s.CLIENT.1.0001020304050607",
        "/naiad.a.b.client.1.0001020304050607",
        "/naiad.s.client.1.0001020304050607\n",
        "/naiad.s.client.١.0001020304050607",
        f"/naiad.{'s' * 49}.client.1.0001020304050607",
    ],
)
def test_what_we_did_not_name_is_not_parsed(key: str) -> None:
    assert parse_segment_name(key) is None


@pytest.mark.parametrize(
    ("server", "expected"),
    [
        ("naiad", "naiad"),
        ("a.b/c d", "a_b_c_d"),
        ("größe", "gr__e"),
        ("", "_"),
        ("x" * 60, "x" * 48),
    ],
)
def test_server_names_are_sanitised(server: str, expected: str) -> None:
    assert sanitised_server(server) == expected


@pytest.mark.parametrize("key", ["", "/", "///", ".", "/..", "/a/b", "/a\0b", "/" + "a" * 256])
def test_keys_that_name_nothing_are_refused(key: str) -> None:
    with pytest.raises(RequestError, match="shared memory key"):
        checked_key(key, foreign=True)


def test_a_key_that_is_no_text_is_refused() -> None:
    with pytest.raises(RequestError, match="UTF-8"):
        checked_key("/\udc80", foreign=True)


@pytest.mark.parametrize("key", ["region", "/region", "///region"])
def test_keys_get_exactly_one_slash(key: str) -> None:
    assert checked_key(key, foreign=True) == "/region"


@pytest.mark.parametrize("key", ["/naiad.x", "naiad.x", "//naiad.s.client.1.0001020304050607"])
def test_our_own_names_are_refused_from_outside(key: str) -> None:
    with pytest.raises(RequestError, match="reserved") as caught:
        checked_key(key, foreign=True)
    assert caught.value.code is Code.PERMISSION_DENIED


REFUSED_OFFSETS = [(-1, 1), (100, 0), (100, 1), (2**63, 1), (2**64 - 1, 2), (-(2**63), 2**63)]
REFUSED_SIZES = [(0, 101), (1, 100), (99, 2), (0, -1), (50, 2**63), (99, 2**64 - 99)]


@pytest.mark.parametrize(("offset", "size"), REFUSED_OFFSETS)
def test_an_offset_outside_the_region_is_refused_in_tritons_words(offset: int, size: int) -> None:
    with pytest.raises(RequestError, match=r"^Invalid offset for shared memory region: 'r'"):
        checked_range(offset, size, 100, "r")


@pytest.mark.parametrize(("offset", "size"), REFUSED_SIZES)
def test_an_end_outside_the_region_is_refused_in_tritons_words(offset: int, size: int) -> None:
    with pytest.raises(
        RequestError, match=r"^Invalid offset \+ byte size for shared memory region: 'r'"
    ) as caught:
        checked_range(offset, size, 100, "r")
    assert str(size) in caught.value.message
    assert "100 bytes" in caught.value.message


@pytest.mark.parametrize(("offset", "size"), [(0, 0), (0, 100), (99, 1), (99, 0), (7, 13)])
def test_a_range_inside_the_region_passes(offset: int, size: int) -> None:
    checked_range(offset, size, 100)


def test_ranges_stay_below_what_any_pointer_can_hold() -> None:
    with pytest.raises(RequestError):
        checked_range(REGION_BYTES_MAX, 1, REGION_BYTES_MAX * 2)
    with pytest.raises(RequestError):
        checked_range(0, REGION_BYTES_MAX, REGION_BYTES_MAX * 2)


@given(st.integers(0, 2**48))
def test_rounding(value: int) -> None:
    assert aligned_up(value) % 64 == 0
    assert 0 <= aligned_up(value) - value < 64
    power = power_of_two_up(value)
    assert power & (power - 1) == 0
    assert power >= max(value, 1)
    assert power == 1 or power // 2 < value


@pytest.mark.parametrize(
    ("place", "region", "offset", "size", "expected"),
    [
        (Place.REGION, 3, 100, 50, True),
        (Place.REGION, 3, 149, 1, True),
        (Place.REGION, 3, 0, 101, True),
        (Place.REGION, 3, 0, 1000, True),
        (Place.REGION, 3, 0, 100, False),
        (Place.REGION, 3, 150, 10, False),
        (Place.REGION, 4, 100, 50, False),
        (Place.INLINE, 3, 100, 50, False),
    ],
)
def test_outputs_over_inputs(
    place: Place, region: int, offset: int, size: int, expected: bool
) -> None:
    inline = Tensor("A", "UINT8", (50,), Place.INLINE, 3, 100, 50)
    shared = Tensor("B", "UINT8", (50,), Place.REGION, 3, 100, 50)
    wanted = OutputRequest("C", place, region, offset, size)
    assert is_written_over((inline, shared), (OutputRequest("D", Place.INLINE), wanted)) is expected
    assert not is_written_over((inline,), (wanted,))
    assert not is_written_over((shared,), ())
