"""Wheels of a folder, unpacked where this Python can import them: no pip, no network."""

from __future__ import annotations

import sys
import zipfile
from pathlib import Path
from typing import Final

WHEELS_MAX: Final = 200


def suits_this_python(name: str) -> bool:
    """By the tags in a wheel's file name; the platform is the caller's choice."""
    parts = name.removesuffix(".whl").split("-")
    if len(parts) < 5:
        return False
    pythons, abis = parts[-3].split("."), parts[-2].split(".")
    major, minor = sys.version_info[:2]
    if f"cp{major}{minor}" in pythons or f"py{major}" in pythons:
        return True
    older = {f"cp{major}{number}" for number in range(2, minor)}
    return "abi3" in abis and bool(older & set(pythons))


def unpack(folder: Path, target: Path) -> list[str]:
    """Unpack what suits; the names of the wheels.

    Raises OSError, and ValueError for too many, for none that suits, and for what is no wheel.
    """
    found = sorted(path for path in folder.iterdir() if path.suffix == ".whl")
    if len(found) > WHEELS_MAX:
        raise ValueError(f"{folder}: {len(found)} wheels, of WHEELS_MAX ({WHEELS_MAX})")
    suitable = [path for path in found if suits_this_python(path.name)]
    if not suitable:
        version = ".".join(map(str, sys.version_info[:2]))
        raise ValueError(f"{folder}: no wheel for Python {version} among {len(found)}")
    for path in suitable:
        try:
            with zipfile.ZipFile(path) as archive:
                archive.extractall(target)
        except zipfile.BadZipFile as error:
            raise ValueError(f"{path}: {error}; download it again") from error
    return [path.name for path in suitable]
