"""Whether a GPU still works for this process, asked when a model's error speaks of CUDA.

After some errors (an illegal access, a failed assertion, ...) CUDA answers every later call with
the same one: whatever engine runs in the process, it can do nothing more and must end. Engines tell
it in words, CUDA's own; but a model may quote words that came in a request, so the driver itself is
asked before they are believed: the library that the engine has loaded, whatever else is installed.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from typing import Any, Final

from naiad.shm.cuda.errors import STICKY_WORDS
from naiad.worker.backends.base import InstanceLost
from naiad.worker.device import ORDINAL

MENTION: Final = "cuda"
DRIVER_LIBRARY: Final = "libcuda.so.1"


def loaded_driver() -> Any:
    """CUDA's driver, if anything in this process uses it; else None."""
    try:
        return ctypes.CDLL(DRIVER_LIBRARY, mode=os.RTLD_NOLOAD | os.RTLD_NOW)
    except OSError:
        return None


class GpuHealth:
    """Of the one GPU of a worker. `load` is for tests, which have no driver."""

    def __init__(self, model: str, uuid: str, load: Callable[[], Any] = loaded_driver) -> None:
        self._model = model
        self._uuid = uuid
        self._load = load

    def check(self, text: str) -> None:
        """Raises InstanceLost where an error of this text has ended all use of the GPU here."""
        if MENTION not in text.casefold():
            return
        if not any(words in text for words in STICKY_WORDS.values()):
            return
        code = self._asked()
        if code == 0:  # somebody's words alone
            return
        words = STICKY_WORDS.get(code, "no words for it")
        raise InstanceLost(
            f"model {self._model!r} on {self._uuid}: CUDA error {code} ({words}); nothing more can "
            "run in this process"
        )

    def _asked(self) -> int:
        """The error that CUDA answers with now; 0 for none, also where nobody uses it.

        Of a context that is there: making one would take hundreds of megabytes.
        """
        cuda = self._load()
        if cuda is None:
            return 0
        device, flags, is_active = ctypes.c_int(), ctypes.c_uint(), ctypes.c_int()
        error: int = (
            cuda.cuInit(0)
            or cuda.cuDeviceGet(ctypes.byref(device), ORDINAL)
            or cuda.cuDevicePrimaryCtxGetState(device, ctypes.byref(flags), ctypes.byref(is_active))
        )
        return _synchronized(cuda, device) if is_active.value and not error else error


def _synchronized(cuda: Any, device: ctypes.c_int) -> int:
    """What the device's own context says of all that it was given."""
    context = ctypes.c_void_p()
    error: int = cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), device)
    if error:
        return error
    try:
        error = cuda.cuCtxPushCurrent_v2(context)
        if not error:
            error = cuda.cuCtxSynchronize()
            cuda.cuCtxPopCurrent_v2(ctypes.byref(context))
        return error
    finally:
        cuda.cuDevicePrimaryCtxRelease_v2(device)
