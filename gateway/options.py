"""The command line of a gateway process."""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeVar

from naiad.config.listening import UNIX_PREFIX, ListenFailed, port_number
from naiad.config.settings import seconds
from naiad.gateway.limits import Limits
from naiad.gateway.restrictions import GRPC_PREFIX, Restriction, RestrictionFault, parsed
from naiad.gateway.tls import Skin, TlsFiles
from naiad.gateway.users import header_name

MANAGEMENT_ADDRESS: Final = "127.0.0.1"
HIDDEN: Final = argparse.SUPPRESS
"""Rarely wanted, or for a supervisor: sockets and files that are inherited."""
WISHES: Final = ("auto", "true", "false")
RESTRICTED: Final = {"--http-restricted-api": "", "--grpc-restricted-protocol": GRPC_PREFIX}
"""Options that restrict groups, with what stands in front of the header in a request."""
FILE_PREFIX: Final = "@"
_SIZE: Final = re.compile(r"[0-9]{1,18}")
RESTRICTIONS_BYTES_MAX: Final = 64 * 1024
"""Of a file with such groups, one on each line."""

T = TypeVar("T")


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
    option("--http-port", type=_typed(port_number), default=8000)
    option("--no-http", action="store_true", help="gRPC alone")
    option("--http-fd", type=int, action="append", help=HIDDEN)
    option("--reuse-port", action="store_true", help="share the port with other gateways")
    option(
        "--http-max-input-size",
        type=_typed(_size_bytes),
        default=Limits().input_bytes_max,
        metavar="BYTES",
    )
    option(
        "--http-header-forward-pattern", type=_typed(header_pattern), default="", metavar="REGEX"
    )
    option("--allow-client-shm", choices=WISHES, default="auto", help="auto: this machine alone")
    option(
        "--management-port",
        type=_typed(port_number),
        help="what --allow-management opens, there alone",
    )
    option("--management-address", help="a loopback address, or unix:PATH; default: 127.0.0.1")
    option("--management-fd", type=int, action="append", help=HIDDEN)
    option("--allow-management", choices=WISHES, default="auto", help="auto: this machine alone")
    option(
        "--grpc-port",
        type=_typed(port_number),
        help="listen for gRPC too; without this option, not",
    )
    option("--grpc-fd", type=int, action="append", help=HIDDEN)
    option("--grpc-address", help="an address, or unix:PATH; default: that of HTTP")
    option(
        "--grpc-header-forward-pattern", type=_typed(header_pattern), default="", metavar="REGEX"
    )
    option(
        "--user-header",
        type=_typed(_header),
        default="",
        metavar="NAME",
        help="whose request it is",
    )
    option(
        "--fairness-header", type=_typed(_header), default="", metavar="NAME", help="or whose turn"
    )
    for skin in ("http", "grpc"):
        option(f"--{skin}-use-ssl", action="store_true", help="TLS; docs/access.md has the rest")
        option(f"--{skin}-use-ssl-mutual", action="store_true", help=HIDDEN)
        for name in ("server-cert", "server-key", "root-cert"):
            option(f"--{skin}-{name}", metavar="PEM", help=HIDDEN)
    for name in RESTRICTED:
        option(name, action="append", default=[], metavar="CATEGORIES:HEADER=VALUE|@FILE")
        option(f"{name}-fd", type=int, help=HIDDEN)
    option("--grace-seconds", type=seconds, default=0.0, help="serve on after SIGTERM, not ready")
    option("--drain-seconds", type=seconds, default=30.0, help="then for what is under way")
    return out


def header_pattern(text: str) -> str:
    """A pattern for names of headers, as an option gives it. Raises ValueError with one sentence.

    Checked by whoever starts gateways too, because each of them would end over it.
    """
    try:
        re.compile(text, re.IGNORECASE)
    except (re.error, OverflowError, RecursionError) as fault:
        reason = str(fault) or type(fault).__name__
        raise ValueError(
            f"expected a regular expression, such as ^x-trace-.*, got {text!r:.80} ({reason})"
        ) from None
    return text


def _size_bytes(text: str) -> int:
    size = int(text) if _SIZE.fullmatch(text) else 0
    if size < 1:
        raise ValueError(f"expected a number of bytes from 1, got {text!r:.80}")
    return size


def _typed(check: Callable[[str], T]) -> Callable[[str], T]:
    """For argparse, which shows no words of a ValueError."""

    def checked(text: str) -> T:
        try:
            return check(text)
        except ValueError as fault:
            raise argparse.ArgumentTypeError(str(fault)) from None

    return checked


def _header(text: str) -> str:
    return text and header_name(text)


def management_place(address: str | None, port: int | None) -> tuple[str, int] | None:
    """Where the management listener is wanted, if at all."""
    address = address or ""
    if port is None and not address.startswith(UNIX_PREFIX):
        if address:
            raise ListenFailed("--management-address needs --management-port beside it")
        return None
    return address or MANAGEMENT_ADDRESS, port or 0


def restrictions(
    option: str, given: Sequence[str], inherited: int | None = None
) -> dict[str, Restriction]:
    """By category, what is given for one of RESTRICTED, and in a file that is inherited.

    Raises RestrictionFault.
    """
    groups: list[str] = []
    for group in given:
        if not group.startswith(FILE_PREFIX):
            groups.append(group)
            continue
        try:
            with open(group.removeprefix(FILE_PREFIX), "rb") as file:
                groups += _lines(option, file.read(RESTRICTIONS_BYTES_MAX + 1))
        except OSError as fault:
            raise RestrictionFault(f"{option} {group}: {fault.strerror}") from fault
    if inherited is not None:
        # From its beginning, wherever gateways before this one have read to.
        groups += _lines(option, os.pread(inherited, RESTRICTIONS_BYTES_MAX + 1, 0))
    return parsed(option, groups, RESTRICTED[option])


def _lines(option: str, found: bytes) -> list[str]:
    if len(found) > RESTRICTIONS_BYTES_MAX:
        raise RestrictionFault(f"{option}: the file has over {RESTRICTIONS_BYTES_MAX} bytes")
    lines = found.decode("utf-8", "replace").split("\n")
    return [line.strip() for line in lines if line.strip() and not line.startswith("#")]


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
