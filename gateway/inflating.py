"""Compressed bodies, whose true size shows only while they are decompressed, within the budget."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from naiad.gateway.compression import Inflation


async def inflated_in_budget(inflation: Inflation, take: Callable[[int], None]) -> bytearray:
    """All of it. `take` is called with the size of each piece as soon as it is there; from the
    second one on they are made in a thread, where zlib lets others run.

    Raises InflationFault, and whatever `take` raises.
    """
    loop = asyncio.get_running_loop()
    body = bytearray()
    piece = inflation.piece()
    while True:
        take(len(piece))
        body += piece
        if inflation.is_ended:
            return body
        piece = await loop.run_in_executor(None, inflation.piece)
