"""A client of one ModelStreamInfer, before a plane of the test's own."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any, cast

from tritonclient.grpc import service_pb2

from naiad.gateway.grpc_service import Caller
from naiad.gateway.grpc_stream import Stream
from naiad.gateway.phase import Phase
from naiad.gateway.plane import Plane


class StreamClient:
    """One stream of requests."""

    def __init__(self, plane: Any) -> None:
        self.items: list[Any] = []
        self.stream = Stream(
            cast(Plane, plane),
            Phase(),
            Caller(may_share_memory=True, may_manage=True),
            wants_status=False,
        )

    async def run(self, *requests: bytes) -> list[tuple[str, str]]:
        """(id, error) of each item."""
        await self.stream.run(_each(requests), self._write)
        return [(one.infer_response.id, one.error_message) for one in self.items]

    async def _write(self, *item: bytes | memoryview) -> None:
        self.items.append(service_pb2.ModelStreamInferResponse.FromString(b"".join(item)))


async def _each(requests: tuple[bytes, ...]) -> AsyncIterator[bytes]:
    for request in requests:
        yield request


def request(ident: str, count: int = 1) -> bytes:
    tensor = service_pb2.ModelInferRequest.InferInputTensor(
        name="I", datatype="INT32", shape=[count]
    )
    tensor.contents.int_contents.extend([1] * count)
    message: bytes = service_pb2.ModelInferRequest(
        model_name="m", id=ident, inputs=[tensor]
    ).SerializeToString()
    return message
