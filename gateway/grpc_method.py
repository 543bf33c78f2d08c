"""A gRPC method as it is served: what its messages may be, who may call it, and what answers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, NamedTuple

from naiad.client.requests import Buffer
from naiad.gateway.restrictions import Restriction

if TYPE_CHECKING:  # they know this
    from naiad.gateway.grpc_many_requests import ManyRequestsCall
    from naiad.gateway.grpc_one_request import OneRequestCall


class Method(NamedTuple):
    """One of `one` and `many` is given: how it is answered, with the call to send by."""

    name: str
    message_bytes_max: int
    is_inference: bool = False
    restriction: Restriction | None = None
    is_elsewhere: bool = False
    """It has a listener of its own, which is not this one."""
    one: Callable[[Buffer, OneRequestCall], Awaitable[None]] | None = None
    many: Callable[[ManyRequestsCall], Awaitable[None]] | None = None
