"""Whether a GPU still works for this process, asked when a model's error speaks of CUDA.

After some errors (an illegal access, a failed assertion, ...) CUDA answers every later call with
the same one: whatever engine runs in the process, it can do nothing more and must end. Engines tell
it in words, CUDA's own; where cuda-bindings is installed, CUDA itself is asked before they are
believed.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any, Final

from naiad.shm.cuda.errors import DRIVER_MODULE, RUNTIME_MODULE, STICKY_WORDS
from naiad.worker.backends.base import InstanceLost
from naiad.worker.device import ORDINAL

MENTION: Final = "cuda"


class GpuHealth:
    """Of the one GPU of a worker. `load` is for tests, which plant modules."""

    def __init__(self, model: str, uuid: str, load: Callable[[str], Any] = import_module) -> None:
        self._model = model
        self._uuid = uuid
        self._load = load

    def check(self, text: str) -> None:
        """Raises InstanceLost where an error of this text has ended all use of the GPU here."""
        if MENTION not in text.casefold():
            return
        told = next((code for code, words in STICKY_WORDS.items() if words in text), 0)
        if not told:
            return
        answered = self._asked()
        if answered == 0:  # somebody's words alone
            return
        code = answered or told
        words = STICKY_WORDS.get(code, "no words for it")
        raise InstanceLost(
            f"model {self._model!r} on {self._uuid}: CUDA error {code} ({words}); nothing more can "
            "run in this process"
        )

    def _asked(self) -> int | None:
        """The error that CUDA answers with now, 0 for none; None where it cannot be asked.

        Of a context that is there: making one would take hundreds of megabytes.
        """
        try:
            driver, runtime = self._load(DRIVER_MODULE), self._load(RUNTIME_MODULE)
            driver.cuInit(0)
            _, device = driver.cuDeviceGet(ORDINAL)
            _, _, is_active = driver.cuDevicePrimaryCtxGetState(device)
        except (ImportError, RuntimeError):  # not installed; no driver
            return None
        return int(runtime.cudaDeviceSynchronize()[0]) if is_active else 0
