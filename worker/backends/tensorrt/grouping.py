"""Which requests of a batch are executed together, and in which profile.

Requests whose shapes agree are joined, and with shape tensors those whose values agree too, but for
the first one: it is the batch, and the sum of it when requests are joined. Reads no bytes but those
of shape tensors.
"""

from __future__ import annotations

from collections.abc import Sequence

from naiad.config.model import ModelConfig
from naiad.protocol.errors import NaiadError, RequestError
from naiad.worker.backends.base import InputTensor, ModelRequest
from naiad.worker.backends.tensorrt.data_path import DataPath
from naiad.worker.backends.tensorrt.engine import Binding
from naiad.worker.backends.tensorrt.pipeline import Piece
from naiad.worker.backends.tensorrt.profiles import Profile, Shape, chosen


class Grouping:
    """Of one instance; `paths` belong to the `profiles`, and may be filled in later."""

    def __init__(
        self,
        config: ModelConfig,
        bindings: Sequence[Binding],
        profiles: Sequence[Profile],
        paths: Sequence[DataPath],
        instance_name: str,
    ) -> None:
        self._profiles = profiles
        self._paths = paths
        self._instance_name = instance_name
        self._batches = config.max_batch_size > 0
        self._shapes_differ = any(-1 in tensor.model_dims for tensor in config.inputs)
        inputs = [binding for binding in bindings if binding.is_input]
        self._inputs = [binding.name for binding in inputs if not binding.is_host]
        self._shape_tensors = [binding.name for binding in inputs if binding.is_host]
        scalars = {b.name for b in bindings if b.dims == ()}
        self.scalars = frozenset(
            tensor.name
            for tensor in (*config.inputs, *config.outputs)
            if tensor.name in scalars and tensor.model_dims == (1,)
        )
        """Tensors without dimensions, of which there are none with batches: a config cannot say so,
        its dims are [1]."""

    def pieces(self, batch: Sequence[ModelRequest]) -> list[Piece]:
        """Each is executed on its own, those with a `fault` not at all."""
        return [self._piece(group, [batch[i] for i in group]) for group in self._groups(batch)]

    def _groups(self, batch: Sequence[ModelRequest]) -> list[list[int]]:
        """Indexes of requests that can be joined; without batching each is alone."""
        if not self._batches:
            return [[index] for index in range(len(batch))]
        if not (self._shapes_differ or self._shape_tensors):
            return [list(range(len(batch)))]
        groups: dict[object, list[int]] = {}
        for index, request in enumerate(batch):
            shapes = tuple(request.inputs[name].shape[1:] for name in self._inputs)
            values = tuple(_values(request.inputs[name]) for name in self._shape_tensors)
            key: object = shapes, tuple(own[1:] for own in values)
            if any(own[:1] != (self._rows(request),) for own in values):
                key = index  # it is refused, and alone
            groups.setdefault(key, []).append(index)
        return list(groups.values())

    def _rows(self, request: ModelRequest) -> int:
        return request.inputs[self._inputs[0]].shape[0]

    def _piece(self, indexes: Sequence[int], requests: Sequence[ModelRequest]) -> Piece:
        first = requests[0].inputs
        names = (*self._inputs, *self._shape_tensors)
        shapes: dict[str, Shape] = {name: first[name].shape for name in names}
        values = {name: _values(first[name]) for name in self._shape_tensors}
        rows = None
        try:
            if self._batches:
                rows = [self._rows(request) for request in requests]
                for name, own in values.items():
                    _check_batch(name, own, rows[0])
                    values[name] = (sum(rows), *own[1:])
                for name in self._inputs:
                    shapes[name] = (sum(rows), *shapes[name][1:])
            for name in self.scalars & shapes.keys():
                shapes[name] = ()
            position = chosen(self._profiles, shapes, values, self._instance_name)
        except NaiadError as fault:
            return Piece(indexes, requests, rows, shapes, None, fault)
        return Piece(indexes, requests, rows, shapes, self._paths[position])


def _values(tensor: InputTensor) -> tuple[int, ...]:
    return tuple(tensor.array().ravel().tolist())


def _check_batch(name: str, values: tuple[int, ...], rows: int) -> None:
    if values[:1] != (rows,):
        raise RequestError(
            f"input '{name}': expected the batch of {rows} as the first value of a shape tensor, "
            f"got {list(values)}"
        )
