"""How many worker processes there should be, and when the next one may be started.

Pure: time is an argument. Owns the names of slots and the back-off after early deaths; starts and
ends nothing itself.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

NS: Final = 1_000_000_000
EARLY_DEATH_NS: Final = 2 * NS
"""A process that ends by a fault within this time of its start has probably never worked."""
WORD_WAIT_NS: Final = 250_000_000
"""After a clean exit, for the broker's word that it wants fewer slots now: a worker that is started
meanwhile would stay for ever as one spare too many."""
BACK_OFF_FIRST_NS: Final = NS // 10
BACK_OFF_NS_MAX: Final = 5 * NS
SLOTS_PER_DEVICE_MAX: Final = 1024


class BackOff:
    """Delay before the next start: none after a healthy life, doubled at each early death."""

    def __init__(self) -> None:
        self.early_deaths = 0
        """Early deaths in a row."""

    def delay_ns(self, *, is_early: bool) -> int:
        """Record a death; how long to wait. The first early one costs nothing: it may be chance."""
        self.early_deaths = self.early_deaths + 1 if is_early else 0
        if self.early_deaths <= 1:
            return 0
        return int(min(BACK_OFF_FIRST_NS << min(self.early_deaths - 2, 16), BACK_OFF_NS_MAX))


@dataclass(frozen=True, slots=True)
class Start:
    """A worker process to start now."""

    slot: str
    device: str
    preload: tuple[str, ...]


@dataclass(slots=True)
class _Device:
    slots: int = 0
    preload: tuple[str, ...] = ()
    running: set[str] = field(default_factory=set)
    back_off: BackOff = field(default_factory=BackOff)
    not_before_ns: int = 0


class SlotTable:
    """What the broker wants on each device against what runs."""

    def __init__(self) -> None:
        self._devices: dict[str, _Device] = {}
        self._device_of: dict[str, str] = {}

    def want(self, device: str, slots: int, preload: tuple[str, ...]) -> None:
        """The broker's wish. More than SLOTS_PER_DEVICE_MAX are never started."""
        entry = self._devices.setdefault(device, _Device())
        entry.slots = min(slots, SLOTS_PER_DEVICE_MAX)
        entry.preload = preload

    def due(self, now_ns: int) -> list[Start]:
        """What to start now; counted as running from this call on."""
        starts = []
        for device, entry in self._devices.items():
            if now_ns < entry.not_before_ns:
                continue
            while len(entry.running) < entry.slots:
                slot = self._free_name(device, entry)
                entry.running.add(slot)
                self._device_of[slot] = device
                starts.append(Start(slot, device, entry.preload))
        return starts

    def exited(self, slot: str, now_ns: int, *, is_early: bool, is_clean: bool = False) -> int:
        """A worker ended; the delay until its device gets a new one, in nanoseconds.

        `is_clean`: as one does whose model was unloaded; then most likely none is wanted.
        """
        entry = self._devices[self._device_of.pop(slot)]
        entry.running.discard(slot)
        delay_ns = entry.back_off.delay_ns(is_early=is_early)
        if is_clean:
            delay_ns = max(delay_ns, WORD_WAIT_NS)
        entry.not_before_ns = now_ns + delay_ns
        return delay_ns

    def deadline_ns(self) -> int | None:
        """When `due` may have something, or None when nothing is missing."""
        waiting = [
            entry.not_before_ns
            for entry in self._devices.values()
            if len(entry.running) < entry.slots
        ]
        return min(waiting, default=None)

    @staticmethod
    def _free_name(device: str, entry: _Device) -> str:
        # Lowest free number, so that the files of slots stay as few as there were slots at a time.
        label = device.replace(":", "-").replace("/", "_")  # old names of MIG devices have slashes
        index = 0
        while f"{label}-{index}" in entry.running:
            index += 1
        return f"{label}-{index}"
