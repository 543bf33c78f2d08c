"""The real packages of NVIDIA that fakes are held to.

The dev extra has them where there are wheels: there a missing one fails, as a contract that nobody
looks at is none. Elsewhere the tests are skipped.
"""

from __future__ import annotations

import importlib
import platform
from typing import Any

import pytest

MACHINES_WITH_WHEELS = ("x86_64",)


def real_package(module: str, packages: str) -> Any:
    """The module; `packages` is what to install for it."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        if platform.machine() in MACHINES_WITH_WHEELS:
            pytest.fail(f"{error}; run `make setup`, which installs {packages}", pytrace=False)
        pytest.skip(f"no wheels of {packages} for {platform.machine()}", allow_module_level=True)
