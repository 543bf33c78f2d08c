"""A running server keeps to docs/openapi.yaml, whatever it is asked: checked by schemathesis."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from naiad.testing.server import serve
from support.repositories import add_identity

ROOT = Path(__file__).resolve().parents[2]
SECONDS_MAX = 1800.0
NOT_CHECKED = "not_a_server_error,positive_data_acceptance"
"""501 and 503 are answers that the description has; what fits it need not fit a model."""


@pytest.mark.parametrize(
    "examples",
    [
        pytest.param(10, marks=pytest.mark.conformance),
        pytest.param(1000, marks=pytest.mark.soak),
    ],
)
def test_answers_are_as_described(examples: int, tmp_path: Path) -> None:
    """Statuses, headers and bodies; wrong types are refused; other verbs are 405 with Allow."""
    repository = tmp_path / "models"
    add_identity(repository, "identity", max_batch_size=8)
    arguments = ["--http-port", "0", "--control-mode", "explicit", "--load-model", "identity"]
    with serve(repository, arguments=arguments) as server:
        run = subprocess.run(
            [
                *(sys.executable, "-m", "schemathesis.cli", "run", ROOT / "docs/openapi.yaml"),
                *("--url", server.http_url, "--phases", "examples,coverage,fuzzing"),
                *("--max-examples", str(examples), "--exclude-checks", NOT_CHECKED),
                *("--warnings", "off", "--no-color", "--generation-database", "none"),
            ],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=SECONDS_MAX,
        )
        print(run.stdout[-2000:])
        assert run.returncode == 0, run.stdout[-6000:] + run.stderr
        assert "Traceback" not in server.log
        assert "failed inside" not in server.log
