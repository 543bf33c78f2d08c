"""Which backends there are, and which of them this interpreter could import. Imports none itself.

Found by the entry point group `naiad.backends`, and by a table of naiad's own ones, so that a
checkout that was never installed works too. A backend of another distribution may not take a name
of this table.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from importlib.metadata import entry_points
from importlib.util import find_spec
from typing import Final, NamedTuple

from naiad.config.backends import (
    ENTRY_POINT_GROUP,
    TENSORRT_MODULES,
    tensorrt_imports,
)
from naiad.protocol.errors import Code, ModelError
from naiad.worker.backends.base import Backend


class BackendSource(NamedTuple):
    """`target` is "module:attribute"; `needs` are modules it cannot be imported without, and of
    `one_of` (where there are any) it needs one."""

    target: str
    needs: tuple[str, ...] = ()
    remedy: str = ""
    one_of: tuple[str, ...] = ()


BUILT_IN: Final[dict[str, BackendSource]] = {
    "identity": BackendSource("naiad.worker.backends.identity:IdentityBackend"),
    "onnxruntime": BackendSource(
        "naiad.worker.backends.onnxruntime:OnnxRuntimeBackend",
        ("numpy", "onnxruntime"),
        "pip install 'naiad[onnx]'",
    ),
    "python": BackendSource("naiad.worker.backends.python:PythonBackend", ("numpy",)),
    "tensorrt": BackendSource(
        "naiad.worker.backends.tensorrt.backend:TensorRTBackend",
        ("numpy", "cuda.bindings"),
        "pip install 'naiad[tensorrt]', or 'naiad[cuda,rtx]' for plans of TensorRT-RTX",
        one_of=(*TENSORRT_MODULES, *[tensorrt_imports(name)[1] for name in TENSORRT_MODULES]),
    ),
}


def known_backends() -> dict[str, BackendSource]:
    """Every backend by name, importable or not."""
    found = {
        point.name: BackendSource(point.value, (point.module.partition(".")[0],))
        for point in entry_points(group=ENTRY_POINT_GROUP)
    }
    return {**found, **BUILT_IN}


def importable_backends() -> tuple[str, ...]:
    """Names of the backends whose needs this interpreter has, sorted."""
    return tuple(sorted(name for name, source in known_backends().items() if not missing(source)))


def missing(source: BackendSource) -> list[str]:
    """The modules that a backend needs and this interpreter has not, in words."""
    modules = [*source.needs, source.target.partition(":")[0]]
    absent = [module for module in modules if not _exists(module)]
    if source.one_of and not any(_exists(module) for module in source.one_of):
        absent.append(f"one of {', '.join(source.one_of)}")
    return absent


def _exists(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except (ImportError, ValueError):
        return False


def find_backend(name: str) -> Callable[[], Backend]:
    """The backend's class, imported now.

    Raises ModelError(LOAD_FAILED) when there is none of that name or when it misses something;
    whatever its own import raises goes through.
    """
    known = known_backends()
    source = known.get(name)
    if source is None:
        raise ModelError(
            f"no backend {name!r}; this worker knows {', '.join(sorted(known))}. Set `backend` to "
            f"one of them, or install a package with an entry point in {ENTRY_POINT_GROUP!r}",
            code=Code.LOAD_FAILED,
        )
    absent = missing(source)
    if absent:
        remedy = f"; {source.remedy}" if source.remedy else ""
        raise ModelError(
            f"backend {name!r} needs {', '.join(absent)}, which this worker's Python does not "
            f"have{remedy}",
            code=Code.LOAD_FAILED,
        )
    module, _, attribute = source.target.partition(":")
    factory: Callable[[], Backend] = getattr(import_module(module), attribute)
    return factory
