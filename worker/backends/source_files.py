"""Importing a model's own files as they are now, never from byte code that was kept of them.

Python takes kept byte code for a file of the same size and modification second. Files that were
replaced twice within a second, or copied with their times preserved, would run as they were before;
and a model repository is not ours to write into.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib.abc import PathEntryFinder
from importlib.machinery import (
    EXTENSION_SUFFIXES,
    SOURCE_SUFFIXES,
    ExtensionFileLoader,
    FileFinder,
    SourceFileLoader,
)
from importlib.util import module_from_spec, spec_from_file_location
from types import CodeType, ModuleType


class SourceLoader(SourceFileLoader):
    """Compiles the source each time; neither reads nor writes byte code."""

    def get_code(self, fullname: str) -> CodeType:
        path = self.get_filename(fullname)
        code: CodeType = self.source_to_code(self.get_data(path), path)
        return code


def import_file(path: str, name: str) -> ModuleType | None:
    """The file as a module of this name in sys.modules; None when its name does not end in .py.

    Raises what the module itself raises, and then leaves nothing in sys.modules.
    """
    if not path.endswith(tuple(SOURCE_SUFFIXES)):
        return None
    spec = spec_from_file_location(name, path, loader=SourceLoader(name, path))
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[name] = module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def import_sources_below(directory: str) -> None:
    """From now on modules and packages in this directory are imported by SourceLoader."""
    sys.path_hooks.insert(0, _hook(directory))
    for path in list(sys.path_importer_cache):
        if _is_below(path, directory):
            del sys.path_importer_cache[path]


def _hook(directory: str) -> Callable[[str], PathEntryFinder]:
    find = FileFinder.path_hook(
        (SourceLoader, SOURCE_SUFFIXES), (ExtensionFileLoader, EXTENSION_SUFFIXES)
    )

    def hook(path: str) -> PathEntryFinder:
        if not _is_below(path, directory):
            raise ImportError(f"{path} is not below {directory}")
        return find(path)

    return hook


def _is_below(path: str, directory: str) -> bool:
    return path == directory or path.startswith(f"{directory}/")
