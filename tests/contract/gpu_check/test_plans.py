"""Real engines: built by the real TensorRT-RTX here, refused without a GPU; run by the fake."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gpu_checks import backend_requests, plans
from gpu_checks.rows import FAIL, PASS, SKIPPED, Row
from gpu_checks.steps import Options
from support import engines, fake_trt
from support.fake_cudart import Device
from support.real_packages import real_package


def taken(options: Options) -> dict[str, Row]:
    return {row.what: row for row in plans.prove(options)}


def only(monkeypatch: pytest.MonkeyPatch, there: Callable[[str], Any]) -> None:
    """Which TensorRT can be imported."""

    def imported(name: str) -> Any:
        return engines.MODULES[name] if name.startswith("cuda") else there(name)

    monkeypatch.setattr(plans, "import_module", imported)
    own = backend_requests.loaded
    monkeypatch.setattr(plans, "loaded", lambda plan: own(plan, imported))


def nothing(name: str) -> Any:
    raise ModuleNotFoundError(f"No module named {name!r}")


def fake(name: str) -> Any:
    return fake_trt if name == "tensorrt" else nothing(name)


def test_a_real_plan_is_built_and_its_refusal_told(device: Device) -> None:
    """The real TensorRT-RTX sees no GPU here, whatever the fake says."""
    rtx = real_package("tensorrt_rtx_bindings", "naiad[rtx]")
    found = taken(Options())
    what = f"tensorrt_rtx {rtx.__version__}: a plan built here"
    built = next(row for name, row in found.items() if name.startswith(f"{what}, "))
    assert built.verdict == PASS
    refused = found[f"{what} runs"]
    assert refused.verdict == SKIPPED
    assert refused.reason.startswith("refused: unable to create TensorRT engine from ")
    assert "cudaError 35" in refused.reason


def test_without_any(device: Device, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    only(monkeypatch, nothing)
    found = taken(Options((str(tmp_path / "a.plan"),)))
    assert found["engines of tensorrt"].verdict == SKIPPED
    assert found["engines of tensorrt_lean"].verdict == SKIPPED
    assert "No module named" in found["engines of tensorrt_rtx"].reason
    assert found["the plan a.plan"].verdict == FAIL


@pytest.fixture
def affine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A plan that the fake runs, and the fake alone."""
    only(monkeypatch, fake)
    directory = engines.put_plan(engines.write_affine(tmp_path / "model"), engines.AFFINE)
    return directory / "1" / "model.plan"


def test_a_given_plan_is_run(device: Device, affine: Path) -> None:
    found = taken(Options((str(affine),)))
    assert found["the plan model.plan runs, twice the same"].verdict == PASS
    assert found["the plan model.plan: a batch"].value is not None


@pytest.mark.parametrize(("off", "verdict"), [(0, PASS), (1, FAIL)])
def test_a_given_plan_is_compared(device: Device, affine: Path, off: float, verdict: str) -> None:
    x = engines.random(3, 4)
    with open(f"{affine}.npz", "wb") as file:
        np.savez(file, x=x, y=2 * x + 1 + off)
    row = taken(Options((str(affine),)))["the plan model.plan: 'y' differs by"]
    assert row.verdict == verdict
    assert row.bar == "<= 0.02 x"


def test_a_given_plan_that_is_refused_fails(device: Device, affine: Path) -> None:
    affine.write_bytes(b"not a plan at all" + os.urandom(64))
    row = taken(Options((str(affine),)))["the plan model.plan runs"]
    assert row.verdict == FAIL
    assert "header.magicTag == kEXPECTED_MAGIC_TAG failed" in row.reason
