"""Sizes and names of the datatypes agree with each other and with NumPy."""

from __future__ import annotations

import numpy as np
import pytest

from naiad.protocol.datatypes import (
    CONFIG_NAME,
    FROM_CONFIG,
    ITEM_BYTES,
    NUMPY_NAME,
    element_count,
    tensor_bytes,
)
from naiad.protocol.endpoints import Endpoints, path_fault


@pytest.mark.parametrize("name", sorted(NUMPY_NAME))
def test_item_sizes_are_numpys(name: str) -> None:
    assert np.dtype(NUMPY_NAME[name]).itemsize == ITEM_BYTES[name]


def test_the_config_spells_bytes_as_string() -> None:
    assert CONFIG_NAME["BYTES"] == "TYPE_STRING"
    assert FROM_CONFIG["TYPE_FP32"] == "FP32"
    assert set(CONFIG_NAME) == set(ITEM_BYTES)
    assert len(FROM_CONFIG) == len(CONFIG_NAME)


@pytest.mark.parametrize(
    ("datatype", "shape", "size"),
    [
        ("FP32", (1, 16), 64),
        ("BF16", (3,), 6),
        ("INT64", (), 8),
        ("BOOL", (2, 0), 0),
        ("BYTES", (4,), None),
        ("FP64", (2**40, 2**40), 2**83),
    ],
)
def test_packed_sizes_do_not_overflow(
    datatype: str, shape: tuple[int, ...], size: int | None
) -> None:
    assert tensor_bytes(datatype, shape) == size


def test_a_scalar_is_one_element() -> None:
    assert element_count(()) == 1


def test_a_run_directory_that_no_socket_fits_in_is_named() -> None:
    assert path_fault("/run/naiad") is None
    fault = path_fault("/" + "x" * 100)
    assert fault is not None
    assert "107 bytes" in fault
    assert "--run-dir" in fault


def test_paths_of_a_server_lie_in_its_run_directory() -> None:
    ends = Endpoints("/run/n")
    assert ends.clients == "ipc:///run/n/clients.sock"
    assert ends.page_path("cpu-0") == "/run/n/slots/cpu-0.page"
    assert ends.stack_path("cpu-0") == "/run/n/slots/cpu-0.stack"
