"""Models come and go on request: make before break, all or nothing, the same answer each time."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from naiad.client import Client, Code, NaiadError, RequestError, Unavailable
from naiad.testing.server import Server, serve
from support.models import add_echo, add_python
from support.models_python import HANGS_IN_INITIALIZE, python_model
from support.waiting import wait_until

ARRAYS = {"INPUT0": np.arange(16, dtype=np.float32)}
CLIENTS = 8
RELOADS = 2


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    repository = tmp_path_factory.mktemp("repository")
    add_echo(repository, "echo")
    add_echo(repository, "other")
    return repository


@pytest.fixture(scope="module")
def server(repository: Path) -> Iterator[Server]:
    with serve(repository, arguments=["--control-mode", "explicit"]) as server:
        yield server


def adds(value: int, more: str = "") -> str:
    """A model.py that adds a number, by which one sees which generation answered."""
    return python_model(
        f"return [output(array_of(request) + {value}) for request in requests]", more=more
    )


def rows(client: Client, model: str) -> list[dict[str, Any]]:
    return [row for row in client.index() if row["name"] == model]


def pids(client: Client, model: str) -> set[int]:
    return {row["pid"] for row in client.status()["instances"] if row["model"] == model}


def test_nothing_is_loaded_without_being_asked_for_and_the_server_is_ready(client: Client) -> None:
    rows = client.index()
    assert "echo" in {row["name"] for row in rows}
    assert all(row.keys() == {"name"} for row in rows)
    assert client.live()
    assert client.ready()
    with pytest.raises(RequestError, match="unknown model: 'echo' is not found") as caught:
        client.infer("echo", ARRAYS)
    assert caught.value.code == Code.NOT_FOUND
    assert not client.model_ready("echo")


def test_a_model_serves_between_load_and_unload_and_the_server_stays_ready(
    client: Client, server: Server
) -> None:
    client.load("echo")
    assert client.model_ready("echo")
    assert rows(client, "echo") == [
        {"name": "echo", "version": "1", "state": "READY", "reason": ""}
    ]
    assert (client.infer("echo", ARRAYS)["OUTPUT0"] == ARRAYS["INPUT0"]).all()
    (worker,) = pids(client, "echo")
    client.unload("echo")
    with pytest.raises(NaiadError, match="'echo'"):
        client.infer("echo", ARRAYS)
    assert not client.model_ready("echo")
    assert client.ready(), "what was unloaded on purpose is not missed"
    wait_until(lambda: rows(client, "echo")[0]["state"] == "UNAVAILABLE", "it is unloaded")
    assert rows(client, "echo") == [
        {"name": "echo", "version": "1", "state": "UNAVAILABLE", "reason": "unloaded"}
    ]
    assert client.index(ready=True) == []
    wait_until(lambda: worker not in server.pids.values(), "its worker process has ended")


def test_unloading_what_nobody_knows_succeeds(client: Client) -> None:
    client.unload("never heard of")
    client.unload("never heard of", unload_dependents=True)
    assert rows(client, "never heard of") == []


def test_requests_in_flight_are_answered_when_their_model_is_unloaded(client: Client) -> None:
    client.load("echo")
    futures = [client.submit("echo", ARRAYS, parameters={"sleep_ms": 100}) for _ in range(4)]
    client.live()  # they have been sent before this was answered
    client.unload("echo")
    for future in futures:
        assert (future.result(timeout=20)["OUTPUT0"] == ARRAYS["INPUT0"]).all()


def test_loading_what_has_not_changed_does_nothing(client: Client) -> None:
    client.load("echo")
    client.infer("echo", ARRAYS)
    before = pids(client, "echo")
    client.load("echo")
    assert pids(client, "echo") == before
    (stats,) = client.statistics("echo")["model_stats"]
    assert stats["inference_count"] == 1


def test_an_older_file_put_back_is_a_change(client: Client, repository: Path) -> None:
    directory = add_python(repository, "restored", adds(2))
    client.load("restored")
    path = directory / "1" / "model.py"
    path.write_text(adds(1))
    os.utime(path, (1, 1))
    client.load("restored")
    assert client.infer("restored", ARRAYS)["OUTPUT0"][0] == 1
    (stats,) = client.statistics("restored")["model_stats"]
    assert stats["inference_count"] == 1, "statistics begin anew with each generation"
    client.unload("restored")


def test_a_load_has_ended_when_every_instance_serves(client: Client, repository: Path) -> None:
    add_echo(repository, "several", instances=3)
    client.load("several")
    states = [row["state"] for row in client.status()["instances"] if row["model"] == "several"]
    assert states == ["READY"] * 3
    client.unload("several")


class Asker(threading.Thread):
    """A client that asks one model over and over and keeps what it hears."""

    def __init__(self, server: Server, model: str) -> None:
        super().__init__()
        self._server = server
        self._model = model
        self.ended = threading.Event()
        self.values: list[int] = []
        self.faults: list[NaiadError] = []

    def run(self) -> None:
        with Client(self._server.run_dir) as client:
            while not self.ended.is_set() and not self.faults:
                try:
                    self.values.append(int(client.infer(self._model, ARRAYS)["OUTPUT0"][0]))
                except NaiadError as fault:
                    self.faults.append(fault)


def test_a_reload_under_load_fails_no_request_and_never_goes_back(
    client: Client, server: Server, repository: Path
) -> None:
    directory = add_python(repository, "reloaded", adds(0), instances=2)
    client.load("reloaded")
    askers = [Asker(server, "reloaded") for _ in range(CLIENTS)]
    for asker in askers:
        asker.start()
    for generation in range(1, RELOADS + 1):
        wait_until(
            lambda seen=generation - 1: all(seen in asker.values for asker in askers),  # type: ignore[misc]
            "every client was answered by the generation before",
        )
        (directory / "1" / "model.py").write_text(adds(generation))
        client.load("reloaded")
        assert client.infer("reloaded", ARRAYS)["OUTPUT0"][0] == generation
    for asker in askers:
        asker.ended.set()
    for asker in askers:
        asker.join(20)
        assert not asker.faults, asker.faults[0]
        assert asker.values == sorted(asker.values)
    wait_until(lambda: len(pids(client, "reloaded")) == 2, "the old instances are gone")
    client.unload("reloaded")


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        ({"1/model.py": "def broken(:\n"}, "SyntaxError"),
        ({"config.pbtxt": "max_batch_size: ${size}"}, "config.pbtxt:1:17"),
        ({"1/model.py": None}, "model.py"),
    ],
    ids=["code", "config", "missing file"],
)
def test_a_failed_reload_keeps_what_serves_and_says_so_until_it_is_mended(
    client: Client, repository: Path, spoil: dict[str, str | None], said: str
) -> None:
    directory = add_python(repository, "kept", adds(5))
    client.load("kept")
    worker = pids(client, "kept")
    ((name, text),) = spoil.items()
    intact = (directory / name).read_text()
    if text is None:
        (directory / name).unlink()
    else:
        (directory / name).write_text(text)
    with pytest.raises(NaiadError, match=said):
        client.load("kept")
    assert client.infer("kept", ARRAYS)["OUTPUT0"][0] == 5
    assert pids(client, "kept") >= worker
    (row,) = rows(client, "kept")
    assert row["state"] == "READY"
    assert row["reason"].startswith("last load failed: ")
    assert said in row["reason"]
    assert client.model_ready("kept")
    assert client.ready()
    (directory / name).write_text(intact)
    client.load("kept")
    assert rows(client, "kept")[0]["reason"] == ""
    client.unload("kept")


def test_a_model_whose_directory_is_gone_still_serves_and_says_so(
    client: Client, repository: Path
) -> None:
    directory = add_python(repository, "moved", adds(7))
    client.load("moved")
    directory.rename(repository.parent / "moved")
    with pytest.raises(NaiadError, match="failed to poll from model repository"):
        client.load("moved")
    assert client.infer("moved", ARRAYS)["OUTPUT0"][0] == 7
    assert "no directory" in rows(client, "moved")[0]["reason"]
    client.unload("moved")


def test_a_config_given_with_the_load_counts_until_the_next_plain_load(
    client: Client, repository: Path
) -> None:
    directory = add_echo(repository, "overridden", max_batch_size=4)
    client.load("overridden")
    config = client.config("overridden")
    config["max_batch_size"] = 2
    client.load("overridden", config)
    assert client.config("overridden")["max_batch_size"] == 2
    with pytest.raises(RequestError, match="batch-size must be <= 2"):
        client.infer("overridden", {"INPUT0": np.zeros((3, 16), np.float32)})
    assert "max_batch_size: 4" in (directory / "config.pbtxt").read_text()
    client.load("overridden")
    assert client.config("overridden")["max_batch_size"] == 4
    wait_until(lambda: len(pids(client, "overridden")) == 1, "the old instance is gone")
    before = pids(client, "overridden")
    client.load("overridden")
    assert pids(client, "overridden") == before
    client.unload("overridden")


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("{", "Invalid config override"),
        ("[]", "Invalid config override"),
        ('{"max_batchsize": 2}', "Invalid config override"),
        ('{"max_batch_size": -1}', "max_batch_size"),
        ('{"name": "another"}', "another"),
    ],
)
def test_a_bad_config_given_with_the_load_changes_nothing(
    client: Client, override: str, said: str
) -> None:
    client.load("echo")
    before = pids(client, "echo")
    with pytest.raises(RequestError, match=said):
        client.load("echo", override)
    assert client.model_ready("echo")
    client.load("echo")
    assert pids(client, "echo") == before
    assert rows(client, "echo")[0]["reason"] == ""


def hang_of(repository: Path, name: str) -> Path:
    """A model that loads for as long as this file exists."""
    add_python(repository, name, HANGS_IN_INITIALIZE)
    hang = repository / f"{name}.hang"
    hang.touch()
    return hang


def test_loads_of_the_same_files_at_once_are_one_load(
    client: Client, server: Server, repository: Path
) -> None:
    hang = hang_of(repository, "joined")
    calls = [threading.Thread(target=client.load, args=("joined",)) for _ in range(4)]
    for call in calls:
        call.start()
    wait_until(lambda: rows(client, "joined"), "it loads")
    hang.unlink()
    for call in calls:
        call.join(20)
        assert not call.is_alive()
    wait_until(lambda: "joined version 1 loaded" in server.log, "it is in the log")
    assert server.log.count("joined version 1 loaded") == 1
    client.unload("joined")


def test_an_unload_overtakes_a_load_which_says_so(client: Client, repository: Path) -> None:
    hang = hang_of(repository, "overtaken")
    faults: list[NaiadError] = []

    def load() -> None:
        try:
            client.load("overtaken")
        except NaiadError as fault:
            faults.append(fault)

    call = threading.Thread(target=load)
    call.start()
    wait_until(lambda: rows(client, "overtaken"), "it loads")
    client.unload("overtaken")
    call.join(20)
    assert not call.is_alive()
    assert "Newer operation has been applied" in faults[0].message
    hang.unlink()
    wait_until(lambda: not pids(client, "overtaken"), "its worker is gone")


def test_a_server_that_loads_everything_takes_no_orders(repository: Path, tmp_path: Path) -> None:
    add_echo(tmp_path, "echo")
    with serve(tmp_path) as server:
        client = server.client()
        for order in (client.load, client.unload):
            with pytest.raises(Unavailable, match="if polling is enabled") as caught:
                order("echo")
            assert not caught.value.retryable
            assert "--control-mode explicit" in caught.value.message
        assert client.model_ready("echo")


def test_polling_is_refused_by_name_at_the_start(tmp_path: Path) -> None:
    add_echo(tmp_path, "echo")
    command = [sys.executable, "-m", "naiad", "serve", str(tmp_path), "--control-mode", "poll"]
    run = subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )
    assert run.returncode != 0
    assert 'control mode "poll" is not in this release' in run.stderr
    assert "naiad load" in run.stderr
