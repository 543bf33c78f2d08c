"""Names of models and of files inside them."""

from __future__ import annotations

import pytest

from naiad.config.names import inner_path_fault, model_name_fault, printable


@pytest.mark.parametrize("name", ["m", "...", "..m", "m..1", "a b", "Modèle", "m.onnx", "-x"])
def test_good_names(name: str) -> None:
    assert model_name_fault(name) is None


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("", "Model name cannot be empty"),
        (" \t", "Model name cannot be empty"),
        ("..", "must not contain path traversal characters"),
        (" ..", "must not contain path traversal characters"),
        (".", "must not contain path traversal characters"),
        ("model/", "must not contain path traversal characters"),
        ("../secret", "must not contain path traversal characters"),
        ("a\nb", "must not contain control characters"),
        ("a\0b", "must not contain control characters"),
        ("m\udcff", "is not UTF-8"),
        ("x" * 256, "longer than 255"),
        ("é" * 128, "longer than 255"),
    ],
)
def test_b60_bad_names(name: str, text: str) -> None:
    fault = model_name_fault(name)

    assert fault is not None
    assert text in fault
    assert fault.isprintable()


@pytest.mark.parametrize(
    ("path", "is_good"),
    [
        ("labels.txt", True),
        ("a/b..c", True),
        ("", False),
        ("/etc/passwd", False),
        ("../x", False),
        ("a/../../x", False),
        ("a\nb", False),
    ],
)
def test_inner_paths(path: str, is_good: bool) -> None:
    assert (inner_path_fault(path) is None) is is_good


def test_printable_escapes_and_cuts() -> None:
    assert printable("a\x1b\udcff") == r"'a\x1b\\udcff'"
    assert len(printable("x" * 10_000)) < 300
