"""One scrape: the pieces it asks for, who shares it, and brokers that change or say nothing."""

from __future__ import annotations

import os
import subprocess
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from naiad.metrics import host, scrape
from naiad.metrics.scrape import Scraper
from naiad.protocol.errors import Code, Unavailable
from support.exposition import parsed, total
from support.simulated_bench import MS, Bench, config, instances
from support.waiting import wait_until


class Broker:
    """The real core behind a function call; remembers what it was asked."""

    def __init__(self, *models: str, number: int = 1_000) -> None:
        self.bench = Bench(first_number=number)
        self.bench.world.about = {"pid": os.getpid(), "started": 1_700_000_000}
        self.asked: list[str | None] = []
        for name in models:
            self.bench.served(config(name, **instances(1, name)))

    def ask(self, after: str | None, seconds: float) -> Any:
        assert 0 < seconds <= scrape.SCRAPE_SECONDS_MAX
        self.asked.append(after)
        arguments = {} if after is None else {"after": after}
        return self.bench.control("counters", limit=2, **arguments)


def test_all_pieces_make_one_page() -> None:
    broker = Broker(*"abcde")
    broker.bench.ask(1, model="c")
    broker.bench.finish(broker.bench.worker_of(broker.bench.model("c")))
    found = parsed(Scraper(broker.ask).page())
    assert broker.asked == [None, "", "b", "d"]
    assert total(found, "naiad_model_ready") == 5
    assert total(found, "nv_inference_request_success") == 1
    assert total(found, "nv_inference_request_success", model="c", version="1") == 1
    assert total(found, "naiad_broker_resident_bytes") > 1e6
    assert total(found, "naiad_broker_process_open_fds") > 0
    assert total(found, "nv_cpu_memory_total_bytes") > total(found, "nv_cpu_memory_used_bytes") > 0
    assert 0 <= total(found, "nv_cpu_utilization") <= 1


def test_scrapes_at_the_same_time_share_one() -> None:
    broker = Broker("m")
    go_on = threading.Event()

    def ask(after: str | None, seconds: float) -> Any:
        assert go_on.wait(20)
        return broker.ask(after, seconds)

    scraper = Scraper(ask)
    with ThreadPoolExecutor(8) as pool:
        first = pool.submit(scraper.page)
        wait_until(first.running, "the first has begun")
        rest = [pool.submit(scraper.page) for _ in range(7)]
        wait_until(lambda: all(one.running() for one in rest), "the others have begun")
        go_on.set()
        pages = {one.result(20) for one in (first, *rest)}
    assert len(broker.asked) <= 2 * 2, "those that came late may have begun a second one"
    assert len(pages) <= 2
    assert scraper.page() not in pages, "the next one is made anew"


def test_a_fault_reaches_all_who_wait_and_is_over_then() -> None:
    broker = Broker("m")
    faults = [Unavailable("away")]

    def ask(after: str | None, seconds: float) -> Any:
        if faults:
            raise faults.pop()
        return broker.ask(after, seconds)

    scraper = Scraper(ask)
    with pytest.raises(Unavailable, match="away"):
        scraper.page()
    assert parsed(scraper.page())


def test_a_broker_that_is_replaced_midway() -> None:
    first, second = Broker(*"abcd"), Broker(*"abcd", number=9_000_000)
    second.bench.ask(1, model="d")
    second.bench.finish(second.bench.worker_of(second.bench.model("d")))

    def ask(after: str | None, seconds: float) -> Any:
        return (first if after in (None, "") else second).ask(after, seconds)

    found = parsed(Scraper(ask).page())
    assert total(found, "naiad_model_ready") == 4
    assert total(found, "nv_inference_request_success", model="d") == 1


def test_a_broker_that_never_comes_to_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scrape, "SCRAPE_SECONDS_MAX", 0.05)
    broker = Broker("m")

    def ask(after: str | None, seconds: float) -> Any:
        return {**broker.ask(after, seconds), "next": "a"}

    with pytest.raises(Unavailable, match=r"within 0\.05 s") as raised:
        Scraper(ask).page()
    assert raised.value.code == Code.TIMEOUT


def test_saturation_forgets_the_broker_before() -> None:
    first, second = Broker("m"), Broker("m", number=9_000_000)
    for broker in (first, second):
        broker.bench.ask(1, model="m")
    first.bench.now_ns += 10_000 * MS
    brokers = [first, first, second, second]

    def ask(after: str | None, seconds: float) -> Any:
        found = brokers[0].ask(after, seconds)
        if found["next"] is None:
            brokers.pop(0)
        return found

    scraper = Scraper(ask)
    scraper.page()
    assert total(parsed(scraper.page()), "naiad_saturation") == 0.0, "nothing was done in between"
    second.bench.now_ns += 1 * MS
    assert total(parsed(scraper.page()), "naiad_saturation") == 1.0, "the new one executes"


def test_processes_and_those_that_are_gone() -> None:
    me = host.process(os.getpid())
    assert me is not None
    assert me.cpu_seconds > 0
    assert me.resident_bytes > 1e6
    with subprocess.Popen(["true"]) as child:
        child.wait()
    assert host.process(child.pid) is None


def test_segments_are_counted_by_role_and_only_our_own() -> None:
    name = f"metrics-{os.getpid()}"
    files = {
        f"naiad.{name}.worker.7.{'0' * 16}": 8192,
        f"naiad.{name}.worker.8.{'1' * 16}": 4096,
        f"naiad.{name}.client.9.{'2' * 16}": 4096,
        f"naiad.{name}.client.9.wrong": 4096,
        f"naiad.{name}x.client.9.{'3' * 16}": 4096,
    }
    try:
        for file, size in files.items():
            with open(f"{host.SHM}/{file}", "wb") as segment:
                segment.write(b"x" * size)
        assert host.segments(name) == {"worker": (2, 12288), "client": (1, 4096)}
    finally:
        for file in files:
            os.unlink(f"{host.SHM}/{file}")
    assert host.segments(name) == {}
