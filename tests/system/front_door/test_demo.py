"""The demo's ways to ask: every door gives the same, and a difference does not go unseen."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from naiad.testing.server import Server
from support.front_door import GrpcDoor

SCRIPTS = str(Path(__file__).resolve().parents[3] / "scripts")
NAMES = ("demo", "demo_doors", "demo_inputs")
PAIR = {
    "INPUT0": np.arange(16, dtype=np.float32),
    "INPUT1": np.full(16, 0.1, np.float32),
}
TEXTS = {"INPUT0": np.array(["hello", "é", ""], dtype=object)}


@pytest.fixture(scope="module")
def demo() -> Iterator[ModuleType]:
    """The program, which finds its neighbours where it lies."""
    sys.path.insert(0, SCRIPTS)
    try:
        yield importlib.import_module("demo")
    finally:
        sys.path.remove(SCRIPTS)
        for name in NAMES:
            sys.modules.pop(name, None)


@pytest.mark.parametrize("has_curl", [True, False])
def test_every_door_gives_the_same(
    demo: Any, server: Server, grpc_door: GrpcDoor, has_curl: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not has_curl:
        monkeypatch.setenv("PATH", "")
    with demo.doors(server) as doors:
        assert len({door.name for door in doors}) == 6
        assert has_curl == any(door.name == "curl" for door in doors)
        for door in doors:
            for outputs in door.ask("add_sub", [PAIR] * 3):
                assert outputs.keys() == {"OUTPUT0", "OUTPUT1"}
                assert demo.same(outputs["OUTPUT0"], PAIR["INPUT0"] + PAIR["INPUT1"])
            (outputs,) = door.ask("bytes", [TEXTS])
            assert outputs["OUTPUT0"].tolist() == [b"hello", "é".encode(), b""]


def test_an_error_is_an_error_through_every_door(
    demo: Any, server: Server, grpc_door: GrpcDoor
) -> None:
    with demo.doors(server) as doors:
        for door in doors:
            with pytest.raises(Exception, match="nobody"):
                door.ask("nobody", [PAIR])


def test_another_answer_or_tensor_or_datatype_is_a_difference(demo: Any) -> None:
    answer = demo.Answer("m", "?", "!", True)
    seen = demo.Visit("a", [answer], [PAIR], 0.0)
    assert seen.agrees(demo.Visit("b", [answer], [PAIR], 1.0))
    for answers, tensors in (
        ([answer._replace(answer="?")], [PAIR]),
        ([answer], [{**PAIR, "INPUT1": PAIR["INPUT0"]}]),
        ([answer], [{**PAIR, "INPUT1": PAIR["INPUT1"].astype(np.float64)}]),
        ([answer], [{**PAIR, "INPUT1": PAIR["INPUT1"].reshape(4, 4)}]),
        ([answer], [{"INPUT0": PAIR["INPUT0"]}]),
    ):
        assert not seen.agrees(demo.Visit("b", answers, tensors, 1.0))
    texts = demo.Visit("a", [], [TEXTS], 0.0)
    assert not texts.agrees(demo.Visit("b", [], [{"INPUT0": TEXTS["INPUT0"][::-1]}], 0.0))
