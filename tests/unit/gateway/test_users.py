"""Users in headers: which header is meant, what may stand there."""

from __future__ import annotations

import pytest

from naiad.gateway.users import KEY_BYTES_MAX, NOBODY, User, UserHeaders, header_name
from naiad.protocol.errors import RequestError

GIVEN = {b"x-user": b" ada\t", b"x-team": b"red", b"x-empty": b""}


@pytest.mark.parametrize(
    ("user", "fairness", "found"),
    [
        ("", "", NOBODY),
        ("X-User", "", User("ada", "ada")),
        ("x-USER", "X-User", User("ada", "ada")),
        ("X-User", "X-Team", User("ada", "red")),
        ("", "X-Team", User("", "red")),
        ("X-Missing", "", NOBODY),
        ("X-Empty", "X-Team", User("", "red")),
    ],
)
def test_one_header_says_both_unless_two_are_named(user: str, fairness: str, found: User) -> None:
    assert UserHeaders(user, fairness).user(GIVEN.get) == found


def test_who_is_nobody_costs_nothing_further() -> None:
    assert UserHeaders("X-Missing").user(GIVEN.get) is NOBODY


def test_every_byte_tells_users_apart() -> None:
    values = [bytes([byte]) for byte in range(0x21, 0x100) if byte != 0x7F]
    headers = UserHeaders("x-user")
    keys = {headers.user(lambda name, value=value: value) for value in values}  # type: ignore[misc]
    assert len(keys) == len(values)


@pytest.mark.parametrize("value", [b"a\x00b", b"a\nb", b"a\x7f", b"x" * (KEY_BYTES_MAX + 1)])
def test_what_is_no_key_is_refused_without_being_shown(value: bytes) -> None:
    with pytest.raises(RequestError, match=r"header 'x-user': expected at most 256 bytes") as fault:
        UserHeaders("x-user").user(lambda name: value)
    assert value.decode() not in fault.value.message


def test_the_longest_key_fits() -> None:
    user = UserHeaders("x-user").user(lambda name: b"x" * KEY_BYTES_MAX)
    assert len(user.accounting_key) == KEY_BYTES_MAX


@pytest.mark.parametrize("name", ["X-User", "x_user", "a" * 128])
def test_names_of_headers(name: str) -> None:
    assert header_name(name) == name


@pytest.mark.parametrize("name", ["", "x user", "x:user", "x-üser", "a" * 129, "x\n"])
def test_what_is_no_name_of_a_header(name: str) -> None:
    with pytest.raises(ValueError, match="expected the name of a header, such as X-User"):
        header_name(name)
