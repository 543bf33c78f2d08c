"""Ranges for NVIDIA's profilers, where the optional package `nvtx` is installed."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any, Final

DOMAIN: Final = "naiad"

Marked = Callable[[str], AbstractContextManager[object]]


def profiler_ranges(importer: Callable[[str], Any]) -> Marked:
    """What makes a range out of a name; without the package it does nothing."""
    try:
        nvtx = importer("nvtx")
    except ImportError:
        return nullcontext
    return partial(nvtx.annotate, domain=DOMAIN)
