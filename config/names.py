"""What a model and a file inside a model may be called, wherever a name comes from. Pure.

Names become paths, so they are checked before anything is looked up: a refusal must not tell
whether a file outside the repository exists.
"""

from __future__ import annotations

from typing import Final

NAME_BYTES_MAX: Final = 255
"""The longest name of a directory entry on Linux."""


def model_name_fault(name: str) -> str | None:
    """Why a model cannot have this name, or None.

    As Triton does: the name is trimmed for the check only, exactly ".." and anything with a "/" are
    refused, "...", "..m" and "m..1" are fine. Control characters, "." and names too long for a
    directory are refused here in addition.
    """
    trimmed = name.strip()
    if not trimmed:
        return "Model name cannot be empty; give the name of a directory in the model repository"
    if trimmed in (".", "..") or "/" in name:
        return (
            f"Model name {printable(name)} must not contain path traversal characters; "
            "give the name of a directory in the model repository, not a path"
        )
    if any(ord(character) < 32 or ord(character) == 127 for character in name):
        return f"Model name {printable(name)} must not contain control characters"
    if not _is_utf8(name):
        return f"Model name {printable(name)} is not UTF-8, which every client speaks"
    size_bytes = len(name.encode())
    if size_bytes > NAME_BYTES_MAX:
        return f"Model name of {size_bytes} bytes is longer than {NAME_BYTES_MAX}"
    return None


def _is_utf8(text: str) -> bool:
    """File names of other encodings come with surrogates in the place of their bytes."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def path_text_fault(path: str) -> str | None:
    """Why a path cannot be told to a worker, whose messages are UTF-8, or None."""
    if _is_utf8(path):
        return None
    return f"{printable(path)} is not UTF-8; rename the directory, or give a link to it"


def remote_fault(path: str) -> str | None:
    """Why a repository that Triton would fetch (s3://, gs://, ...) cannot be one, or None."""
    if "://" not in path:
        return None
    return (
        f"{printable(path)}: remote repositories are not in this release; copy it to a local "
        "directory, or mount it, and give that"
    )


def spelled_out(name: str) -> str:
    """A name that cannot be a model's, as a text for messages, tables and logs: bytes that are not
    UTF-8 as \\xff, control characters as \\n, blanks alone in quotes."""
    text = name.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
    shown = visible(text)
    return shown if shown.strip() else repr(shown)


def visible(text: str) -> str:
    """The text with nothing a terminal would act on: control characters as \\n or \\x1b."""
    return "".join(one if one.isprintable() else ascii(one)[1:-1] for one in text)


def inner_path_fault(path: str) -> str | None:
    """Why this is no relative path that stays inside a model's directory, or None."""
    if not path.strip():
        return "is empty"
    if path.startswith("/"):
        return "is absolute; give a path relative to the model's own directory"
    if ".." in path.split("/"):
        return 'contains ".."; give a path inside the model\'s own directory'
    if any(ord(character) < 32 for character in path):
        return "contains control characters"
    return None


def printable(name: str) -> str:
    """The name in single quotes, cut to a sane length, with nothing a terminal would act on."""
    shown = name if len(name) <= NAME_BYTES_MAX else name[:NAME_BYTES_MAX] + "…"
    return repr(shown.encode("utf-8", "backslashreplace").decode("utf-8"))
