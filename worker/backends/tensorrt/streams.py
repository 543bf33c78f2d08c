"""What the device does in order: one stream each for copies in, execution and copies out.

Streams wait for each other by events on the device, and this process for events by looking at them,
asleep in between (or not, by the model's config). Nothing here waits for the device as a whole.
Owns streams, events and captured graphs; knows nothing of engines.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from contextlib import suppress
from time import monotonic, sleep
from typing import Any, Final

from naiad.protocol.errors import ModelError
from naiad.worker.backends.base import InstanceLost
from naiad.worker.backends.tensorrt.cuda import Cuda

POLL_SECONDS_MIN: Final = 5e-6
POLL_SECONDS_MAX: Final = 50e-6
"""The pause between two looks at an event: an eighth of the time waited so far, within these. So
the end of a batch is seen at most this much (and the kernel's wake-up) late."""
POLL_SHARE: Final = 1 / 8
TIMER_SLACK_NS: Final = 1000
"""The kernel rounds sleeps up by 50 µs if nobody says otherwise."""

PRIORITIES: Final = ("PRIORITY_DEFAULT", "PRIORITY_MAX", "PRIORITY_MIN")
"""optimization.priority in a model's config."""

_SUCCESS: Final = 0
_NOT_READY: Final = 600
_PR_SET_TIMERSLACK: Final = 29


class Streams:
    """The three streams of one instance. `is_spinning`: wait for events without sleeping."""

    def __init__(
        self, cuda: Cuda, *, priority: str = PRIORITIES[0], is_spinning: bool = False
    ) -> None:
        self.cuda = cuda
        self._api = api = cuda.api
        self._is_spinning = is_spinning
        self._priority = self._priority_number(priority)
        self._execution = self._new_stream()
        self._in = self._new_stream()
        self._out = self._new_stream()
        self.execution = int(self._execution)
        """As TensorRT takes it."""
        self._done = self.new_event()
        self._to_device = api.cudaMemcpyKind.cudaMemcpyHostToDevice
        self._to_host = api.cudaMemcpyKind.cudaMemcpyDeviceToHost
        self._on_device = api.cudaMemcpyKind.cudaMemcpyDeviceToDevice
        ctypes.CDLL(None).prctl(_PR_SET_TIMERSLACK, TIMER_SLACK_NS, 0, 0, 0)

    def _priority_number(self, priority: str) -> int:
        if priority == PRIORITIES[0]:
            return 0
        least, greatest = self.cuda.call("cudaDeviceGetStreamPriorityRange")
        return int(greatest if priority == "PRIORITY_MAX" else least)

    def _new_stream(self) -> Any:
        flags = self._api.cudaStreamNonBlocking
        return self.cuda.call("cudaStreamCreateWithPriority", flags, self._priority)

    def new_event(self) -> Any:
        """An event that has not been recorded counts as reached."""
        return self.cuda.call("cudaEventCreateWithFlags", self._api.cudaEventDisableTiming)

    def new_clock(self) -> Any:
        """An event that remembers when it was reached."""
        return self.cuda.call("cudaEventCreateWithFlags", self._api.cudaEventDefault)

    def between_ns(self, first: Any, second: Any) -> int:
        """The time between two clocks that were both reached."""
        return int(self.cuda.call("cudaEventElapsedTime", first, second) * 1e6)

    def drop_event(self, event: Any) -> None:
        self.cuda.call("cudaEventDestroy", event)

    # --- In order ------------------------------------------------------------------------------

    def copy_in(self, device: int, host: int, size: int) -> None:
        """On the stream of copies in. From pageable memory the bytes are taken before it returns,
        from other memory later: it must stay as it is until then."""
        error = self._api.cudaMemcpyAsync(device, host, size, self._to_device, self._in)[0]
        if error != _SUCCESS:
            self.cuda.check(f"copying {size} bytes to the GPU", error)

    def copy_out(self, host: int, device: int, size: int) -> None:
        """On the stream of copies out. The memory must live until that is done."""
        error = self._api.cudaMemcpyAsync(host, device, size, self._to_host, self._out)[0]
        if error != _SUCCESS:
            self.cuda.check(f"copying {size} bytes from the GPU", error)

    def copy_in_on_device(self, target: int, source: int, size: int) -> None:
        """From a client's device memory, on the stream of copies in."""
        self._copy_on_device(target, source, size, self._in)

    def copy_out_on_device(self, target: int, source: int, size: int) -> None:
        """To a client's device memory, on the stream of copies out."""
        self._copy_on_device(target, source, size, self._out)

    def _copy_on_device(self, target: int, source: int, size: int, stream: Any) -> None:
        error = self._api.cudaMemcpyAsync(target, source, size, self._on_device, stream)[0]
        if error != _SUCCESS:
            self.cuda.check(f"copying {size} bytes within GPU memory", error)

    def mark_copied_in(self, event: Any) -> None:
        """`event` is reached when all copies in so far are done."""
        self.cuda.call("cudaEventRecord", event, self._in)

    def mark_executed(self, event: Any) -> None:
        self.cuda.call("cudaEventRecord", event, self._execution)

    def mark_copied_out(self, event: Any) -> None:
        self.cuda.call("cudaEventRecord", event, self._out)

    def execute_after(self, event: Any) -> None:
        """What is executed from now on waits, on the device, until the event is reached."""
        self.cuda.call("cudaStreamWaitEvent", self._execution, event, 0)

    def copy_in_after(self, event: Any) -> None:
        self.cuda.call("cudaStreamWaitEvent", self._in, event, 0)

    def copy_out_after(self, event: Any) -> None:
        self.cuda.call("cudaStreamWaitEvent", self._out, event, 0)

    # --- Waiting -------------------------------------------------------------------------------

    def wait(self, event: Any, meanwhile: Callable[[], None] | None = None) -> None:
        """Until the event is reached; `meanwhile` is called between the looks at it.

        Raises ModelError or InstanceLost with what went wrong on the device so far.
        """
        query = self._api.cudaEventQuery
        started = monotonic()
        error = query(event)[0]
        if error == _NOT_READY:
            while error == _NOT_READY:
                if meanwhile is not None:
                    meanwhile()
                if not self._is_spinning:
                    self._pause(started)
                error = query(event)[0]
            self._api.cudaGetLastError()  # "not ready" stays there, and TensorRT would find it
        self.cuda.check("running the batch", error)

    def _pause(self, started: float) -> None:
        waited = (monotonic() - started) * POLL_SHARE
        sleep(min(max(waited, POLL_SECONDS_MIN), POLL_SECONDS_MAX))

    def finish(self) -> None:
        """Until everything given to the three streams so far is done."""
        for stream in (self._in, self._execution, self._out):
            self.cuda.call("cudaEventRecord", self._done, stream)
            self.wait(self._done)

    # --- Graphs --------------------------------------------------------------------------------

    def capture(self, work: Callable[[], None]) -> Any:
        """A graph of what `work` gives to the execution stream, which is not executed.

        Raises what `work` raises, and ModelError when CUDA cannot capture it.
        """
        mode = self._api.cudaStreamCaptureMode.cudaStreamCaptureModeThreadLocal
        self.cuda.call("cudaStreamBeginCapture", self._execution, mode)
        try:
            work()
        except (Exception, InstanceLost):
            with suppress(ModelError):  # the capture is broken: that is all it would say
                self._drop(self.cuda.call("cudaStreamEndCapture", self._execution))
            raise
        graph = self.cuda.call("cudaStreamEndCapture", self._execution)
        try:
            found = self.cuda.call("cudaGraphInstantiate", graph, 0)
        except ModelError:
            self._drop(graph)
            raise
        try:
            self._drop(graph)
            self.cuda.call("cudaGraphUpload", found, self._execution)
        except ModelError:
            self.drop_graph(found)
            raise
        return found

    def _drop(self, graph: Any) -> None:
        self.cuda.call("cudaGraphDestroy", graph)

    def launch(self, graph: Any) -> None:
        """Execute what was captured."""
        error = self._api.cudaGraphLaunch(graph, self._execution)[0]
        if error != _SUCCESS:
            self.cuda.check("launching a graph", error)

    def drop_graph(self, graph: Any) -> None:
        self.cuda.call("cudaGraphExecDestroy", graph)

    def close(self) -> None:
        self.drop_event(self._done)
        for stream in (self._in, self._execution, self._out):
            self.cuda.call("cudaStreamDestroy", stream)
