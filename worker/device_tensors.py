"""Inputs that lie in GPU memory, for backends that take them there.

Owns nothing: a span keeps its region mapped. What is asked for in ordinary memory is copied then.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from naiad.worker.backends.base import DeviceSpan
from naiad.worker.device_regions import DeviceRegions
from naiad.worker.tensors import to_array

if TYPE_CHECKING:
    from naiad.worker.backends.base import Array


class DeviceInput:
    """An InputTensor whose bytes are copied to ordinary memory when they are first asked for."""

    __slots__ = ("_array", "_buffer", "_regions", "datatype", "name", "shape", "span")

    def __init__(
        self,
        name: str,
        datatype: str,
        shape: tuple[int, ...],
        span: DeviceSpan,
        regions: DeviceRegions,
    ) -> None:
        self.name = name
        self.datatype = datatype
        self.shape = shape
        self.span = span
        self._regions = regions
        self._buffer: memoryview | None = None
        self._array: Array | None = None

    def wait(self) -> None:
        """Until its owner's own work on it is done."""
        self._regions.wait_for(self.span)

    @property
    def buffer(self) -> memoryview:
        """Raises ModelError when CUDA cannot copy them, InstanceLost when the GPU is lost."""
        if self._buffer is None:
            self._buffer = self._regions.host_copy(self.span)
        return self._buffer

    def array(self) -> Array:
        """As worker.tensors.Input."""
        if self._array is None:
            self._array = to_array(self.datatype, self.shape, self.buffer)
        return self._array


class DeviceContent:
    """An output's bytes in GPU memory, on their way to a place there; len() is their size."""

    __slots__ = ("span",)

    def __init__(self, span: DeviceSpan) -> None:
        self.span = span

    def __len__(self) -> int:
        return self.span.size
