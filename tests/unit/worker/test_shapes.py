"""Reshape: the same elements under two shapes, -1 carried over in order."""

import pytest

from naiad.worker.shapes import fits, reshaped


@pytest.mark.parametrize(
    ("shape", "source", "target", "result"),
    [
        ((1,), (1,), (), ()),
        ((), (), (1,), (1,)),
        ((2, 6), (2, 6), (12,), (12,)),
        ((5, 4), (-1, 4), (-1, 2, 2), (5, 2, 2)),
        ((3, 2, 5), (-1, 2, -1), (-1, 1, 2, -1), (3, 1, 2, 5)),
        ((0, 4), (-1, 4), (-1, 2, 2), (0, 2, 2)),
    ],
)
def test_reshaped(
    shape: tuple[int, ...],
    source: tuple[int, ...],
    target: tuple[int, ...],
    result: tuple[int, ...],
) -> None:
    assert reshaped(shape, source, target) == result


def test_fits() -> None:
    assert fits((2, 3), (-1, 3))
    assert not fits((2, 3), (-1, 4))
    assert not fits((2, 3), (-1,))
    assert fits((), ())
