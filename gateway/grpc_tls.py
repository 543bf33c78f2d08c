"""TLS of the gRPC listener from PEM files, with Triton's options. Never logs what is in them."""

from __future__ import annotations

import ssl
from pathlib import Path

from naiad.config.listening import ListenFailed

_ALPN = ["h2"]


def tls_context(
    *,
    is_wanted: bool,
    is_mutual: bool,
    certificate: str | None,
    key: str | None,
    root: str | None,
) -> ssl.SSLContext | None:
    """What to listen with, None without TLS; `is_mutual`: clients must show a certificate too.

    Raises ListenFailed when a file is missing, not given, no certificate, or given without TLS.
    """
    if not is_wanted:
        if certificate or key or root:
            raise ListenFailed(
                "a certificate or key for gRPC is given, but not used; add --grpc-use-ssl"
            )
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2  # as HTTP/2 demands
    context.set_alpn_protocols(_ALPN)
    chain = _existing("--grpc-server-cert", certificate)
    try:
        context.load_cert_chain(chain, _existing("--grpc-server-key", key))
    except ssl.SSLError as fault:
        raise ListenFailed(
            f"--grpc-server-cert {chain} and its key cannot be used: {fault.reason}"
        ) from fault
    if is_mutual or root:
        signers = _existing("--grpc-root-cert", root)
        try:
            context.load_verify_locations(signers)
        except ssl.SSLError as fault:
            raise ListenFailed(f"--grpc-root-cert {signers}: {fault.reason}") from fault
    if is_mutual:
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def _existing(option: str, path: str | None) -> str:
    if not path:
        raise ListenFailed(f"TLS for gRPC needs a PEM file; give {option}")
    try:
        with Path(path).open("rb"):
            return path
    except OSError as fault:
        raise ListenFailed(f"{option} {path}: {fault.strerror}") from fault
