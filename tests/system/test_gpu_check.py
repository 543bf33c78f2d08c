"""scripts/gpu_check as a person starts it: without a GPU for real, and over the fake one."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from collections.abc import Mapping
from pathlib import Path
from time import monotonic
from typing import Any

import pytest

from gpu_checks.main import NO_GPU, SOME_FAIL, USAGE, _Run
from gpu_checks.segments import SEGMENT_PREFIX
from gpu_checks.steps import STEPS, Options
from support import fake_gpu
from support.real_packages import real_package
from support.waiting import wait_until

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "gpu_check"
SECONDS_MAX = 120


class Ended:
    """A run of the script: its exit code, what it printed, and the rows it wrote."""

    def __init__(
        self, out: Path, *arguments: str, environment: Mapping[str, str], python: str = ""
    ) -> None:
        run = subprocess.run(
            [python or sys.executable, str(SCRIPT), "--out", str(out), *arguments],
            env={**os.environ, **environment}, capture_output=True, text=True,
            timeout=SECONDS_MAX, check=False,
        )  # fmt: skip
        self.code, self.table, self.said = run.returncode, run.stdout, run.stderr
        self.rows: list[dict[str, Any]] = []
        if out.exists():
            told = json.loads(out.read_text())
            assert told["exit_code"] == self.code
            self.rows = told["rows"]

    def of(self, step: str) -> list[dict[str, Any]]:
        return [row for row in self.rows if row["step"] == step]


@pytest.fixture
def fakes(tmp_path: Path) -> dict[str, str]:
    return fake_gpu.plant(tmp_path / "planted")


def orphaned_segments() -> set[str]:
    """Those of processes that are gone; others may be at work."""
    found = (path.name for path in Path("/dev/shm").glob(f"{SEGMENT_PREFIX}*"))
    return {name for name in found if not Path("/proc", name.split("-")[3]).exists()}


def test_without_a_gpu(tmp_path: Path) -> None:
    runtime = real_package("cuda.bindings.runtime", "cuda-bindings")
    if not int(runtime.cudaGetDeviceCount()[0]):
        pytest.skip("this machine has a GPU")
    ended = Ended(tmp_path / "rows", environment={})
    assert ended.code == NO_GPU
    assert "no GPU here, nothing was looked at" in ended.table
    (row,) = ended.of("device")
    assert (row["what"], row["verdict"]) == ("GPU", "skipped")
    assert row["reason"].startswith("no ")
    for step in STEPS:
        assert [r["verdict"] for r in ended.of(step.name)] == ["skipped"]


def test_without_cuda_bindings(tmp_path: Path) -> None:
    (tmp_path / "cuda").mkdir()
    (tmp_path / "cuda" / "__init__.py").touch()
    ended = Ended(tmp_path / "rows", environment={"PYTHONPATH": str(tmp_path)})
    assert ended.code == USAGE
    (row,) = ended.of("device")
    assert "pip install cuda-bindings" in row["reason"]


def test_a_bare_python(tmp_path: Path, fakes: dict[str, str]) -> None:
    """NumPy and (fake) cuda.bindings, and nothing else: no pyzmq, no rich."""
    bare = tmp_path / "bare"
    venv.create(bare, with_pip=False)
    folder = tmp_path / "numpy-alone"
    folder.mkdir()
    for path in Path(sysconfig.get_path("purelib")).glob("numpy*"):
        (folder / path.name).symlink_to(path)
    own = {"PYTHONPATH": os.pathsep.join([fakes["PYTHONPATH"], str(folder)])}
    python = str(bare / "bin" / "python")
    ended = Ended(
        tmp_path / "rows", "--only", "faults,server",
        environment={**fakes, **own}, python=python,
    )  # fmt: skip
    assert ended.code == 0, ended.table
    assert {row["verdict"] for row in ended.of("faults")} == {"pass"}
    (row,) = ended.of("server")
    assert row["verdict"] == "skipped"
    assert row["reason"].startswith("needs pyzmq, msgpack, posix-ipc, ")
    assert "│" not in ended.table


def test_without_numpy(tmp_path: Path, fakes: dict[str, str]) -> None:
    """Said as what it is, like a missing cuda.bindings, and every step is skipped for it."""
    bare = tmp_path / "bare"
    venv.create(bare, with_pip=False)
    python = str(bare / "bin" / "python")
    ended = Ended(tmp_path / "rows", environment=fakes, python=python)
    assert ended.code == USAGE, ended.said
    (row,) = ended.of("device")
    assert row["reason"].startswith("No module named 'numpy': pip install numpy, or ")
    assert {r["verdict"] for r in ended.rows} == {"fail", "skipped"}
    assert "Traceback" not in ended.said


def test_a_step_that_crashes_is_a_failed_row(tmp_path: Path, fakes: dict[str, str]) -> None:
    """What it said before is kept, nothing is left of it, and the next step is taken: it raises."""
    before = orphaned_segments()
    (tmp_path / "planted" / "cuda" / "bindings" / "driver.py").write_text(CRASHING)
    ended = Ended(tmp_path / "rows", "--only", "register,server", environment=fakes)
    assert ended.code == SOME_FAIL
    *good, last = ended.of("register")
    assert [row["what"] for row in good][:1] == ["kernels"]
    assert last["verdict"] == "fail"
    assert last["reason"].startswith("its process was ended by SIGSEGV")
    assert orphaned_segments() <= before
    (row,) = ended.of("server")
    assert row["verdict"] == "fail"
    assert row["reason"].startswith("its process ended with exit code 1: ")
    assert "has no attribute 'cuDeviceGetUuid'" in row["reason"]
    assert "ended by SIGSEGV" in " ".join(ended.table.split())


CRASHING = """\
import os, signal
from support.fake_gpu_driver import *
from support import fake_gpu_driver

del cuDeviceGetUuid
launched = 0

def cuLaunchKernel(*arguments):
    global launched
    launched += 1
    if launched > 1:
        os.kill(os.getpid(), signal.SIGSEGV)
    return fake_gpu_driver.cuLaunchKernel(*arguments)
"""


def test_a_step_is_ended_at_its_limit_with_all_it_started(tmp_path: Path) -> None:
    """A child that outlived it would hold the pipe open."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reading = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    run = _Run(Options(), dict(os.environ), tmp_path, monotonic() + SECONDS_MAX)
    command = ["sh", "-c", f"echo started >&2; sleep 600 >{pipe} & wait"]
    fault = run._run(command, tmp_path / "log", 1.0)
    assert fault == "not done within 1 s"
    assert (tmp_path / "log").read_text() == "started\n"
    wait_until(lambda: is_closed(reading), "the end of the child")
    os.close(reading)


def is_closed(pipe: int) -> bool:
    try:
        return os.read(pipe, 1) == b""
    except BlockingIOError:
        return False


def test_wheels_of_a_folder_are_used(tmp_path: Path, fakes: dict[str, str]) -> None:
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    with zipfile.ZipFile(wheels / "cuda_bindings-1-py3-none-any.whl", "w") as archive:
        for path in (tmp_path / "planted" / "cuda").rglob("*.py"):
            archive.write(path, str(path.relative_to(tmp_path / "planted")))
    shutil.rmtree(tmp_path / "planted" / "cuda")
    ended = Ended(tmp_path / "rows", "--only", "ipc", "--wheels", str(wheels), environment=fakes)
    assert ended.code == 0, ended.table
    assert ended.of("device")[0]["measured"].startswith("Fake GPU")
    assert {row["step"] for row in ended.rows} == {"device", "ipc"}
    assert "gpu_check: ipc ..." in ended.said
    assert "waits by the event until the bytes are computed" in " ".join(ended.table.split())


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--only", "nonsense"], "--only: no step nonsense; there are register, rates"),
        (["--wheels", "/nowhere"], "--wheels: [Errno 2] No such file or directory: '/nowhere'"),
        (["--plan", "/nowhere"], "--plan: /nowhere: cannot be read (No such file or directory)"),
    ],
)
def test_a_wrong_call(tmp_path: Path, arguments: list[str], said: str) -> None:
    ended = Ended(tmp_path / "rows", *arguments, environment={})
    assert (ended.code, ended.rows) == (USAGE, [])
    assert said in ended.said
