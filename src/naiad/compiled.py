"""Runs the compiled form of naiad's hot modules where there is one that belongs to the sources.

mypyc compiles the very same files (setup.py lists them), which makes them about three times as
fast. They are one unit, and they are used only as one: a source that was edited since, and Python
runs the sources instead, so that nobody debugs a file that does not run. NAIAD_COMPILED=0 asks for
the sources in any case.
"""

from __future__ import annotations

import os
import sys
import zlib
from importlib.machinery import EXTENSION_SUFFIXES, ModuleSpec
from importlib.util import spec_from_file_location
from types import ModuleType
from typing import Final

SWITCH: Final = "NAIAD_COMPILED"
SUFFIX: Final = EXTENSION_SUFFIXES[0]
PACKAGE: Final = os.path.dirname(__file__)
FOLDER: Final = os.path.join(PACKAGE, "_compiled")
INDEX: Final = "sources"
"""Beside the libraries, with their suffix: a line for each module, `checksum name file`. The
libraries all modules share have an empty file."""


class CompiledFinder:
    """Finds compiled modules before their sources."""

    def __init__(self, files: dict[str, str]) -> None:
        self._files = files

    def find_spec(
        self, name: str, path: object = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        file = self._files.get(name)
        return None if file is None else spec_from_file_location(name, file)


def file_stem(module: str) -> str:
    """The name of a module's library, without folder and suffix."""
    return module.replace(".", "_")


def checksum(path: str) -> str:
    with open(path, "rb") as file:
        return f"{zlib.crc32(file.read()):08x}"


def current(folder: str = FOLDER, package: str = PACKAGE) -> dict[str, str]:
    """Libraries by module name; {} when there are none, or not of these sources."""
    found: dict[str, str] = {}
    try:
        with open(os.path.join(folder, INDEX + SUFFIX), encoding="utf-8") as file:
            for line in file:
                expected, name, source = line.rstrip("\n").split(" ")
                if source and checksum(os.path.join(package, source)) != expected:
                    return {}
                found[name] = os.path.join(folder, file_stem(name) + SUFFIX)
    except FileNotFoundError:
        return {}
    return found


def prefer_compiled() -> None:
    """Called once, before any other module of naiad is imported."""
    if os.environ.get(SWITCH) != "0" and (files := current()):
        sys.meta_path.insert(0, CompiledFinder(files))


def is_compiled() -> bool:
    """Whether this process prefers compiled modules."""
    return any(isinstance(finder, CompiledFinder) for finder in sys.meta_path)
