"""The repository helper as a process: it answers, and it ends with whoever started it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import pytest

from naiad.config.frames import FrameReader, pack_frame

SOURCE = Path(__file__).resolve().parents[3] / "src"
SECONDS_MAX = 30


class Helper:
    """One helper process and the requests to it."""

    def __init__(self) -> None:
        environment = {**os.environ, "PYTHONPATH": str(SOURCE)}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "naiad.config.helper"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=environment,
        )
        self._reader = FrameReader()

    @property
    def stdin(self) -> IO[bytes]:
        assert self.process.stdin is not None
        return self.process.stdin

    def send(self, *requests: dict[str, Any]) -> None:
        self.stdin.write(b"".join(map(pack_frame, requests)))
        self.stdin.flush()

    def receive(self, count: int) -> list[dict[str, Any]]:
        assert self.process.stdout is not None
        replies: list[dict[str, Any]] = []
        while len(replies) < count:
            data = os.read(self.process.stdout.fileno(), 2**16)
            assert data, "the helper ended"
            replies += self._reader.feed(data)
        return replies

    def end(self) -> int:
        self.stdin.close()
        return self.process.wait(SECONDS_MAX)


@pytest.fixture
def helper() -> Iterator[Helper]:
    one = Helper()
    yield one
    one.process.kill()
    one.process.wait()
    for pipe in (one.process.stdin, one.process.stdout):
        assert pipe is not None
        pipe.close()


def test_answers_in_order_and_ends_when_stdin_closes(helper: Helper, tmp_path: Path) -> None:
    (tmp_path / "m" / "1").mkdir(parents=True)
    (tmp_path / "m" / "config.pbtxt").write_text('backend: "identity"')
    helper.send(
        {"id": 1, "op": "scan", "repositories": [str(tmp_path)]},
        {"id": 2, "op": "nonsense"},
        {"id": 3, "op": "scan", "repositories": [str(tmp_path)], "names": ["m"]},
    )

    first, second, third = helper.receive(3)

    assert first["result"]["models"] == third["result"]["models"]
    assert second["error"][0] == "protocol_error"
    assert helper.end() == 0


def test_a_name_that_is_not_utf8_survives_the_way(helper: Helper, tmp_path: Path) -> None:
    (tmp_path / "m\udcff" / "1").mkdir(parents=True)
    (tmp_path / "m\udcff" / "config.pbtxt").write_text('backend: "identity"')
    helper.send({"id": 1, "op": "scan", "repositories": [str(tmp_path)]})

    (reply,) = helper.receive(1)

    (found,) = reply["result"]["models"]
    assert (found["name"], found["directory"]) == ("m\\xff", f"{tmp_path}/m\udcff")


def test_a_broken_stream_ends_it_with_a_code(helper: Helper) -> None:
    helper.stdin.write(b"\xff\xff\xff\xff")
    helper.stdin.flush()

    assert helper.process.wait(SECONDS_MAX) == 1


def test_the_broker_side_loads_no_protobuf() -> None:
    modules = "model settings parameters names versions frames refusals validate normalise"
    code = (
        f"import importlib, sys\nfor name in '{modules}'.split():\n"
        "    importlib.import_module('naiad.config.' + name)\n"
        "loaded = {name.partition('.')[0] for name in sys.modules}\n"
        "assert not loaded & {'google', 'numpy', 'zmq', 'asyncio'}, loaded"
    )

    command = [sys.executable, "-c", code]
    environment = {**os.environ, "PYTHONPATH": str(SOURCE)}
    assert subprocess.run(command, check=False, env=environment).returncode == 0
