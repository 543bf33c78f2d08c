"""What the tests of backends share."""

from collections.abc import Iterator

import pytest

from support import fake_cudart


@pytest.fixture
def gpu() -> Iterator[fake_cudart.Device]:
    """A fake GPU, fresh for each test of the TensorRT backend."""
    device = fake_cudart.reset()
    yield device
    device.close()
