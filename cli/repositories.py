"""First look at the repository folders of a command line, before anything is started.

Only what a person gets wrong in the first minutes: the path, the level, the emptiness. What is
inside a model's folder is judged by naiad.config.
"""

from __future__ import annotations

import os

from naiad.cli.exit_codes import ExitCode
from naiad.cli.failure import CommandFailed
from naiad.config.entries import DIRECTORY, is_broken_link, what_is_at
from naiad.config.names import path_text_fault, remote_fault

CONFIG_NAME = "config.pbtxt"


def checked(paths: tuple[str, ...], *, may_be_empty: bool) -> tuple[str, ...]:
    """Absolute paths of folders that can be repositories.

    Raises CommandFailed (USAGE), one sentence with the way out.
    """
    for path in paths:
        remote = remote_fault(path)
        if remote is not None:
            raise _wrong(f"model repository {remote}")
    absolute = tuple(os.path.abspath(path) for path in paths)
    models = 0
    for path in absolute:
        models += len(_subfolders(path))
    if not models and not may_be_empty:
        raise CommandFailed(
            f"no model in {', '.join(absolute)}; a repository holds one folder per model: "
            "MODEL/config.pbtxt and MODEL/1/model.onnx (with --control-mode explicit it may be "
            "empty)",
            ExitCode.USAGE,
        )
    return absolute


def _subfolders(path: str) -> list[str]:
    """What can be models' folders: also links that lead nowhere, whose fault the server tells."""
    text_fault = path_text_fault(path)
    if text_fault is not None:
        raise _wrong(f"model repository {text_fault}")
    try:
        with os.scandir(path) as entries:
            found = list(entries)
    except FileNotFoundError:
        raise _wrong(f"there is no {path}; give the folder that holds the models") from None
    except NotADirectoryError:
        raise _wrong(
            f"{path} is {what_is_at(path)}; give the folder that holds the models"
        ) from None
    except OSError as error:
        raise _wrong(f"cannot read {path}: {error.strerror}") from error
    names = {entry.name for entry in found}
    folders = [
        entry.name
        for entry in found
        if not entry.name.startswith((".", "__"))
        and (what_is_at(entry.path) == DIRECTORY or is_broken_link(entry.path))
    ]
    if CONFIG_NAME in names or _are_versions(path, folders):
        raise _wrong(
            f"{path} is the folder of one model; give the repository it lies in: "
            f"{os.path.dirname(path)}"
        )
    return folders


def _are_versions(path: str, folders: list[str]) -> bool:
    """Whether these are a model's versions: all are numbers and one of them holds a model."""
    if not folders or not all(name.isdecimal() for name in folders):
        return False
    return any(
        name.startswith("model.")
        for folder in folders
        for name in _listed(os.path.join(path, folder))
    )


def _listed(folder: str) -> list[str]:
    """Nothing where nothing can be listed: why not is told as that model's fault."""
    try:
        return os.listdir(folder)
    except OSError:
        return []


def _wrong(text: str) -> CommandFailed:
    return CommandFailed(text, ExitCode.USAGE)
