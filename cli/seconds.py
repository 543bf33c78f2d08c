"""Options that are a number of seconds: finite, and no more than anybody can mean."""

from __future__ import annotations

import math
from typing import Any

import click
from click.types import FloatParamType

from naiad.config.settings import SECONDS_MAX


class Seconds(FloatParamType):
    """A number from `least` (or more than zero, where it is None) to SECONDS_MAX."""

    name = "seconds"  # what --help shows for the value

    def __init__(self, least: float | None = None) -> None:
        self._least = least

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        try:
            seconds = float(super().convert(value, param, ctx))
        except click.BadParameter:
            seconds = math.nan
        is_enough = seconds > 0 if self._least is None else seconds >= self._least
        if not is_enough or not seconds <= SECONDS_MAX:  # also not a number
            least = "more than 0" if self._least is None else f"{self._least:g}"
            self.fail(
                f"expected seconds, {least} to {SECONDS_MAX:.0f} (a year), got {str(value)!r:.80}",
                param,
                ctx,
            )
        return seconds
