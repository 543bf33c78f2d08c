"""The client library: `Client` (blocking) and `AsyncClient` (asyncio) for one naiad server.

Loads only pyzmq, msgpack, numpy and posix_ipc beyond the standard library.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from naiad.client.cuda import CudaRegion
from naiad.client.futures import Future
from naiad.client.preparing import prepare
from naiad.client.regions import ClientRegion
from naiad.client.requests import InferInput, OutputPlace, Prepared
from naiad.client.results import InferResult, Output
from naiad.client.sync import Client
from naiad.client.tensors import from_bfloat16, to_bfloat16
from naiad.protocol.errors import (
    Code,
    InternalError,
    ModelError,
    NaiadError,
    ProtocolError,
    RequestError,
    Unavailable,
)
from naiad.shm.cuda.arrays import DeviceArray

if TYPE_CHECKING:
    from naiad.client.aio import AsyncClient

__all__ = [
    "AsyncClient",
    "Client",
    "ClientRegion",
    "Code",
    "CudaRegion",
    "DeviceArray",
    "Future",
    "InferInput",
    "InferResult",
    "InternalError",
    "ModelError",
    "NaiadError",
    "Output",
    "OutputPlace",
    "Prepared",
    "ProtocolError",
    "RequestError",
    "Unavailable",
    "from_bfloat16",
    "prepare",
    "to_bfloat16",
]


def __getattr__(name: str) -> Any:
    """asyncio takes a third of the time of an import: it is loaded when it is used."""
    if name == "AsyncClient":
        from naiad.client.aio import AsyncClient

        return AsyncClient
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
