"""Waiting for a condition, with a deadline and a name for what did not happen."""

from __future__ import annotations

import time
from collections.abc import Callable

POLL_S = 0.005


def wait_until(condition: Callable[[], object], what: str, patience_s: float = 20.0) -> None:
    """Return as soon as the condition holds; an AssertionError with `what` if it never does."""
    deadline = time.monotonic() + patience_s
    while not condition():
        assert time.monotonic() < deadline, f"not within {patience_s} s: {what}"
        time.sleep(POLL_S)
