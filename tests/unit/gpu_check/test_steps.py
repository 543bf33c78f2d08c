"""The list of steps: each is there, bounded, and said in the docs what it proves."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

import pytest

from gpu_checks.main import TOTAL_SECONDS_MAX
from gpu_checks.peers import ROLES
from gpu_checks.steps import PROBE, STEPS

DOCS = Path(__file__).resolve().parents[3] / "docs" / "gpu.md"


@pytest.mark.parametrize("place", [*(s.place for s in (PROBE, *STEPS)), *ROLES.values()])
def test_each_is_there(place: str) -> None:
    module, _, function = place.partition(":")
    assert callable(getattr(import_module(f"gpu_checks.{module}"), function))


def test_each_is_bounded_by_much_less_than_the_script() -> None:
    assert TOTAL_SECONDS_MAX <= 480
    assert all(step.seconds_max <= TOTAL_SECONDS_MAX / 4 for step in STEPS)


def test_the_docs_say_of_each_what_it_proves() -> None:
    text = DOCS.read_text()
    assert [step.name for step in STEPS if f"| `{step.name}` |" not in text] == []
