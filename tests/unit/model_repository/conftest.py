"""The scripts under test, imported by path: they are programs, not part of the package."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

SCRIPTS = Path(__file__).resolve().parents[3] / "scripts"


def script(name: str) -> Iterator[ModuleType]:
    """Import `scripts/<name>.py` under a name of its own and forget it afterwards."""
    alias = f"naiad_script_{name}"
    spec = importlib.util.spec_from_file_location(alias, SCRIPTS / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[alias] = module  # dataclasses look their module up here
    try:
        spec.loader.exec_module(module)
        yield module
    finally:
        del sys.modules[alias]


@pytest.fixture(scope="session")
def setup_models() -> Iterator[ModuleType]:
    yield from script("setup_models")


@pytest.fixture(scope="session")
def demo_inputs() -> Iterator[ModuleType]:
    yield from script("demo_inputs")
