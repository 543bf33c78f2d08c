"""One real server and every command that talks to it; then its processes die one by one."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from naiad.cli.exit_codes import ExitCode
from naiad.testing.server import Server, ServerFailed, serve
from support.onnx_models import Tensor, write_model
from support.repositories import add_identity

pytest_plugins = ["naiad.testing.plugin"]

ROOT = Path(__file__).resolve().parent.parent.parent
DEADLINE_SECONDS = 40.0
NO_PORTS = ("--http-port", "off", "--grpc-port", "off", "--metrics-port", "off")
SIXTEEN = json.dumps(list(range(16)))


def naiad(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "naiad", *arguments],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        timeout=60,
    )


def until(condition: Callable[[], object], what: str) -> None:
    """Wait for a condition, checked every 20 ms, at most DEADLINE_SECONDS."""
    end = time.monotonic() + DEADLINE_SECONDS
    while not condition():
        assert time.monotonic() < end, f"not within {DEADLINE_SECONDS} s: {what}"
        time.sleep(0.02)


@pytest.fixture(scope="module")
def naiad_repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Overrides the plugin's: one echo model with two instances, one that fails to load."""
    repository = tmp_path_factory.mktemp("repository")
    add_identity(repository, "echo", instances=2)
    add_identity(repository, "broken", parameters={"fail_load": "out of luck"})
    return repository


@pytest.fixture(scope="module")
def where(naiad_server: Server) -> list[str]:
    return ["--run-dir", str(naiad_server.run_dir)]


def status(server: Server) -> dict[str, list[dict[str, object]]]:
    run = naiad("status", "--json", "--run-dir", str(server.run_dir))
    found: dict[str, list[dict[str, object]]] = json.loads(run.stdout)
    return found


def test_the_greeting_names_models_and_the_failure(naiad_server: Server) -> None:
    assert "echo " in naiad_server.log
    assert "out of luck" in naiad_server.log
    assert f"listening on {naiad_server.run_dir} (1 of 2 models failed)" in naiad_server.log


def test_a_second_server_in_the_same_place_disturbs_nothing(
    naiad_server: Server, naiad_repository: Path, where: list[str]
) -> None:
    run = naiad("serve", str(naiad_repository), *NO_PORTS, *where)
    assert run.returncode == ExitCode.RUN_DIR
    (line,) = run.stderr.splitlines()
    assert f"(pid {naiad_server.process.pid}) already runs" in line
    assert naiad("infer", "echo", "--input", f"INPUT0={SIXTEEN}", *where).returncode == 0


def test_status_shows_models_and_instances(naiad_server: Server, where: list[str]) -> None:
    run = naiad("status", *where)
    assert run.returncode == 0
    assert "\x1b" not in run.stdout
    assert "echo" in run.stdout
    assert "READY" in run.stdout
    assert "out of luck" in run.stdout
    found = status(naiad_server)
    pids = {row["pid"] for row in found["instances"] if row["model"] == "echo"}
    assert pids <= set(naiad_server.pids.values())
    assert len(pids) == 2


def test_infer_answers_as_a_table_and_as_json(where: list[str]) -> None:
    table = naiad("infer", "echo", "--input", f"INPUT0={SIXTEEN}", *where)
    assert table.returncode == 0, table.stderr
    assert "OUTPUT0" in table.stdout
    assert "0, 1, 2, 3, 4, 5, 6, 7, …" in table.stdout
    as_json = naiad("infer", "echo", "--input", f"INPUT0={SIXTEEN}", "--json", *where)
    answer = json.loads(as_json.stdout)
    assert answer["model_name"] == "echo"
    assert answer["outputs"][0]["data"] == list(range(16))
    assert answer["outputs"][0]["shape"] == [1, 16]


def test_what_json_has_no_number_for_is_a_text(where: list[str]) -> None:
    values = [*["NaN", "Infinity", "-Infinity"], *range(13)]
    run = naiad("infer", "echo", "--input", f"INPUT0={json.dumps(values)}", "--json", *where)

    def never(text: str) -> None:
        raise AssertionError(f"{text} is no JSON")

    (output,) = json.loads(run.stdout, parse_constant=never)["outputs"]
    assert output["data"] == values


def test_a_short_timeout_is_not_taken_for_an_absent_server(
    naiad_server: Server, where: list[str]
) -> None:
    client = naiad_server.client()
    values = {"INPUT0": np.zeros((1, 16), np.float32)}
    busy = [client.submit("echo", values, parameters={"sleep_ms": 60_000}) for _ in range(4)]
    run = naiad("infer", "echo", "--input", f"INPUT0={SIXTEEN}", "--timeout", "0.001", *where)
    assert [future.cancel() for future in busy] == [True] * 4
    assert run.returncode == ExitCode.FAILED
    (line,) = run.stderr.splitlines()
    assert line == "naiad: echo did not answer within --timeout 0.001 s; give it more time"


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["infer", "ecko", "--input", "INPUT0=1"], ExitCode.FAILED, "ecko"),
        (["infer", "echo"], ExitCode.USAGE, "echo takes INPUT0 (FP32 [-1, 16])"),
        (["infer", "echo", "--input", "X=1"], ExitCode.USAGE, "echo has no input X"),
        (["infer", "echo", "--input", "INPUT0=[1, 2]"], ExitCode.FAILED, "INPUT0"),
        (["load", "ecko"], ExitCode.FAILED, ""),
    ],
)
def test_what_cannot_be_done_is_one_sentence(
    arguments: list[str], code: ExitCode, said: str, where: list[str]
) -> None:
    run = naiad(*arguments, *where)
    assert run.returncode == code
    assert run.stdout == ""
    assert run.stderr.startswith("naiad: ")
    assert said in run.stderr
    assert "Traceback" not in run.stderr


def test_the_reader_of_a_pipe_may_leave(where: list[str]) -> None:
    command = f"'{sys.executable}' -m naiad status --json --run-dir {where[1]} | head -c 10"
    run = subprocess.run(
        ["bash", "-o", "pipefail", "-c", command],
        capture_output=True,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        timeout=60,
    )
    assert (run.returncode, run.stderr) == (0, b"")


def test_killed_workers_and_a_killed_broker_come_back(naiad_server: Server) -> None:
    client = naiad_server.client()
    values = np.arange(16, dtype=np.float32)[None]
    for _ in range(3):
        ready = [row for row in status(naiad_server)["instances"] if row["state"] == "READY"]
        os.kill(naiad_server.pids[str(ready[0]["slot"])], signal.SIGKILL)
        assert (client.infer("echo", {"INPUT0": values})["OUTPUT0"] == values).all()
    broker = naiad_server.pids["broker"]
    os.kill(broker, signal.SIGKILL)
    assert (client.infer("echo", {"INPUT0": values})["OUTPUT0"] == values).all()
    assert naiad_server.pids["broker"] != broker
    until(
        lambda: sum(row["state"] == "READY" for row in status(naiad_server)["instances"]) == 2,
        "two instances",
    )


def test_models_are_loaded_and_unloaded_on_request(tmp_path: Path) -> None:
    (add_identity(tmp_path, "a") / "1").rename(tmp_path / "a" / "0")
    add_identity(tmp_path, "b")
    arguments = ["--control-mode", "explicit", "--load-model", "a"]
    with serve(tmp_path, arguments=arguments) as server:
        where = ["--run-dir", str(server.run_dir)]
        question = ["--input", f"INPUT0={SIXTEEN}", *where]
        assert naiad("infer", "a", "--version", "0", *question).returncode == 0
        assert naiad("infer", "b", *question).returncode != 0
        loaded = naiad("load", "b", *where)
        assert (loaded.returncode, loaded.stdout) == (0, "b is loaded\n"), loaded.stderr
        assert naiad("infer", "b", *question).returncode == 0
        unloaded = naiad("unload", "a", *where)
        assert (unloaded.returncode, unloaded.stdout) == (0, "a is unloaded\n"), unloaded.stderr
        assert naiad("infer", "a", *question).returncode != 0


def test_exit_on_error_ends_the_server(tmp_path: Path) -> None:
    add_identity(tmp_path, "broken", parameters={"fail_load": "out of luck"})
    with (
        pytest.raises(ServerFailed, match="ended with exit code 8"),
        serve(tmp_path, arguments=["--exit-on-error"]) as server,
    ):
        server.process.wait(DEADLINE_SECONDS)


def test_after_a_killed_supervisor_the_next_server_starts_clean(tmp_path: Path) -> None:
    """Its children die with it; what it could not remove, the next one in its place does."""
    add_identity(tmp_path, "a")
    with pytest.raises(ServerFailed, match="exit code -9"), serve(tmp_path) as first:
        kill_and_start_again(first, tmp_path)


def kill_and_start_again(first: Server, repository: Path) -> None:
    children = [pid for name, pid in first.pids.items() if name != "supervisor"]
    assert len(children) == 3
    first.process.kill()
    first.process.wait()
    until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in children), "their end")
    assert first.leftovers()
    where = ["--run-dir", str(first.run_dir), "--name", first.name]
    again = subprocess.Popen(
        [sys.executable, "-m", "naiad", "serve", str(repository), *NO_PORTS, *where],
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        stderr=subprocess.DEVNULL,
    )
    try:
        ask = ["infer", "a", "--input", f"INPUT0={SIXTEEN}", *where[:2]]
        until(lambda: naiad(*ask).returncode == 0, "an answer")
        again.terminate()
        assert again.wait(DEADLINE_SECONDS) == 0
    finally:
        again.kill()
        again.wait()
    assert first.leftovers() == []


@pytest.mark.parametrize("is_there", [False, True])
def test_a_clean_stop_leaves_nothing_of_ours(tmp_path: Path, is_there: bool) -> None:
    """The usual directory goes; one that somebody made stays, empty. No engine writes to HOME, and
    nobody needs a stream to read or write."""
    repository = tmp_path / "repository"
    add_identity(repository, "a")
    nodes = [("Add", ["a", "a"], ["b"])]
    write_model(repository / "o", nodes, [Tensor("a", "FP32", [1])], [Tensor("b", "FP32", [1])])
    home = tmp_path / "home"
    home.mkdir()
    base = Path(tempfile.mkdtemp(prefix="naiad-test-"))
    name = f"test-{os.getpid()}"
    run_dir = base / "run" if is_there else base / f"naiad-{os.geteuid()}-{name}"
    where = ["--run-dir", str(run_dir)]
    if is_there:
        run_dir.mkdir(0o700)
    server = subprocess.Popen(
        ["bash", "-c", 'exec "$@" <&- >&- 2>&-', "-"]
        + [sys.executable, "-m", "naiad", "serve", str(repository), "--name", name]
        + (where if is_there else []),
        env={
            "PATH": os.environ["PATH"],
            "PYTHONPATH": str(ROOT / "src"),
            "XDG_RUNTIME_DIR": str(base),
            "HOME": str(home),
        },
    )
    try:
        ask = ["infer", "a", "--input", f"INPUT0={SIXTEEN}", *where]
        until(lambda: naiad(*ask).returncode == 0, "an answer")
        until(lambda: naiad("infer", "o", "--input", "a=1", *where).returncode == 0, "a sum")
        server.terminate()
        assert server.wait(DEADLINE_SECONDS) == 0
        assert list(home.rglob("*")) == []
        found = sorted(str(path.relative_to(base)) for path in base.rglob("*"))
        assert found == (["run"] if is_there else [])
    finally:
        server.kill()
        server.wait()
        shutil.rmtree(base)
