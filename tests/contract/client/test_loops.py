"""An AsyncClient and its event loop."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

from naiad.client import AsyncClient, RequestError
from support.clients import Broker


def test_a_second_event_loop_is_refused(broker: Broker) -> None:
    client = AsyncClient(broker.run_dir)
    asyncio.run(client.live())

    async def use() -> None:
        with pytest.raises(RequestError, match=r"first used, .* in another; make one in each loop"):
            await client.infer("echo", {"x": np.zeros(1)})
        with pytest.raises(RequestError, match="make one in each loop"):
            await client.live()
        await client.close()

    asyncio.run(use())
