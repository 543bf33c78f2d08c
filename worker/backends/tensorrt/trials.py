"""Trial runs with zeros when a model is loaded: what the first requests would pay, and graphs.

What fails here is a warning: zeros do not suit every model, and graphs only save time.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from naiad.worker.backends.base import ModelRequest
from naiad.worker.backends.tensorrt.data_path import DataPath
from naiad.worker.backends.tensorrt.engine import Binding
from naiad.worker.backends.tensorrt.graph_specs import GraphSpec
from naiad.worker.backends.tensorrt.memory import BufferSet
from naiad.worker.backends.tensorrt.pipeline import Piece, Pipeline
from naiad.worker.backends.tensorrt.profiles import Profile, Shape
from naiad.worker.backends.tensorrt.streams import Streams

_log = logging.getLogger(__name__)


class _Zeros(NamedTuple):
    """An input: of an InputTensor, what a data path reads."""

    shape: Shape
    buffer: memoryview


class Trials:
    """Of one instance; `inputs` are its engine's."""

    def __init__(
        self, instance_name: str, inputs: Mapping[str, Binding], outputs: Sequence[str]
    ) -> None:
        self._instance_name = instance_name
        self._inputs = inputs
        self._outputs = tuple(outputs)

    def run(self, path: DataPath, pipeline: Pipeline) -> None:
        """One run in the shapes that the path's profile is best at."""
        shapes = {name: found.best for name, found in path.profile.shapes.items()}
        piece = Piece((0,), [self._request(path.profile, shapes)], None, shapes, path)
        try:
            pipeline.run(piece)
        except Exception as error:
            number = path.profile.index
            _log.warning("%s: no warm-up in profile %d: %s", self._instance_name, number, error)

    def capture(
        self,
        specs: Sequence[GraphSpec],
        paths: Sequence[DataPath],
        sets: Sequence[BufferSet],
        streams: Streams,
    ) -> None:
        """A graph of each spec, in each profile that admits it and each set of buffers.

        The first that fails ends it with one warning; what was captured before stays.
        """
        for spec in specs:
            for path in paths:
                if path.profile.misfit(spec.shapes, {}) is not None:
                    continue
                request = self._request(path.profile, spec.shapes)
                for one in sets:
                    try:
                        path.capture(spec, request, one)
                    except Exception as error:
                        streams.finish()
                        self._warn(spec, str(error))
                        return

    def _warn(self, spec: GraphSpec, reason: str) -> None:
        shapes = ", ".join(f"{name} {list(shape)}" for name, shape in spec.shapes.items())
        _log.warning(
            "%s: no CUDA graph for %s, and none of those after it; such batches run without: %s",
            self._instance_name,
            shapes,
            reason,
        )

    def _request(self, profile: Profile, shapes: Mapping[str, Shape]) -> ModelRequest:
        inputs: dict[str, Any] = {}
        for name, shape in shapes.items():
            content = np.zeros(self._inputs[name].size_bytes(shape), np.uint8)
            best = profile.values.get(name)
            if best is not None:
                dtype = "int64" if self._inputs[name].datatype == "INT64" else "int32"
                content = np.array(best.best, dtype).view(np.uint8)
            inputs[name] = _Zeros(shape, content.data)
        return ModelRequest("", inputs, self._outputs)
