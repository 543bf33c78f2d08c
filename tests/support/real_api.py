"""What the real packages of NVIDIA say of their own functions, and what naiad's sources use of it.

Neither needs a GPU: cuda.bindings documents what each function returns behind its error, compiled
classes have their signatures in the first lines of their texts, and uses are read from the sources.
"""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import naiad

SOURCES = Path(naiad.__file__).parent


def files(*components: str) -> list[Path]:
    """The sources of these components of naiad, whose folders are links; without any, of all."""
    found = components or tuple(one.name for one in SOURCES.iterdir() if one.is_dir())
    return [path for name in sorted(found) for path in sorted((SOURCES / name).rglob("*.py"))]


# --- cuda.bindings -----------------------------------------------------------------------------


def documented(function: Any) -> list[tuple[str, str]]:
    """(name, type) of each value that a function of cuda.bindings returns behind its error."""
    text: str = function.__doc__
    part = re.search(r"^ *Returns\n *-------\n(.*?)(?:\n\n|\Z)", text, re.DOTALL | re.MULTILINE)
    assert part, f"{function} does not say what it returns"
    error, *values = re.findall(r"^(\S+)(?: : (.*))?$", textwrap.dedent(part[1]), re.MULTILINE)
    assert error[0].partition(".")[0] in ("cudaError_t", "CUresult", "nvrtcResult"), error
    return [(name, kind) for name, kind in values]


def lengths(function: Any) -> set[int]:
    """Of the tuples that the `return`s of a function of Python's write out."""
    tree = ast.parse(inspect.cleandoc("\n" + inspect.getsource(function)))
    found = [node.value for node in ast.walk(tree) if isinstance(node, ast.Return)]
    return {len(value.elts) for value in found if isinstance(value, ast.Tuple)}


def named(paths: Iterable[Path], prefix: str) -> dict[str, str]:
    """Names such as `cudaMalloc` in the sources, as attributes or whole texts, and where."""
    found = {}
    for path in paths:
        text = path.read_text()
        if not re.search(rf"\b{prefix}[A-Z]", text):
            continue
        for node in ast.walk(ast.parse(text)):
            name = ""
            if isinstance(node, ast.Attribute):
                name = node.attr
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                name = node.value
            if re.fullmatch(rf"{prefix}[A-Z]\w*", name):
                found[name] = f"{path.name}:{getattr(node, 'lineno', 0)}"
    return found


def owner_of(module: ModuleType | Any, name: str, enumerations: Iterable[str]) -> Any:
    """The module, or that one of its enumerations, which has this name; None if none does."""
    owners = [module, *(getattr(module, one, None) for one in enumerations)]
    return next((owner for owner in owners if hasattr(owner, name)), None)


# --- TensorRT ----------------------------------------------------------------------------------


def returned(method: Any) -> str:
    """The type that a compiled method, or a property, says it returns; without modules."""
    described: Any = method.fget if isinstance(method, property) else method
    text: str = described.__doc__
    kinds = {kind.strip() for kind in re.findall(r"\) -> (.*)$", text, re.MULTILINE)}
    assert len(kinds) == 1, text
    return re.sub(r"[\w.]+\.(\w+)", r"\1", kinds.pop()).replace("nvinfer1::", "")


class Use(NamedTuple):
    """An attribute that the sources use of something."""

    owner: str
    name: str
    where: str


def uses(paths: Iterable[Path], owners: Mapping[str, str]) -> list[Use]:
    """Attributes of the expressions in `owners`, which says what each of these is."""
    found = []
    for path in paths:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Attribute):
                owner = owners.get(ast.unparse(node.value))
                if owner is not None:
                    found.append(Use(owner, node.attr, f"{path.name}:{node.lineno}"))
    return found


def elsewhere(paths: Iterable[Path], owners: Mapping[str, str], names: set[str]) -> list[str]:
    """Uses of these names of something that is not in `owners`, and that nobody would check."""
    return [
        f"{path.name}:{node.lineno}: {ast.unparse(node)}"
        for path in paths
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Attribute)
        and node.attr in names
        and ast.unparse(node.value) not in owners
    ]
