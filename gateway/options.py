"""The command line of a gateway process."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import Any, Final

from naiad.config.settings import seconds
from naiad.gateway.limits import Limits
from naiad.gateway.tls import Skin, TlsFiles

WISHES: Final = ("auto", "true", "false")


def parser() -> argparse.ArgumentParser:
    out = argparse.ArgumentParser(
        prog="naiad gateway",
        usage="%(prog)s --run-dir DIR [options]",
        description="One gateway process: KServe v2 for the server of a run directory.",
        epilog="example: naiad gateway --run-dir /run/naiad --http-port 8000 --reuse-port",
        allow_abbrev=False,
    )
    option = out.add_argument
    option("--run-dir", required=True, help="of the server to speak to")
    option("--name", default="gateway", help="of this process, for people")
    option("--http-address", default="127.0.0.1", help="an address, or unix:PATH")
    option("--http-port", type=int, default=8000)
    option("--no-http", action="store_true", help="gRPC alone")
    option("--http-fd", type=int, action="append", help="inherited listening socket; repeatable")
    option("--reuse-port", action="store_true", help="share the port with other gateways")
    option("--http-max-input-size", type=int, default=Limits().input_bytes_max, metavar="BYTES")
    option("--http-header-forward-pattern", default="", metavar="REGEX")
    option("--allow-client-shm", choices=WISHES, default="auto", help="auto: this machine alone")
    option("--allow-management", choices=WISHES, default="auto", help="auto: this machine alone")
    option("--grpc-port", type=int, help="listen for gRPC too; without this option, not")
    option("--grpc-fd", type=int, action="append", help="inherited listening socket; repeatable")
    option("--grpc-address", help="an address, or unix:PATH; default: that of HTTP")
    option("--grpc-header-forward-pattern", default="", metavar="REGEX")
    for skin in ("http", "grpc"):
        option(f"--{skin}-use-ssl", action="store_true", help="TLS, with cert and key below")
        option(f"--{skin}-use-ssl-mutual", action="store_true", help="and clients show theirs too")
        option(f"--{skin}-server-cert", metavar="PEM")
        option(f"--{skin}-server-key", metavar="PEM")
        option(f"--{skin}-root-cert", metavar="PEM", help="who may sign clients' certificates")
    option("--grace-seconds", type=seconds, default=0.0, help="serve on after SIGTERM, not ready")
    option("--drain-seconds", type=seconds, default=30.0, help="then for what is under way")
    return out


def tls_files(options: Mapping[str, Any], skin: Skin) -> TlsFiles:
    """What the options, by their names, say of TLS for one skin."""
    return TlsFiles(
        skin=skin,
        use_ssl=options[f"{skin}_use_ssl"],
        use_ssl_mutual=options[f"{skin}_use_ssl_mutual"],
        server_cert=options[f"{skin}_server_cert"],
        server_key=options[f"{skin}_server_key"],
        root_cert=options[f"{skin}_root_cert"],
    )
