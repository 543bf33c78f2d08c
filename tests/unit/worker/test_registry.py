"""Backends are found by name, and what they miss is said before anything is imported."""

import pytest

from naiad.protocol.errors import Code, ModelError
from naiad.worker.backends import registry
from naiad.worker.backends.registry import (
    BackendSource,
    find_backend,
    importable_backends,
    known_backends,
    missing,
)


def test_naiads_own_backends_are_known_without_an_installation() -> None:
    assert {"identity", "onnxruntime", "python"} <= known_backends().keys()
    assert {"identity", "python"} <= set(importable_backends())


def test_identity_is_found() -> None:
    backend = find_backend("identity")()
    assert hasattr(backend, "execute")


def test_an_unknown_backend_names_the_known_ones() -> None:
    with pytest.raises(ModelError, match=r"no backend 'tenserrt'; .*identity.*python") as caught:
        find_backend("tenserrt")
    assert caught.value.code is Code.LOAD_FAILED


def test_missing_modules_are_named_with_the_way_out(monkeypatch: pytest.MonkeyPatch) -> None:
    source = BackendSource("naiad.worker.backends.identity:X", ("no_such_engine",), "pip install x")
    monkeypatch.setitem(registry.BUILT_IN, "engine", source)
    assert missing(source) == ["no_such_engine"]
    assert "engine" not in importable_backends()
    with pytest.raises(ModelError, match=r"'engine' needs no_such_engine.*pip install x"):
        find_backend("engine")
