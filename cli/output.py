"""What children print, made into lines that cannot hurt: prefixed, cut, counted, limited.

Pure: bytes and the time in, lines out. A child that prints without end costs its supervisor the
reading, not the log: beyond the rate its lines are counted and one line says how many.
"""

from __future__ import annotations

from typing import Final

from naiad.config.log_lines import OWN_TIME

LINE_BYTES_MAX: Final = 8192
LINES_PER_SECOND_MAX: Final = 100
LINES_BURST_MAX: Final = 500
NS: Final = 1_000_000_000

_CONTROL: Final = {code: None for code in range(32) if code != 9} | {127: None}


class ChildOutput:
    """The output of one child process, fed as it arrives."""

    def __init__(self, prefix: str, now_ns: int) -> None:
        self.prefix = prefix
        self.last_line = ""
        """For the reason when the child dies: its last words are usually the cause."""
        self._partial = b""
        self._tokens = float(LINES_BURST_MAX)
        self._filled_ns = now_ns
        self._suppressed = 0

    def feed(self, content: bytes, now_ns: int) -> list[str]:
        """The lines to log, without newline; an unfinished line is kept for the next call."""
        *whole, rest = (self._partial + content).split(b"\n")
        while len(rest) > LINE_BYTES_MAX:
            whole.append(rest[:LINE_BYTES_MAX])
            rest = rest[LINE_BYTES_MAX:]
        self._partial = rest
        return self._limited(whole, now_ns)

    def close(self, now_ns: int) -> list[str]:
        """What is left at the end, and how much was never shown."""
        lines = self._limited([self._partial] if self._partial else [], now_ns)
        self._partial = b""
        return lines + self._report()

    def _limited(self, raw: list[bytes], now_ns: int) -> list[str]:
        gained = (now_ns - self._filled_ns) * LINES_PER_SECOND_MAX / NS
        self._tokens = min(LINES_BURST_MAX, self._tokens + gained)
        self._filled_ns = now_ns
        lines = []
        for content in raw:
            text = content[:LINE_BYTES_MAX].decode("utf-8", "replace").translate(_CONTROL)
            # The broker writes the time itself, for when nobody else does.
            text = OWN_TIME.sub("", text, count=1)
            if not text:
                continue
            self.last_line = text
            if self._tokens < 1:
                self._suppressed += 1
                continue
            self._tokens -= 1
            lines += self._report()
            lines.append(f"{self.prefix}{text}")
        return lines

    def _report(self) -> list[str]:
        if not self._suppressed:
            return []
        count, self._suppressed = self._suppressed, 0
        return [f"{self.prefix}({count} lines suppressed: over {LINES_PER_SECOND_MAX} a second)"]
