"""Settings of a server, and what does not go together."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from naiad.config.parameters import NaiadParameters
from naiad.config.settings import Settings, default_run_dir

ROOT = Path(__file__).resolve().parents[3]
READERS = ("broker", "cli", "worker")


def test_the_defaults_are_sound() -> None:
    settings = Settings(run_dir="/run/naiad")

    assert settings.faults() == []
    assert settings.inline_bytes_max == 64 * 2**20


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"control_mode": "poll"}, '"poll" is not in this release; use "none", or "explicit"'),
        ({"control_mode": "pol"}, "control mode 'pol' is unknown"),
        ({"load_models": ("m",)}, 'use "explicit"'),
        ({"control_mode": "explicit", "load_models": ("*", "m")}, '"*" loads every model'),
        ({"control_mode": "explicit", "load_models": ("../m",)}, "path traversal"),
        ({"run_dir": "/" + "x" * 100}, "a Unix socket path holds 107 bytes"),
        ({"name": "a/b"}, "a server cannot be called 'a/b'; use letters"),
        ({"name": ""}, "the server's name is empty; give it one with --name"),
        ({"on_missing_gpu": "gpu"}, "use fail or cpu"),
        ({"sessions_max": 0}, "sessions_max: expected more than 0, got 0"),
        ({"drain_seconds": -1.0}, "drain_seconds: expected 0 or more"),
        ({"heartbeat_timeout_ms": 100}, "must be longer than heartbeat_interval_ms (200)"),
    ],
)
def test_faults(changes: dict[str, Any], text: str) -> None:
    (fault,) = Settings(**{"run_dir": "/run/naiad", **changes}).faults()

    assert text in fault


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, "/tmp/naiad-1000-n"),
        ({"XDG_RUNTIME_DIR": "/run/user/1000"}, "/run/user/1000/naiad-1000-n"),
        ({"XDG_RUNTIME_DIR": "/x", "NAIAD_RUN_DIR": "/y"}, "/y"),
    ],
)
def test_where_the_run_directory_is(environment: dict[str, str], expected: str) -> None:
    assert default_run_dir("n", environment=environment, uid=1000) == expected


@pytest.mark.parametrize(
    ("record", "name"), [(Settings, "settings"), (NaiadParameters, "(naiad|own)")]
)
def test_every_setting_is_read_by_what_it_is_for(record: type[Any], name: str) -> None:
    """An option that changes nothing is worse than none."""
    sources = [path for folder in READERS for path in (ROOT / folder).rglob("*.py")]
    text = "\n".join(path.read_text() for path in sources)
    names = [row.name for row in fields(record)]
    assert [one for one in names if not re.search(rf"\b{name}\.{one}\b", text)] == []
