"""No client of a gateway is told where the broker's socket is, over HTTP as over gRPC."""

from __future__ import annotations

from naiad.gateway.grpc_codec.head import error_end
from naiad.gateway.http_status import from_fault
from naiad.protocol.errors import Code, RequestError, Unavailable

LOST = Unavailable("nobody answered at ipc:///run/naiad/c.sock", code=Code.CONNECTION_LOST)


def test_the_socket_is_not_named() -> None:
    assert from_fault(LOST).message == "the server's broker does not answer; try again"
    assert b"naiad/c.sock" not in error_end(LOST, is_all=True)
    assert b"broker does not answer" in error_end(LOST, is_all=True)


def test_other_texts_are_as_they_were() -> None:
    fault = RequestError("unexpected shape for input 'x'")
    assert from_fault(fault).message == fault.message
    assert b"unexpected shape for input 'x'" in error_end(fault, is_all=False)
