"""Which compiled modules are used, and what the list of them names."""

from __future__ import annotations

import ast
import builtins
import importlib.util
import inspect
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

import naiad.client
from naiad import compiled

ROOT = Path(__file__).resolve().parent.parent.parent


@pytest.fixture(scope="module")
def setup() -> ModuleType:
    """setup.py without running it."""
    spec = importlib.util.spec_from_file_location("naiad_setup", ROOT / "setup.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_hot_module_exists_and_is_in_one_group(setup: ModuleType) -> None:
    files = [file for folders in setup.GROUPS.values() for file in setup.sources(folders)]
    assert len(files) == len(set(files))
    assert not [file for file in files if not (ROOT / "src" / "naiad" / file).is_file()]
    assert {folder for folders in setup.GROUPS.values() for folder in folders} == set(setup.HOT)


def index(folder: Path, package: Path, **sources: str) -> None:
    lines = ["- group__mypyc "]
    for name, text in sources.items():
        (package / f"{name}.py").write_text(text)
        found = compiled.checksum(str(package / f"{name}.py"))
        lines.append(f"{found} naiad.{name} {name}.py")
    (folder / f"{compiled.INDEX}{compiled.SUFFIX}").write_text("\n".join(lines) + "\n")


def test_without_an_index_nothing_is_compiled(tmp_path: Path) -> None:
    assert compiled.current(str(tmp_path), str(tmp_path)) == {}


def test_libraries_are_found_by_module_and_group(tmp_path: Path) -> None:
    index(tmp_path, tmp_path, one="x = 1\n", two="x = 2\n")
    found = compiled.current(str(tmp_path), str(tmp_path))
    assert found == {
        "group__mypyc": f"{tmp_path}/group__mypyc{compiled.SUFFIX}",
        "naiad.one": f"{tmp_path}/naiad_one{compiled.SUFFIX}",
        "naiad.two": f"{tmp_path}/naiad_two{compiled.SUFFIX}",
    }


def test_one_source_that_differs_makes_all_of_them_stale(tmp_path: Path) -> None:
    index(tmp_path, tmp_path, one="x = 1\n", two="x = 2\n")
    (tmp_path / "two.py").write_text("x = 3\n")
    assert compiled.current(str(tmp_path), str(tmp_path)) == {}


def test_a_source_that_is_gone_makes_them_stale(tmp_path: Path) -> None:
    index(tmp_path, tmp_path, one="x = 1\n")
    (tmp_path / "one.py").unlink()
    assert compiled.current(str(tmp_path), str(tmp_path)) == {}


def test_the_finder_leaves_other_modules_to_others() -> None:
    finder = compiled.CompiledFinder({"naiad.one": "/nowhere/one.so"})
    assert finder.find_spec("naiad.two") is None
    spec = finder.find_spec("naiad.one")
    assert spec is not None
    assert spec.origin == "/nowhere/one.so"


def _hot_nodes(setup: ModuleType) -> Iterator[tuple[str, ast.AST]]:
    """Everything that stands in the hot modules, with the file's name."""
    for folders in setup.GROUPS.values():
        for file in setup.sources(folders):
            for node in ast.walk(ast.parse((ROOT / "src" / "naiad" / file).read_text())):
                yield file, node


def test_no_record_of_a_hot_module_has_a_field_mypyc_cannot_name(setup: ModuleType) -> None:
    """mypyc looks builtin types of fields up among the module's own names, but for a few."""
    unknown = vars(builtins).keys() - {
        "int", "str", "bytes", "bool", "float", "list", "dict", "set", "tuple", "frozenset",
    }  # fmt: skip
    found = [
        f"{file}:{field.lineno}"
        for file, record in _hot_nodes(setup)
        if isinstance(record, ast.ClassDef) and _is_record(record)
        for field in record.body
        if isinstance(field, ast.AnnAssign) and _outer_names(field.annotation) & unknown
    ]
    assert found == []


def test_no_name_of_a_hot_function_stands_for_exceptions_of_two_kinds(setup: ModuleType) -> None:
    """mypyc gives `fault` the type of the first `except ... as fault`: the second would raise."""
    found = [
        f"{file}:{handler.lineno}: {handler.name}"
        for file, function in _hot_nodes(setup)
        if isinstance(function, ast.FunctionDef)
        for handler in _ambiguous_handlers(function)
    ]
    assert found == []


def _ambiguous_handlers(function: ast.FunctionDef) -> list[ast.ExceptHandler]:
    first: dict[str, str] = {}
    found = []
    for node in ast.walk(function):
        if isinstance(node, ast.ExceptHandler) and node.name and node.type:
            kind = ast.unparse(node.type)
            if first.setdefault(node.name, kind) != kind:
                found.append(node)
    return found


def test_what_a_hot_class_deletes_of_itself_is_declared(setup: ModuleType) -> None:
    """mypyc refuses the other attributes, and with them the build."""
    found = [
        f"{file}:{target.lineno}: {target.attr}"
        for file, owner in _hot_nodes(setup)
        if isinstance(owner, ast.ClassDef)
        for deletion in ast.walk(owner)
        if isinstance(deletion, ast.Delete)
        for target in deletion.targets
        if isinstance(target, ast.Attribute) and target.attr not in _deletable(owner)
    ]
    assert found == []


def _deletable(owner: ast.ClassDef) -> str:
    return "".join(
        ast.unparse(node)
        for node in owner.body
        if isinstance(node, ast.Assign | ast.AnnAssign) and "__deletable__" in ast.unparse(node)
    )


def test_users_call_no_hot_function(setup: ModuleType) -> None:
    """It would judge the types of what they give before it could say what is wrong."""
    exported = [value for value in vars(naiad.client).values() if inspect.isroutine(value)]
    hot = {f"naiad.client.{name}" for name in setup.HOT["client"].split()}
    assert exported
    assert [one.__qualname__ for one in exported if one.__module__ in hot] == []


def _is_record(record: ast.ClassDef) -> bool:
    return "NamedTuple" in {name for base in record.bases for name in _outer_names(base)}


def _outer_names(annotation: ast.expr) -> set[str]:
    """Names of a type without those in brackets."""
    match annotation:
        case ast.Name(id=name):
            return {name}
        case ast.BinOp(left=left, right=right):
            return _outer_names(left) | _outer_names(right)
        case ast.Subscript(value=value):
            return _outer_names(value)
    return set()
