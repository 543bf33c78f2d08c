"""CUDA graphs of one data path: captured when the model is loaded, launched instead of executing.

A graph replays one execution of certain shapes in a certain set of buffers, at the addresses that
these had: when one of them moves, the graphs of the set end. Owns what was captured; which is to be
captured is graph_specs.py's, and capturing the data path's business.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, NamedTuple

from naiad.worker.backends.tensorrt.graph_specs import GraphSpec
from naiad.worker.backends.tensorrt.memory import BufferSet
from naiad.worker.backends.tensorrt.profiles import Shape
from naiad.worker.backends.tensorrt.streams import Streams

_log = logging.getLogger(__name__)

Key = tuple[int, tuple[tuple[str, Shape], ...]]


class CapturedGraph(NamedTuple):
    """One executable graph, for the shapes of its `spec`."""

    spec: GraphSpec
    graph: Any
    outputs: dict[str, Shape]
    """Their whole shapes."""


class CapturedGraphs:
    """Finds the graph for a batch; drops those whose buffers have moved."""

    def __init__(self, streams: Streams) -> None:
        self._streams = streams
        self._exact: dict[Key, CapturedGraph] = {}
        self._padding: dict[int, list[CapturedGraph]] = {}
        """Those that serve smaller batches as well, by set, the smallest first."""
        self._moves: dict[int, int] = {}
        """Of each set, how often its buffers had moved when its graphs were captured."""

    def __len__(self) -> int:
        return len(self._exact)

    def add(self, buffers: BufferSet, captured: CapturedGraph) -> None:
        self._drop_moved(buffers)
        key = _key(buffers, captured.spec.shapes)
        if key in self._exact:  # the config has it twice
            self._streams.drop_graph(captured.graph)
            return
        self._exact[key] = captured
        if captured.spec.rows_least < captured.spec.rows:
            padding = self._padding.setdefault(id(buffers), [])
            padding.append(captured)
            padding.sort(key=lambda one: one.spec.rows)

    def find(
        self, buffers: BufferSet, shapes: Mapping[str, Shape], rows: int
    ) -> CapturedGraph | None:
        """One of exactly these shapes, else the smallest whose bounds admit so few rows (0: of a
        model that does not batch)."""
        if not self._exact:
            return None
        self._drop_moved(buffers)
        exact = self._exact.get(_key(buffers, shapes))
        if exact is not None:
            return exact
        for one in self._padding.get(id(buffers), ()):
            spec = one.spec
            if spec.rows_least <= rows < spec.rows and all(
                spec.shapes[name][1:] == shape[1:] for name, shape in shapes.items()
            ):
                return one
        return None

    def _drop_moved(self, buffers: BufferSet) -> None:
        """Drop what was captured in this set before one of its buffers moved."""
        moves = buffers.device.moves
        if self._moves.setdefault(id(buffers), moves) == moves:
            return
        self._moves[id(buffers)] = moves
        self._padding.pop(id(buffers), None)
        gone = [key for key in self._exact if key[0] == id(buffers)]
        if gone:
            _log.warning(
                "%d CUDA graphs are dropped, such batches run without: an output needed more than "
                "the engine said at the load, and its buffer moved",
                len(gone),
            )
        for key in gone:
            self._streams.drop_graph(self._exact.pop(key).graph)

    def close(self) -> None:
        self._padding.clear()
        while self._exact:
            self._streams.drop_graph(self._exact.popitem()[1].graph)


def _key(buffers: BufferSet, shapes: Mapping[str, Shape]) -> Key:
    return id(buffers), tuple(sorted(shapes.items()))
