"""The shape that tools rely on: pure modules stay pure, doors stay light, lists agree."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
COMPONENTS = (
    "protocol",
    "shm",
    "config",
    "broker",
    "worker",
    "client",
    "gateway",
    "metrics",
    "cli",
    "testing",
)
PURE = (
    *sorted(f"naiad.protocol.{path.stem}" for path in (ROOT / "protocol").glob("[a-z]*.py")),
    *sorted(f"naiad.broker.core.{path.stem}" for path in (ROOT / "broker/core").glob("[a-z]*.py")),
    "naiad.client.session",
    "naiad.client.outstanding",
    "naiad.shm.layout",
    "naiad.shm.arena",
    "naiad.config.model",
)


def loaded_after(statement: str) -> set[str]:
    """Top-level modules in a fresh interpreter after the statement."""
    code = f"import sys; sys.path.insert(0, sys.argv[1]); {statement}; print(*sys.modules)"
    run = subprocess.run(
        [sys.executable, "-I", "-c", code, str(ROOT / "src")],
        capture_output=True,
        text=True,
        check=True,
    )
    return {name.partition(".")[0] for name in run.stdout.split()}


def test_pure_modules_bring_no_impure_neighbour() -> None:
    """The import linter does not see what a parent package's __init__ imports; this does."""
    modules = ", ".join(name for name in PURE if not name.startswith("naiad.client"))
    assert not loaded_after(f"import {modules}") & {"zmq", "asyncio", "numpy"}


def test_every_pure_module_is_covered_by_the_contract() -> None:
    with (ROOT / "pyproject.toml").open("rb") as file:
        contracts = tomllib.load(file)["tool"]["importlinter"]["contracts"]
    (pure,) = [each for each in contracts if each["name"].startswith("what decides")]
    for module in PURE:
        assert any(module.startswith(source) for source in pure["source_modules"]), module


def test_the_client_needs_only_what_it_says() -> None:
    ours = loaded_after("import naiad.client")
    stdlib = sys.stdlib_module_names
    allowed = {"naiad", "zmq", "msgpack", "numpy", "posix_ipc", "cython_runtime"}
    allowed |= {"sitecustomize", "usercustomize"}  # a distribution's own, before any import
    foreign = {name for name in ours if name not in stdlib and not name.startswith("_")}
    foreign = {name for name in foreign if not name.endswith("__mypyc")}  # naiad's own, compiled
    assert foreign <= allowed


def test_help_loads_no_command() -> None:
    loaded = loaded_after("from naiad.cli.main import main; main(['--help'])")
    assert not loaded & {"zmq", "numpy", "rich", "google", "msgpack"}


@pytest.mark.parametrize("component", COMPONENTS)
def test_doors_are_docstrings(component: str) -> None:
    for path in (ROOT / component).rglob("__init__.py"):
        if path == ROOT / "client" / "__init__.py":
            continue  # the one that re-exports
        text = path.read_text().strip()
        assert text.startswith('"""'), path
        assert text.endswith('"""'), path
        assert text.count('"""') == 2, path


def test_every_component_is_in_every_list() -> None:
    with (ROOT / "pyproject.toml").open("rb") as file:
        tools = tomllib.load(file)["tool"]
    banned = tools["ruff"]["lint"]["flake8-tidy-imports"]["banned-api"]
    assert set(banned) == set(COMPONENTS)
    assert set(tools["coverage"]["run"]["source"]) == {*COMPONENTS, "src"}
    (floors,) = [each for each in tools["importlinter"]["contracts"] if each["name"] == "floors"]
    named = {part.strip() for layer in floors["layers"] for part in layer.split("|")}
    assert named == {f"naiad.{component}" for component in COMPONENTS} | {"naiad.__main__"}
