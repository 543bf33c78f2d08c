"""For tests of a new broker on the bench: its predecessor's workers and clients come back."""

from __future__ import annotations

from typing import Any

from naiad.broker.core import events as e
from naiad.protocol import messages as m
from support.simulated_bench import CLIENT, Bench, config


def back(bench: Bench, slot: int, instance: int, *held: m.HeldBatch, **fields: Any) -> None:
    """A worker says hello to this broker, with what it has, and LOADED."""
    hello = bench.hello(
        slot, incarnation=7, instance=instance, model="m", version=1, held=held, **fields
    )
    bench.do(e.SlotOpened(slot, hello, slot))
    if instance and bench.world.slots[slot].instance is not None:
        bench.loaded(slot)


def resend(bench: Bench, *idents: int, client: int = CLIENT, attempt: int = 2) -> None:
    bench.ask(*idents, client=client, attempt=attempt)


def crashed(found: dict[str, Any] | None = None, *asked: int) -> tuple[Bench, int, int, list[int]]:
    """A broker whose predecessor died while its worker had `asked`: it, slot, instance, batches."""
    bench = Bench()
    (slot,) = bench.served(found or config())
    if asked:
        bench.ask(*asked)
    batches = [batch.id for batch in bench.batches[slot]]
    return bench.restarted(), slot, bench.instance(slot).id, batches


def held(batch: int, *idents: int, finished: bool = False) -> m.HeldBatch:
    return m.HeldBatch(batch, tuple((CLIENT, ident) for ident in idents), finished)


def results(bench: Bench, slot: int, batch: int, count: int = 1, error: Any = None) -> None:
    tensor = m.Tensor("Y", "UINT8", (4,), int(m.Place.INLINE), 0, 0, 4)
    some = tuple(m.BatchResult(error, () if error else (tensor,)) for _ in range(count))
    message = m.Results(batch, some, m.Durations(0, 1, 0), 0, ())
    bench.do(e.BatchFinished(slot, message, [bytes(4)]))
