"""Stock clients and tools against a real server: naiad, or a real Triton by `--against triton`."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from support.stock_models import stock_repository
from support.stock_server import Stock, naiad_server, triton_server


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("conformance")
    group.addoption(
        "--against",
        choices=("naiad", "triton"),
        default="naiad",
        help="which server the stock clients and tools ask",
    )
    group.addoption(
        "--triton-command",
        metavar="COMMAND",
        help="starts a real Triton; {repository}, {http}, {grpc} and {metrics} stand for the"
        " folder with the models and three ports. Beside naiad it is what naiad is compared with",
    )
    group.addoption(
        "--perf-analyzer",
        metavar="PATH",
        help="NVIDIA's perf_analyzer; without it PERF_ANALYZER, then PATH is looked at",
    )
    group.addoption(
        "--model-analyzer",
        metavar="PATH",
        help="NVIDIA's model-analyzer; without it MODEL_ANALYZER, then PATH is looked at",
    )


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Everything here is conformance, and so runs apart from the other tests.

    A test that `differs` from Triton must fail there: a difference that is none is no longer told.
    """
    here = Path(__file__).parent
    for item in items:
        if here not in item.path.parents:
            continue
        item.add_marker(pytest.mark.conformance)
        differs = item.get_closest_marker("differs")
        if differs is not None and config.getoption("--against") == "triton":
            item.add_marker(pytest.mark.xfail(reason=differs.args[0], strict=True))


def tool(config: pytest.Config, name: str) -> str:
    """The path of a tool that is not installed with naiad's; without it the test is skipped."""
    variable = name.replace("-", "_").upper()
    command = name if name == "model-analyzer" else name.replace("-", "_")
    found = config.getoption(f"--{name}") or os.environ.get(variable) or shutil.which(command)
    if not found:
        pytest.skip(f"needs {command}: --{name}, {variable}, or on PATH")
    return str(found)


@pytest.fixture(scope="session")
def perf_analyzer(request: pytest.FixtureRequest) -> str:
    return tool(request.config, "perf-analyzer")


@pytest.fixture(scope="session")
def model_analyzer(request: pytest.FixtureRequest) -> str:
    return tool(request.config, "model-analyzer")


@pytest.fixture(scope="session")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return stock_repository(tmp_path_factory.mktemp("models"))


@pytest.fixture(scope="session")
def triton(
    request: pytest.FixtureRequest, repository: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Stock]:
    """A real Triton, where one is given."""
    command = request.config.getoption("--triton-command")
    if not command:
        pytest.skip("needs a real Triton: --triton-command")
    with triton_server(command, repository, tmp_path_factory.mktemp("triton") / "log") as server:
        yield server


@pytest.fixture(scope="session")
def naiad(repository: Path) -> Iterator[Stock]:
    with naiad_server(repository) as server:
        yield server


@pytest.fixture(scope="session")
def stock(request: pytest.FixtureRequest) -> Stock:
    """The server that is asked."""
    chosen: Stock = request.getfixturevalue(request.config.getoption("--against"))
    return chosen


@pytest.fixture
def under_way(stock: Stock) -> Callable[[], int]:
    """How many requests the server has not answered, over all models."""
    if stock.under_way is None:
        pytest.skip("only naiad drops what its client no longer wants, and says so")
    return stock.under_way
