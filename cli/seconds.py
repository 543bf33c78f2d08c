"""Options that are a number of seconds: finite, and no more than anybody can mean."""

from __future__ import annotations

import math
from typing import Any

import click

from naiad.config.settings import SECONDS_MAX


class Seconds(click.FloatRange):
    """A number from `least` (or more than zero, where it is None) to SECONDS_MAX."""

    name = "seconds"

    def __init__(self, least: float | None = None) -> None:
        super().__init__(min=least or 0, max=int(SECONDS_MAX), min_open=least is None)
        self._least = "more than 0" if least is None else f"{least:g}"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        try:
            seconds = float(super().convert(value, param, ctx))
        except click.BadParameter:
            seconds = math.nan
        if math.isnan(seconds):  # neither below nor above anything, so the range lets it pass
            self.fail(
                f"expected seconds, {self._least} to {SECONDS_MAX:.0f} (a year), "
                f"got {str(value)!r:.80}",
                param,
                ctx,
            )
        return seconds
