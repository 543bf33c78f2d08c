"""The programs in docs/client.md, run as they stand against the models that come with naiad."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from naiad.testing.server import Server, serve
from support.clients import ROOT

PAGE = (ROOT / "docs" / "client.md").read_text()
PROGRAMS = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
RUN_DIR = "/run/naiad"
PRINTED = [
    re.search(r"prints `([^`]+)` where", PAGE)[1],  # type: ignore[index]
    str([float(value) for value in range(8)]),
    "0.5",
]


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    repository = Path(tempfile.mkdtemp(prefix="naiad-examples-"))
    for model in ("add_sub", "identbig"):
        shutil.copytree(ROOT / "model_repository" / model, repository / model)
    with serve(repository) as running:
        yield running
    shutil.rmtree(repository)


@pytest.mark.parametrize(("program", "printed"), list(zip(PROGRAMS, PRINTED, strict=True)))
def test_it_prints_what_it_should(server: Server, program: str, printed: str) -> None:
    assert RUN_DIR in program
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program.replace(RUN_DIR, str(server.run_dir))],
        capture_output=True,
        text=True,
        timeout=60,
        env={"PYTHONPATH": str(ROOT / "src"), "PATH": ""},
    )
    assert (done.stdout, done.stderr) == (printed + "\n", "")
