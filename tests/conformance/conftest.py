"""The option that points the conformance tests at another server."""

from __future__ import annotations

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--triton-url", help="HOST:PORT of a server to test instead of naiad")
