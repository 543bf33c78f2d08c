"""Version directories and version policies."""

from __future__ import annotations

import pytest

from naiad.config.model import VersionPolicy
from naiad.config.versions import Skipped, choose_versions, version_of


@pytest.mark.parametrize(
    ("name", "version"), [("0", 0), ("1", 1), ("10", 10), (str(2**63 - 1), 2**63 - 1)]
)
def test_versions(name: str, version: int) -> None:
    assert version_of(name) == version


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("01", "leading zero"),
        ("00", "leading zero"),
        ("abc", "not a version number"),
        ("1abc", "not a version number"),
        ("-1", "not a version number"),
        ("1.0", "not a version number"),
        ("１", "not a version number"),
        (str(2**63), "larger than"),
        ("9" * 4000, "larger than"),
        (".DS_Store", ""),
        ("__pycache__", ""),
        ("warmup", ""),
        ("initial_state", ""),
        ("configs", ""),
    ],
)
def test_b53_what_is_no_version(name: str, reason: str) -> None:
    version = version_of(name)

    assert isinstance(version, Skipped)
    assert reason in version.reason
    assert bool(reason) == bool(version.reason)


@pytest.mark.parametrize(
    ("policy", "versions", "missing"),
    [
        (VersionPolicy(), (10,), ()),
        (VersionPolicy("latest", 2), (2, 10), ()),
        (VersionPolicy("latest", 9), (1, 2, 10), ()),
        (VersionPolicy("latest", 0), (), ()),
        (VersionPolicy("all", 0), (1, 2, 10), ()),
        (VersionPolicy("specific", 0, (2, 1, 7)), (1, 2), (7,)),
        (VersionPolicy("specific", 0, (7,)), (), (7,)),
    ],
)
def test_policies(
    policy: VersionPolicy, versions: tuple[int, ...], missing: tuple[int, ...]
) -> None:
    assert choose_versions(policy, [2, 10, 1, 2]) == (versions, missing)
