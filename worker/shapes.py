"""Shapes as clients send them (dims) and as the model sees them (reshape). Pure."""

from __future__ import annotations

from naiad.config.model import ModelConfig, TensorConfig

Shape = tuple[int, ...]


def fits(shape: Shape, dims: Shape) -> bool:
    """Whether a shape matches dims, where -1 is any size."""
    return len(shape) == len(dims) and all(
        want in (-1, size) for size, want in zip(shape, dims, strict=True)
    )


def reshaped(shape: Shape, source: Shape, target: Shape) -> Shape:
    """`shape`, which fits `source`, with the dimensions of `target`.

    The sizes that -1 stands for are carried over in order: a config is only valid when source and
    target have as many of them, with equal products between.
    """
    free = iter([size for size, want in zip(shape, source, strict=True) if want == -1])
    return tuple([next(free) if want == -1 else want for want in target])


class InputReshapes:
    """The inputs of a model that it sees with other dimensions than clients send."""

    def __init__(self, config: ModelConfig) -> None:
        self._lead = 1 if config.max_batch_size > 0 else 0
        self._by_name: dict[str, TensorConfig] = {
            tensor.name: tensor for tensor in config.inputs if tensor.reshape is not None
        }
        self.names = frozenset(self._by_name)

    def model_shape(self, name: str, shape: Shape) -> Shape:
        """The shape the model sees for an input of `names`, batch dimension included."""
        tensor = self._by_name[name]
        lead, rest = shape[: self._lead], shape[self._lead :]
        return lead + reshaped(rest, tensor.dims, tensor.model_dims)
