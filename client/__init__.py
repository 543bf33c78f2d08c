"""The client library: `Client` (blocking) and `AsyncClient` (asyncio) for one naiad server.

Loads only pyzmq, msgpack, numpy and posix_ipc beyond the standard library.
"""

from naiad.client.aio import AsyncClient
from naiad.client.arguments import prepare
from naiad.client.futures import Future
from naiad.client.memory import ClientRegion
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

__all__ = [
    "AsyncClient",
    "Client",
    "ClientRegion",
    "Code",
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
