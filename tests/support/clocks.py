"""Clocks that tests set."""


class Clock:
    """Shows `seconds`."""

    seconds = 0.0

    def __call__(self) -> float:
        return self.seconds
