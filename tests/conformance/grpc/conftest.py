"""Stock tritonclient.grpc against a real server."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import tritonclient.grpc as triton

from support.stock_server import Stock


@pytest.fixture(scope="session")
def target(stock: Stock) -> str:
    return stock.grpc


@pytest.fixture
def client(target: str) -> Iterator[Any]:
    with triton.InferenceServerClient(target) as client:
        yield client
