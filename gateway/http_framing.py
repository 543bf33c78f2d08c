"""What a request's head must say of its framing, beyond what the parser demands. Pure."""

from __future__ import annotations

from typing import Final

from naiad.gateway.http_status import HttpError

VERSIONS: Final = ("1.1", "1.0")
_HOST: Final = b"host"
_CODING: Final = b"transfer-encoding"


def check_framing(version: str, headers: dict[bytes, bytes]) -> None:
    """What a proxy in front might read otherwise, so that the next request would begin elsewhere.

    Raises HttpError.
    """
    if version not in VERSIONS:
        raise HttpError(505, f"HTTP/{version}: only HTTP/1.1 and HTTP/1.0 are spoken here")
    host = headers.get(_HOST)
    if host is None:
        if version != "1.0":
            raise HttpError(400, "no Host field: a request of HTTP/1.1 has one")
    elif b"," in host:
        raise HttpError(400, "more than one Host")
    coding = headers.get(_CODING)
    if coding is None:
        return
    if version == "1.0" or b"content-length" in headers:
        raise HttpError(400, "Transfer-Encoding: not with HTTP/1.0, nor with a Content-Length")
    if coding.strip().lower() != b"chunked":
        raise HttpError(501, f"Transfer-Encoding: {coding!r:.40}; only chunked is understood")
