"""Whether this thread leads, while others take the lead."""

from __future__ import annotations

import threading
from typing import Any

from naiad.client.blocking import BlockingDriver
from naiad.client.leads import Lead


class Passing:
    """Its lead was this thread's; before the second look another thread has taken it."""

    def __init__(self, *leads: Lead) -> None:
        self._leads = [*leads]

    @property
    def _lead(self) -> Lead:
        return self._leads.pop(0)


def is_leading(driver: Any) -> bool:
    return bool(BlockingDriver.is_leading.fget(driver))  # type: ignore[attr-defined]


def another_threads() -> Lead:
    made: list[Lead] = []
    thread = threading.Thread(target=lambda: made.append(Lead()))
    thread.start()
    thread.join()
    made[0].lock.acquire()
    return made[0]


def test_only_who_holds_the_lead_leads() -> None:
    lead = Lead()
    assert not is_leading(Passing(lead))
    with lead.lock:
        assert is_leading(Passing(lead))
    assert not is_leading(Passing(another_threads()))


def test_who_led_before_does_not_take_another_threads_lead_for_his() -> None:
    assert not is_leading(Passing(Lead(), another_threads()))
