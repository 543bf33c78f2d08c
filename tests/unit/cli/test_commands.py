"""The root command, the first look at a repository, the run directory: what a person gets wrong."""

from __future__ import annotations

import errno
import fcntl
import os
import re
from pathlib import Path

import pytest

from naiad.cli import repositories, run_dir
from naiad.cli.control import require_server
from naiad.cli.exit_codes import ExitCode
from naiad.cli.failure import CommandFailed
from naiad.cli.main import COMMANDS, main
from naiad.cli.startup import failed_models, is_settled
from naiad.cli.status import duration, render
from naiad.cli.tables import table
from naiad.config.settings import RUN_DIR_VARIABLE
from naiad.protocol.endpoints import Endpoints


def test_naiad_alone_is_friendly(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == ExitCode.DONE
    out = capsys.readouterr().out
    assert "naiad serve model_repository" in out
    assert "--help" in out


def test_help_lists_every_command_with_a_summary(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == ExitCode.DONE
    out = capsys.readouterr().out
    for name, entry in COMMANDS.items():
        assert f"  {name} " in out
        assert entry.summary in out


@pytest.mark.parametrize(
    ("arguments", "said", "hint"),
    [
        (["foo"], "No such command 'foo'", "naiad --help"),
        (["sevre"], "No such command 'sevre'; did you mean \"serve\"?", "naiad --help"),
        (["serve"], "Missing argument 'REPOSITORY...'", "naiad serve --help"),
        (["serve", "--fast", "."], "--fast", "naiad serve --help"),
        (["serve", ".", "--load-model", "m"], 'use "explicit"', "naiad serve --help"),
        (["serve", ".", "--gpus", "0"], "--gpus: expected auto, all, none", "naiad serve --help"),
        (["serve", ".", "--control-mode", "poll"], "not in this release", "naiad serve --help"),
        (
            ["serve", "nowhere", "--http-header-forward-pattern", "("],
            "'--http-header-forward-pattern': expected a regular expression, such as",
            "naiad serve --help",
        ),
        (
            ["serve", "nowhere", "--grpc-header-forward-pattern", "*x"],
            "got '*x' (nothing to repeat at position 0)",
            "naiad serve --help",
        ),
        (
            ["serve", "nowhere", "--http-header-forward-pattern", "a{99999999999}"],
            "(the repetition number is too large)",
            "naiad serve --help",
        ),
    ],
)
def test_a_wrong_command_line_is_one_sentence(
    arguments: list[str], said: str, hint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == ExitCode.USAGE
    captured = capsys.readouterr()
    assert captured.out == ""
    (line,) = captured.err.splitlines()
    assert line.startswith("naiad: ")
    assert said in line
    assert line.endswith(f" (see {hint})")


def test_triton_has_its_own_code_for_them(capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--model-repository=nowhere", "--grpc-header-forward-pattern=*x"]
    assert main(["tritonserver", *flags]) == ExitCode.FAILED
    (line,) = capsys.readouterr().err.splitlines()
    assert "'--grpc-header-forward-pattern': expected a regular expression" in line
    assert line.endswith("(see tritonserver --help)")


@pytest.mark.parametrize(
    ("tree", "given", "said"),
    [
        ([], "nowhere", "there is no {}/nowhere; give the folder that holds the models"),
        (["file"], "file", "{}/file is a file; give the folder that holds the models"),
        (
            ["m/config.pbtxt"],
            "m",
            "{}/m is the folder of one model; give the repository it lies in",
        ),
        (["m/1/model.onnx"], "m", "{}/m is the folder of one model"),
        (["repository/"], "repository", "no model in {}/repository; a repository holds one folder"),
    ],
)
def test_what_is_no_repository_is_refused(
    tmp_path: Path, tree: list[str], given: str, said: str
) -> None:
    plant(tmp_path, tree)
    with pytest.raises(CommandFailed) as failure:
        repositories.checked((str(tmp_path / given),), may_be_empty=False)
    assert failure.value.code == ExitCode.USAGE
    assert failure.value.message.startswith(said.format(tmp_path))


@pytest.mark.parametrize("scheme", ["s3", "gs", "as", "hdfs", "http", "https"])
def test_a_remote_repository_is_refused_by_name(scheme: str) -> None:
    with pytest.raises(CommandFailed) as failure:
        repositories.checked((".", f"{scheme}://b/m"), may_be_empty=True)
    assert failure.value.code == ExitCode.USAGE
    assert failure.value.message == (
        f"model repository '{scheme}://b/m': remote repositories are not in this release; copy it "
        "to a local directory, or mount it, and give that"
    )


@pytest.mark.parametrize(
    "command",
    [["serve", "s3://b/m"], ["check", "s3://b/m"], ["tritonserver", "--model-repository=s3://b/m"]],
)
def test_every_command_refuses_a_remote_repository(
    command: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(command) != ExitCode.DONE
    assert "remote repositories are not in this release" in capsys.readouterr().err


def test_repositories_are_accepted(tmp_path: Path) -> None:
    plant(tmp_path, ["a/m/config.pbtxt", "b/7/1/model.onnx", "empty/"])
    both = (str(tmp_path / "a"), str(tmp_path / "b"))
    assert repositories.checked(both, may_be_empty=False) == both
    empty = (str(tmp_path / "empty"),)
    assert repositories.checked(empty, may_be_empty=True) == empty


def test_links_that_lead_nowhere_are_the_servers_to_tell(tmp_path: Path) -> None:
    for name, target in (("loop", "loop"), ("gone", "nothing")):
        (tmp_path / name).mkdir()
        (tmp_path / name / name).symlink_to(target)
        one = (str(tmp_path / name),)
        assert repositories.checked(one, may_be_empty=False) == one


def test_numbered_models_that_cannot_be_listed_are_the_servers_to_tell(tmp_path: Path) -> None:
    (tmp_path / "1").symlink_to("1")
    assert repositories.checked((str(tmp_path),), may_be_empty=False) == (str(tmp_path),)


def plant(root: Path, paths: list[str]) -> None:
    for path in paths:
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        if path.endswith("/"):
            (root / path).mkdir()
        else:
            (root / path).touch()


def test_the_run_directory_is_what_was_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", "/run/user/7")
    monkeypatch.delenv(RUN_DIR_VARIABLE, raising=False)
    assert run_dir.located("here") == f"{Path.cwd()}/here"
    assert run_dir.located(None, "x") == f"/run/user/7/naiad-{os.geteuid()}-x"
    monkeypatch.setenv(RUN_DIR_VARIABLE, "/there")
    assert run_dir.located(None) == "/there"


def test_a_run_directory_is_made_private_and_open_ones_are_refused(tmp_path: Path) -> None:
    fresh = tmp_path / "run"
    assert run_dir.prepare(str(fresh))
    assert not run_dir.prepare(str(fresh))
    assert fresh.stat().st_mode & 0o777 == 0o700
    fresh.chmod(0o777)
    with pytest.raises(CommandFailed, match="mode 0777: others could"):
        run_dir.prepare(str(fresh))


def test_paths_that_cannot_be_run_directories_are_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(CommandFailed, match="choose another --run-dir"):
        run_dir.prepare(str(tmp_path / "file"))
    with pytest.raises(CommandFailed, match=f"there is no {tmp_path}/wrong; create that first"):
        run_dir.prepare(str(tmp_path / "wrong" / "run"))
    assert not (tmp_path / "wrong").exists()
    with pytest.raises(CommandFailed, match="too long: a Unix socket path holds 107 bytes"):
        run_dir.prepare(str(tmp_path / ("x" * 100)))


def test_a_second_server_is_refused_by_the_pid_of_the_first(tmp_path: Path) -> None:
    first = run_dir.lock(str(tmp_path))
    with pytest.raises(CommandFailed, match=rf"\(pid {os.getpid()}\) already runs") as failure:
        run_dir.lock(str(tmp_path))
    assert failure.value.code == ExitCode.RUN_DIR
    os.close(first)
    os.close(run_dir.lock(str(tmp_path)))


def test_plain_tables_are_aligned_and_have_no_colours() -> None:
    text = table(("MODEL", "STATE", "N"), [("mlp", "READY", 2), ("identity", "UNAVAILABLE", None)])
    assert text == (
        "MODEL     STATE        N\n"
        "mlp       READY        2\n"
        "identity  UNAVAILABLE"
    )  # fmt: skip


def test_a_start_is_settled_when_nothing_is_on_its_way() -> None:
    assert is_settled({"server": {"phase": "serving"}})
    assert not is_settled({"server": {"phase": "loading"}})
    ready = {"name": "a", "version": 1, "state": "READY", "reason": ""}
    failed = {"name": "b", "version": 2, "state": "UNAVAILABLE", "reason": "no file"}
    assert failed_models({"models": [ready, failed]}) == ["b"]


def test_the_status_for_a_person_names_what_there_is() -> None:
    server = {"name": "naiad", "phase": "serving", "pid": 7, "started": 1000.0}
    model = {"name": "mlp", "version": 1, "state": "READY", "instances": 2, "reason": ""}
    instance = {"slot": "cpu-0", "pid": 12, "device": "cpu", "model": "mlp", "version": 1}
    text = render({"server": server, "models": [model], "instances": [instance]}, "/run/n", 1090.0)
    assert text.startswith("naiad on /run/n: serving, pid 7, up 90 s\n")
    assert re.search(r"^mlp +1 +READY +2 ", text, re.MULTILINE)
    assert re.search(r"^cpu-0 +12 +cpu +mlp ", text, re.MULTILINE)
    assert "naiad load" in render({"server": server, "models": [], "instances": []}, "/", 0)


@pytest.mark.parametrize(
    ("seconds", "text"), [(4.9, "4 s"), (180, "3 min"), (18_000, "5 h"), (200_000, "2 d")]
)
def test_durations(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_check_finds_what_serve_with_the_same_option_would_refuse(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "m" / "1").mkdir(parents=True)
    tensor = "data_type: TYPE_FP32 dims: 4 }"
    (tmp_path / "m" / "config.pbtxt").write_text(
        f'backend: "identity" input {{ name: "A" {tensor} output {{ name: "B" {tensor}'
        " instance_group { kind: KIND_GPU }"
    )
    assert main(["check", str(tmp_path)]) == ExitCode.FAILED
    assert "KIND_GPU, but no GPU is visible" in capsys.readouterr().out
    assert main(["check", "--on-missing-gpu", "fail", str(tmp_path)]) == ExitCode.FAILED
    capsys.readouterr()
    assert main(["check", "--on-missing-gpu=cpu", str(tmp_path)]) == ExitCode.DONE
    assert "m: ok" in capsys.readouterr().out
    assert main(["check", "--gpus=GPU-a", str(tmp_path)]) == ExitCode.DONE


def test_a_run_directory_on_a_full_disk_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(CommandFailed, match="No space left on device; make room") as failure:
        run_dir.lock(str(tmp_path))
    assert failure.value.code == ExitCode.RUN_DIR
    monkeypatch.undo()
    os.close(run_dir.lock(str(tmp_path)))


@pytest.mark.parametrize("command", ["serve .", "status", "load m", "infer m", "perf -m m"])
@pytest.mark.parametrize(
    ("option", "said"),
    [
        ("--name=", "the server's name is empty; give it one with --name, or leave the option out"),
        ("--name=a/b", "a server cannot be called 'a/b'; use letters, digits, - and _"),
        ("--run-dir=", "--run-dir is empty; name a directory, or leave the option out"),
    ],
)
def test_names_that_are_none(
    command: str, option: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*command.split(), option]) == ExitCode.USAGE
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"naiad: {said}")


def test_the_run_directory_of_somebody_else_is_told_from_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    where = str(tmp_path)
    with pytest.raises(CommandFailed, match="no server runs in") as failure:
        require_server(where)
    assert failure.value.code == ExitCode.NO_SERVER
    Path(Endpoints(where).clients_path).touch()
    require_server(where)
    monkeypatch.setattr(os, "access", lambda *_: False)
    with pytest.raises(CommandFailed, match=f"{where} belongs to uid {os.getuid()}") as failure:
        require_server(where)
    assert failure.value.code == ExitCode.RUN_DIR
    monkeypatch.setattr(os, "stat", forbidden)
    with pytest.raises(CommandFailed, match=f"{where} cannot be entered by uid") as failure:
        require_server(where)
    assert failure.value.code == ExitCode.RUN_DIR


def forbidden(*_: object) -> None:
    raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))


def test_a_directory_is_left_as_it_was_found(tmp_path: Path) -> None:
    where = tmp_path / "run"
    is_new = run_dir.prepare(str(where))
    held = run_dir.lock(str(where))
    (where / "slots").mkdir()
    run_dir.leave(str(where), held, may_remove=is_new)
    assert not where.exists()
    where.mkdir(mode=0o700)
    (where / "log").touch()
    for may_remove in (False, True):
        run_dir.leave(str(where), run_dir.lock(str(where)), may_remove=may_remove)
        assert os.listdir(where) == ["log"]


def test_a_broker_that_still_runs_keeps_its_directory(tmp_path: Path) -> None:
    held = run_dir.lock(str(tmp_path))
    broker = os.open(Endpoints(str(tmp_path)).lock_path, os.O_RDWR)
    fcntl.flock(broker, fcntl.LOCK_EX)
    run_dir.leave(str(tmp_path), held, may_remove=True)
    assert sorted(os.listdir(tmp_path)) == ["lock", "serve.lock"]
    os.close(broker)


def test_a_lock_that_was_removed_keeps_nobody_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Opened before its holder removed it, locked after: the file is nobody's any more."""
    flock = fcntl.flock

    def removed_meanwhile(descriptor: int, how: int) -> None:
        monkeypatch.setattr(fcntl, "flock", flock)
        os.unlink(tmp_path / "serve.lock")
        flock(descriptor, how)

    monkeypatch.setattr(fcntl, "flock", removed_meanwhile)
    held = run_dir.lock(str(tmp_path))
    with pytest.raises(CommandFailed, match="already runs"):
        run_dir.lock(str(tmp_path))
    os.close(held)


def test_only_the_usual_directory_is_known_to_be_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", "/run/user/7")
    monkeypatch.setenv(RUN_DIR_VARIABLE, "/there")
    assert run_dir.is_usual(f"/run/user/7/naiad-{os.geteuid()}-x", "x")
    assert not run_dir.is_usual(f"/run/user/7/naiad-{os.geteuid()}-x", "y")
    assert not run_dir.is_usual("/there", "x")
