"""The order of batches on one instance's device: while one is executed, the next is brought there.

Two sets of buffers, so two flights at most: one executed or copied out, one staged or executed
after it. A flight is launched ahead of its turn when the one before has been executed, while that
one's results are copied out; its own results go nowhere before its turn. Whatever is raised,
nothing is under way then: the memory that it was to read and write is its owners' again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

from naiad.protocol.errors import ModelError
from naiad.worker.backends.base import InstanceLost, ModelRequest, ModelResponse
from naiad.worker.backends.tensorrt.data_path import DataPath
from naiad.worker.backends.tensorrt.flight import Flight
from naiad.worker.backends.tensorrt.memory import BufferSet
from naiad.worker.backends.tensorrt.profiles import Shape
from naiad.worker.backends.tensorrt.streams import Streams


@dataclass(eq=False, slots=True)
class Piece:
    """Requests of a batch that are executed together. Without `path` there is a `fault`."""

    indexes: Sequence[int]
    requests: Sequence[ModelRequest]
    rows: Sequence[int] | None
    shapes: dict[str, Shape]
    path: DataPath | None
    fault: Exception | None = None
    flight: Flight | None = None


class Pipeline:
    """All calls on one thread."""

    def __init__(
        self,
        streams: Streams,
        sets: Sequence[BufferSet],
        marked: Callable[[str], AbstractContextManager[object]] = nullcontext,
    ) -> None:
        """`marked` makes ranges for a profiler out of names."""
        self._marked = marked
        self._streams = streams
        self._sets = sets
        self._next: Piece | None = None
        self.copied_in_ns = 0
        """Summed over all pieces: what execution waited for copies in."""

    @property
    def can_stage(self) -> bool:
        """Whether there is room for one more piece beside the one that is executed."""
        return self._next is None and any(not one.is_taken for one in self._sets)

    def stage(self, piece: Piece) -> None:
        """Bring the piece that is run next to the device; its faults wait for its turn."""
        self._next = piece
        self._bring(piece)

    def drop(self) -> None:
        """What was staged is not run after all."""
        if self._next is not None:
            self._reset()

    def run(
        self,
        piece: Piece,
        meanwhile: Callable[[], None] | None = None,
        ahead: Callable[[], bool] | None = None,
    ) -> list[ModelResponse]:
        """The responses of a piece, that was staged or not.

        While it is executed, `meanwhile` is called again and again, and may stage the next one;
        `ahead` is asked before that is launched.
        """
        if self._next is not None and self._next is not piece:
            self._reset()
        self._next = None
        is_staged = piece.flight is not None
        try:
            self._bring(piece)
            self._launch(piece, in_turn=True)
            if piece.fault is not None:
                raise piece.fault
            path, flight = piece.path, piece.flight
            assert path is not None
            assert flight is not None
            with self._marked("execute"):
                path.copy_out_early(flight)
                if meanwhile is not None:
                    meanwhile()
                path.wait_executed(flight, meanwhile)
            if not is_staged:
                buffers = flight.buffers
                self.copied_in_ns += self._streams.between_ns(buffers.begun, buffers.copied_in)
            if self._next is not None and (ahead is None or ahead()):
                self._launch(self._next, in_turn=False)
            with self._marked("copy out"):
                responses = path.responses(flight)
        except Exception:
            self._reset()
            raise
        flight.buffers.is_taken = False
        return responses

    def _bring(self, piece: Piece) -> None:
        if piece.path is None or piece.flight is not None or piece.fault is not None:
            return
        buffers = next(one for one in self._sets if not one.is_taken)
        try:
            with self._marked("copy in"):
                piece.flight = piece.path.stage(piece.requests, piece.rows, piece.shapes, buffers)
            buffers.is_taken = True
        except Exception as fault:
            piece.fault = fault

    def _launch(self, piece: Piece, *, in_turn: bool) -> None:
        if piece.path is None or piece.flight is None or piece.flight.is_launched:
            return
        try:
            with self._marked("launch"):
                piece.path.launch(piece.flight, in_turn=in_turn)
        except Exception as fault:
            piece.fault = fault

    def _reset(self) -> None:
        """Wait for all that is under way, and forget it. InstanceLost where nobody can tell when
        it ends: memory that is others' by then may be written at any time."""
        try:
            self._streams.finish()
        except ModelError as fault:
            text = f"{fault.message}; and what is under way cannot be waited for"
            raise InstanceLost(text) from fault
        for one in self._sets:
            one.is_taken = False
        if self._next is not None:
            self._next.flight = None
            self._next = None
