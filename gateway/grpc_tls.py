"""TLS of the gRPC listener from PEM files, with Triton's options. Never logs what is in them."""

from __future__ import annotations

from pathlib import Path

import grpc

from naiad.config.listening import ListenFailed


def credentials(
    *,
    is_wanted: bool,
    is_mutual: bool,
    certificate: str | None,
    key: str | None,
    root: str | None,
) -> grpc.ServerCredentials | None:
    """What to listen with, None without TLS; `is_mutual`: clients must show a certificate too.

    Raises ListenFailed when a file is missing, not given, or given without TLS.
    """
    if not is_wanted:
        if certificate or key or root:
            raise ListenFailed(
                "a certificate or key for gRPC is given, but not used; add --grpc-use-ssl"
            )
        return None
    chain = _content("--grpc-server-cert", certificate)
    private_key = _content("--grpc-server-key", key)
    signers = _content("--grpc-root-cert", root) if root or is_mutual else None
    return grpc.ssl_server_credentials(
        [(private_key, chain)], root_certificates=signers, require_client_auth=is_mutual
    )


def _content(option: str, path: str | None) -> bytes:
    if not path:
        raise ListenFailed(f"TLS for gRPC needs a PEM file; give {option}")
    try:
        return Path(path).read_bytes()
    except OSError as fault:
        raise ListenFailed(f"{option} {path}: {fault.strerror}") from fault
