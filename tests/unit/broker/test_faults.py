"""A fault of the broker itself costs the one thing it was doing: that fails by name, all else goes
on. Faults are planted in the parts of a real scheduler, and in what comes to those that may be
compiled, whose methods cannot be replaced."""

from __future__ import annotations

from typing import Any

import pytest

from naiad.broker.core import catalog
from naiad.broker.core import events as e
from naiad.broker.core.catalog import Catalog
from naiad.broker.core.named_regions import NamedRegions
from naiad.broker.core.queries import Queries
from naiad.broker.core.succession import Succession
from naiad.config.model import ModelConfig
from naiad.protocol import messages as m
from naiad.protocol.errors import Code, InternalError
from support.simulated_bench import CLIENT, OTHER, Bench, config

REGION = m.Region(7, "/own", 1, 2, 4096)
IMPOSSIBLE: Any = "no number"
"""Where the codec lets only numbers through."""


class Told(Bench):
    """A bench that keeps what the log would get."""

    def __init__(self, **how: Any) -> None:
        self.faults: list[e.TellFault] = []
        super().__init__(**how)

    def _take(self, actions: list[e.Action]) -> None:
        self.faults += [one for one in actions if type(one) is e.TellFault]
        super()._take(actions)

    def counted(self) -> int:
        return int(self.control("status")["counters"]["internal_faults"])


@pytest.fixture
def bench() -> Told:
    return Told()


def plant(patch: pytest.MonkeyPatch, owner: object, name: str) -> None:
    def broken(*_: object, **__: object) -> None:
        raise ZeroDivisionError(f"planted in {name}")

    patch.setattr(owner, name, broken)


def test_a_call_fails_alone(bench: Told, monkeypatch: pytest.MonkeyPatch) -> None:
    (slot,) = bench.served(config())
    plant(monkeypatch, Queries, "statistics")
    with pytest.raises(InternalError, match="the call statistics failed") as caught:
        bench.control("statistics")
    assert "planted" not in caught.value.message  # insides are for the log
    [fault] = bench.faults
    assert fault.what == "the call statistics"
    assert isinstance(fault.fault, ZeroDivisionError)
    assert fault.fault.__traceback__ is not None
    assert bench.counted() == 1
    bench.ask(1)
    bench.finish(slot)
    assert bench.is_answered(1)


@pytest.mark.parametrize(
    ("owner", "name"), [(Queries, "index"), (Catalog, "unload"), (NamedRegions, "register")]
)
def test_other_calls(bench: Told, monkeypatch: pytest.MonkeyPatch, owner: type, name: str) -> None:
    plant(monkeypatch, owner, name)
    operation = {"register": "region_register"}.get(name, name)
    with pytest.raises(InternalError):
        bench.control(operation, model="m", name="r", key="/r", byte_size=1)
    assert len(bench.faults) == 1


@pytest.mark.parametrize(("owner", "name"), [(catalog, "new_generation"), (Succession, "swap")])
def test_a_load_fails_alone_when_its_answer_comes(
    bench: Told, monkeypatch: pytest.MonkeyPatch, owner: object, name: str
) -> None:
    bench.served(config("other"))
    with monkeypatch.context() as patch:
        plant(patch, owner, name)
        call = bench.load(config())
    fault, _ = bench.replies[CLIENT, call]
    assert isinstance(fault, InternalError)
    assert [one.what for one in bench.faults] == ["the load of 'm'"]
    rows = {row["name"]: row for row in bench.index("m", "other")}
    assert rows["other"]["state"] == "READY"
    assert "fault of the server" in rows["m"]["reason"]
    bench.served(config(), edition="2")
    assert bench.control("model_ready", model="m")["ready"]


def test_a_reload_that_fails_so_leaves_the_old_one_serving(
    bench: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.served(config())
    plant(monkeypatch, ModelConfig, "from_json")
    call = bench.load(config(), edition="2")
    assert isinstance(bench.replies[CLIENT, call][0], InternalError)
    assert bench.control("model_ready", model="m")["ready"]


def test_one_model_of_the_start_does_not_keep_the_others_away(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bench = Told(explicit=False)
    bench.scheduler._catalog.start(None)
    bench.do()
    real = ModelConfig.from_json

    def broken(found: Any) -> ModelConfig:
        if found["name"] == "bad":
            raise KeyError("planted")
        return real(found)

    monkeypatch.setattr(ModelConfig, "from_json", broken)
    entries = tuple(
        {"name": name, "directory": "/m", "versions": [1], "config": config(name)}
        for name in ("bad", "good")
    )
    bench.do(e.RepositoryScanned(bench.scans.pop().token, entries, None))
    bench.loaded(bench.worker())
    states = {row["name"]: row.get("state") for row in bench.control("index")}
    assert states["good"] == "READY"
    assert states["bad"] == "UNAVAILABLE"


def test_a_worker_whose_completed_config_cannot_be_read_fails_its_load_alone(
    bench: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    call = bench.load(config())
    slot = bench.worker()
    plant(monkeypatch, ModelConfig, "from_json")
    bench.loaded(slot)
    assert bench.replies[CLIENT, call][0] is not None
    assert [one.what for one in bench.faults] == ["reading its completed configuration"]


def test_an_index_fails_when_the_helpers_answer_makes_no_sense(bench: Told) -> None:
    call = bench.ask_control("index")
    bench.do(e.RepositoryScanned(bench.scans.pop().token, ({},), None, only_names=True))
    assert isinstance(bench.replies[CLIENT, call][0], InternalError)


def test_a_region_fails_alone(bench: Told) -> None:
    bench.client()
    bench.do(
        e.RegionOffered(CLIENT, 77, REGION._replace(id=IMPOSSIBLE), None),
        e.NamedRegionStated(CLIENT, 78, "r", REGION._replace(size=IMPOSSIBLE), None, 0, 1),
    )
    assert isinstance(bench.replies[CLIENT, 77][0], InternalError)
    assert isinstance(bench.replies[CLIENT, 78][0], InternalError)
    assert bench.world.regions == {}


def test_what_the_shell_could_not_do_is_answered_and_counted(bench: Told) -> None:
    bench.client()
    bench.do(e.FaultArose(CLIENT, 5, "writing the reply to a call", ValueError("planted")))
    bench.do(e.FaultArose(0, 0, "reading a client's message", ValueError("planted")))
    assert isinstance(bench.replies[CLIENT, 5][0], InternalError)
    assert len(bench.replies) == 1
    assert bench.counted() == 2


def test_a_request_whose_admission_fails_is_answered_alone(bench: Told) -> None:
    (slot,) = bench.served(config())
    bench.client(OTHER)
    bench.ask(1, version=IMPOSSIBLE)
    assert bench.error(1)[0] == Code.INTERNAL
    assert [one.what for one in bench.faults] == ["the admission of this request"]
    assert bench.world.jobs() == []
    bench.ask(2)
    bench.finish(slot)
    assert bench.is_answered(2)
