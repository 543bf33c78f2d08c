"""A pytest plugin, on request: `pytest_plugins = ["naiad.testing.plugin"]` in a conftest.py.

`naiad_server` is a running server of the repository that the fixture `naiad_repository` names; by
default that is the folder model_repository beside the tests' configuration. Override it to change.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from naiad.testing.server import Server, serve


@pytest.fixture(scope="module")
def naiad_repository(pytestconfig: pytest.Config) -> Path:
    """The folder with the models to serve."""
    return pytestconfig.rootpath / "model_repository"


@pytest.fixture(scope="module")
def naiad_server(naiad_repository: Path) -> Iterator[Server]:
    """A server for the tests of one module; ends with them and leaves nothing behind."""
    with serve(naiad_repository) as server:
        yield server
