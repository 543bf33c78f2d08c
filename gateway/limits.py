"""Every limit of a gateway process, with its unit. Values only; pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

MIB: Final = 2**20
READ_BYTES: Final = 128 * 1024
"""Of the buffer into which all HTTP connections read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What one gateway takes at most. Over a limit is an error that names it, never a crash."""

    requests_in_flight_max: int = 4096
    """Requests given to the broker and not answered; beyond, 429 or RESOURCE_EXHAUSTED."""
    bytes_in_flight_max: int = 1024 * MIB
    """Of all request bodies that are received or under way, and answers that nobody takes."""
    input_bytes_max: int = 64 * MIB
    """Triton's --http-max-input-size: JSON, one JSON tensor, a raw body, a decompressed body."""
    control_bytes_max: int = 64 * 1024
    """The JSON of a request that is neither inference nor a load: it is read at once, and everybody
    waits meanwhile."""
    control_values_max: int = 4096
    """In that JSON."""
    body_bytes_max: int = 512 * MIB
    """One request's body, as it travels."""

    connections_max: int = 4096
    header_bytes_max: int = 64 * 1024
    """Request line and header fields of one request together."""
    header_count_max: int = 128
    pieces_max: int = 65_536
    """In which one body may arrive: tiny chunks cost far more than their bytes."""
    pipeline_max: int = 128
    """Requests that one client may send ahead of its answers."""

    handshakes_max: int = 1024
    """TLS handshakes under way on one port; beyond, the oldest is given up."""
    handshake_seconds: float = 10.0
    """For one of them."""

    header_seconds: float = 20.0
    """From the first byte of a request to the last of its header."""
    body_seconds: float = 30.0
    """For a body, and a second more for every `body_rate_bytes`."""
    body_rate_bytes: int = 64 * 1024
    idle_seconds: float = 600.0
    """Between two requests. Long: a connection closed under a client's hands is an error to it."""
    write_seconds: float = 60.0
    """For a client that takes nothing of its answer."""
    load_config_bytes_max: int = MIB
    """Of the configuration that comes with a load, as for the broker."""
    load_files_max: int = 60
    """That one load may bring along: each is a parameter of the broker's message."""
    load_files_bytes_max: int = 256 * MIB
    load_path_chars_max: int = 200

    live_seconds: float = 5.0
    """In which a live broker answers, a restart included."""
