"""Code in the documents is code: Python parses and imports, commands and their options exist."""

from __future__ import annotations

import ast
import importlib
import re
import shlex
from pathlib import Path

import click
import pytest

from naiad.cli.main import root

ROOT = Path(__file__).resolve().parent.parent.parent
DOCUMENTS = sorted({*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("model_*/*.md")})
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```", re.MULTILINE | re.DOTALL)


def blocks(language: str) -> list[tuple[str, str]]:
    found = []
    for path in DOCUMENTS:
        for kind, text in BLOCK.findall(path.read_text()):
            if kind == language:
                found.append((str(path.relative_to(ROOT)), text))
    return found


@pytest.mark.parametrize(("where", "text"), blocks("python"))
def test_python_blocks_parse_and_their_imports_exist(where: str, text: str) -> None:
    tree = ast.parse(text, where)
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("naiad"):
            module = importlib.import_module(node.module or "")
            for alias in node.names:
                assert hasattr(module, alias.name), f"{where}: {node.module}.{alias.name}"
        elif isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.startswith("naiad"):
                    importlib.import_module(alias.name)


def commands() -> list[tuple[str, str]]:
    """Every `naiad ...` line of a console block."""
    lines = []
    for where, text in blocks("console"):
        for line in text.replace("\\\n", " ").splitlines():
            command = line.removeprefix("$ ").strip()
            if line.startswith("$ ") and command.startswith("naiad "):
                lines.append((where, command))
    return lines


@pytest.mark.parametrize(("where", "line"), commands())
def test_commands_in_documents_exist_with_their_options(where: str, line: str) -> None:
    words = shlex.split(line.split(" | ")[0].split(" # ")[0].rstrip("& "))[1:]
    if words[0].startswith("-"):
        return
    context = click.Context(root)
    command = root.get_command(context, words[0])
    assert command is not None, f"{where}: {line}"
    if command.context_settings.get("ignore_unknown_options"):
        return  # broker and worker: their options are their own
    command.make_context(words[0], words[1:], parent=context)


def test_make_targets_in_documents_exist() -> None:
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for path in DOCUMENTS:
        for target in re.findall(r"`make ([a-z]+)`|^\$ make ([a-z]+)", path.read_text(), re.M):
            assert set(target) - {""} <= targets, f"{path.name}: make {target}"


def test_links_between_documents_lead_somewhere() -> None:
    for path in DOCUMENTS:
        for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", path.read_text()):
            if "://" not in target:
                assert (path.parent / target).exists(), f"{path.name} links to {target}"
