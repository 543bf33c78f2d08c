"""The kill matrix: clients ask, processes of the server die, every answer is accounted for.

`rage` does one run over a real server and returns a `Report`; `Report.table` is for people. Owns
the client processes it starts (see support.chaos_client); kills only processes of that server.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np

from naiad.client import Code, Future, InferResult
from naiad.protocol.messages import Parameters
from naiad.testing.server import Server
from support.chaos_client import Tally

ROOT: Final = Path(__file__).resolve().parents[2]
VALUES: Final = 16
"""FP32 values of a request, unless more are asked for."""
END_S_MAX: Final = 20.0
"""For the requests that are in flight when everybody is told to stop."""
LOOK_S: Final = 0.01
"""Between two looks at the server's status."""
STOPPED_NS: Final = 1_000_000_000
"""From SIGSTOP to SIGCONT: longer than it takes until a silent worker is killed."""
EXIT_CODE: Final = 77


class Way(StrEnum):
    """How a process ends."""

    KILL = "SIGKILL"
    SEGV = "SIGSEGV"
    EXIT = "os._exit"
    STOP = "SIGSTOP, SIGCONT"
    BROKER = "broker SIGKILL"


WORKER_WAYS: Final = (Way.KILL, Way.SEGV, Way.EXIT, Way.STOP)


SIGNALS: Final = {Way.KILL: signal.SIGKILL, Way.SEGV: signal.SIGSEGV, Way.STOP: signal.SIGSTOP}


class Kill(NamedTuple):
    """`back_ns`: how long until every instance was ready again; 0 if another kill came before."""

    way: Way
    pid: int
    at_ns: int
    back_ns: int = 0


@dataclass
class Report:
    """One run. `deaths` and `reexecutions` add up what each broker of the run had counted."""

    title: str
    kills: list[Kill] = field(default_factory=list)
    tallies: list[Tally] = field(default_factory=list)
    deaths: Counter[str] = field(default_factory=Counter)
    reexecutions: Counter[str] = field(default_factory=Counter)
    poisoned: int = 0

    def sum(self, name: str) -> int:
        return sum(getattr(tally, name) for tally in self.tallies)

    def errors(self) -> list[str]:
        return [error for tally in self.tallies for error in tally.errors]

    def count(self, *ways: Way) -> int:
        return sum(kill.way in ways for kill in self.kills)

    def recoveries_ms(self, way: Way) -> list[float]:
        """For each kill: how long the requests that were in flight then still took, in ms."""
        slow = [pair for tally in self.tallies for pair in tally.slow]
        found = []
        for kill in self.kills:
            if kill.way is way:
                ends = [end - kill.at_ns for start, end in slow if start <= kill.at_ns <= end]
                found.append(max(ends, default=0) / 1e6)
        return found

    def table(self) -> str:
        """Figures as lines of text."""
        latencies = sorted(itertools.chain(*(tally.latencies_us for tally in self.tallies)))
        lines = [
            f"{self.title}: {self.sum('right'):,} right answers, {self.sum('wrong')} wrong,"
            f" {self.sum('failed')} failed, {self.sum('trespasses')}"
            f" trespasses; latency p50 {_part(latencies, 0.5) / 1e3:.1f} ms,"
            f" p99 {_part(latencies, 0.99) / 1e3:.1f} ms, max {_part(latencies, 1) / 1e3:.0f} ms",
            f"  deaths counted {dict(self.deaths)}, executed again {dict(self.reexecutions)},"
            f" poisoned {self.poisoned}",
            "  ended by            kills  answered again p50   max     all instances p50   max",
        ]
        for way in Way:
            kills = [kill for kill in self.kills if kill.way is way]
            if kills:
                answered = sorted(self.recoveries_ms(way))
                back = sorted(kill.back_ns / 1e6 for kill in kills if kill.back_ns)
                lines.append(
                    f"  {way:<18} {len(kills):>6} {_part(answered, 0.5):>16.0f} ms"
                    f" {_part(answered, 1):>5.0f} ms {_part(back, 0.5):>12.0f} ms"
                    f" {_part(back, 1):>5.0f} ms"
                )
        return "\n".join(lines)


def _part(ordered: Sequence[float], part: float) -> float:
    """A quantile of sorted values; 0 of none."""
    return ordered[round((len(ordered) - 1) * part)] if ordered else 0.0


def is_alive(pid: int) -> bool:
    """Whether there is such a process that is not just waiting to be reaped."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


@contextlib.contextmanager
def clients(
    server: Server,
    model: str,
    *,
    count: int = 8,
    in_flight: int = 2,
    values: int = VALUES,
    transport: str = "inline",
) -> Iterator[list[Tally]]:
    """Client processes, every second one asyncio, asking for the length of the with block.

    The list is filled with their tallies at its end.
    """
    environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT / 'tests'}"}
    tallies: list[Tally] = []
    processes: list[subprocess.Popen[str]] = []
    try:
        for index in range(count):
            kind = "asyncio" if index % 2 else "blocking"
            arguments = [str(server.run_dir), model, kind, str(index), str(in_flight)]
            arguments += [str(values), transport]
            processes.append(
                subprocess.Popen(
                    [sys.executable, "-m", "support.chaos_client", *arguments],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    env=environment,
                    text=True,
                )
            )
        for process in processes:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n", "a client process did not begin"
        yield tallies
        for process in processes:
            assert process.stdin is not None
            process.stdin.close()
        for process in processes:
            assert process.stdout is not None
            line = process.stdout.readline()
            assert line, f"a client process ended without a word: {process.wait(END_S_MAX)}"
            tallies.append(Tally(**json.loads(line)))
            assert process.wait(END_S_MAX) == 0
    finally:
        for process in processes:
            process.kill()
            process.wait()
            for stream in (process.stdin, process.stdout):
                if stream is not None:
                    stream.close()


class Rage:
    """Kills in turn, and watches what the broker tells about it."""

    def __init__(self, server: Server, model: str, values: int, seed: int) -> None:
        self._server = server
        self._values = values
        self._model = model
        self._random = random.Random(seed)
        self._client = server.client(role="rage", connect_timeout_s=60.0)
        self._ways = itertools.cycle(WORKER_WAYS)
        self._stopped: dict[int, int] = {}
        """Processes to let go on, and when."""
        self._pending: list[Kill] = []
        self._counted: dict[str, Any] = {}
        self._suicides: list[Future[InferResult]] = []
        self._killed: set[int] = set()
        self.report = Report("")
        self._instances = 0

    def run(self, seconds: float, worker_every_s: float, broker_every_s: float | None) -> Report:
        start = time.monotonic()
        end = start + seconds
        worker_due = start + worker_every_s
        broker_due = start + (broker_every_s or 0)
        while (now := time.monotonic()) < end:
            rows = self._look()
            if now >= worker_due:
                worker_due += worker_every_s
                self._kill_worker(rows)
            elif broker_every_s and now >= broker_due:
                broker_due += broker_every_s
                self._kill_broker()
            time.sleep(LOOK_S)
        self._settle()
        return self.report

    def _settle(self) -> None:
        """Until every instance is back and every suicide has its answer."""
        end = time.monotonic() + END_S_MAX
        while self._pending or self._stopped:
            assert time.monotonic() < end, f"not back: {self!r}: {self._look()}"
            self._look()
            time.sleep(LOOK_S)
        for future in self._suicides:
            fault = future.exception(END_S_MAX)
            assert getattr(fault, "code", None) == Code.POISON_REQUEST, f"{fault!r}"
        self._look()
        self._take_counters()

    def __repr__(self) -> str:
        open_count = sum(not future.done() for future in self._suicides)
        killed = sorted(self._killed)
        return f"<rage: killed {killed}, {open_count} suicides unanswered, {self._pending}>"

    def _look(self) -> list[dict[str, Any]]:
        """The instances; notes which kills are over."""
        self._let_go()
        status = self._client.status()
        now_ns = time.monotonic_ns()
        self._counted = status["counters"]
        rows = [row for row in status["instances"] if row["model"] == self._model]
        self._instances = max(self._instances, len(rows))
        is_back = (
            len(rows) == self._instances
            and all(row["state"] in ("READY", "BUSY") for row in rows)
            and not any(row["pid"] in self._killed for row in rows)
            and all(future.done() for future in self._suicides)
        )
        if is_back and self._pending:
            last = self._pending.pop()
            self.report.kills += self._pending
            self.report.kills.append(last._replace(back_ns=now_ns - last.at_ns))
            self._pending.clear()
        return rows

    def _kill_worker(self, rows: list[dict[str, Any]]) -> None:
        serving = [row["pid"] for row in rows if row["state"] in ("READY", "BUSY")]
        serving = [pid for pid in serving if pid not in self._killed and is_alive(pid)]
        if not serving:
            return
        pid = self._random.choice(serving)
        way = next(self._ways)
        now_ns = time.monotonic_ns()
        self._pending.append(Kill(way, pid, now_ns))
        if way is Way.EXIT:
            self._ask_for_suicide()
            return
        self._killed.add(pid)
        if way is Way.STOP:
            self._stopped[pid] = now_ns + STOPPED_NS
        with contextlib.suppress(ProcessLookupError):  # it died by itself at this moment
            os.kill(pid, SIGNALS[way])

    def _ask_for_suicide(self) -> None:
        values = np.full((1, self._values), len(self._suicides), np.float32)
        values[0, 0] = -1  # no client process has this number
        parameters: Parameters = {"exit": EXIT_CODE}
        asked = self._client.submit(self._model, {"INPUT0": values}, parameters=parameters)
        self._suicides.append(asked)

    def _let_go(self) -> None:
        """SIGCONT for who was stopped long enough; usually it is dead by now."""
        for pid, until_ns in list(self._stopped.items()):
            if time.monotonic_ns() >= until_ns:
                del self._stopped[pid]
                self._killed.discard(pid)  # with the broker dead as well it may have survived
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGCONT)

    def _kill_broker(self) -> None:
        pid = self._server.pids.get("broker")
        if pid is None or pid in self._killed:
            return
        self._take_counters()
        self._killed.add(pid)
        self._pending.append(Kill(Way.BROKER, pid, time.monotonic_ns()))
        os.kill(pid, signal.SIGKILL)

    def _take_counters(self) -> None:
        """Add what the broker of now has counted; the next one begins at zero."""
        self.report.deaths.update(self._counted.get("worker_deaths", {}))
        self.report.reexecutions.update(self._counted.get("reexecutions", {}))
        self.report.poisoned += self._counted.get("poison_requests", 0)
        self._counted = {}


def rage(
    server: Server,
    model: str,
    *,
    title: str,
    seconds: float,
    worker_every_s: float,
    broker_every_s: float | None = None,
    client_count: int = 8,
    values: int = VALUES,
    transport: str = "inline",
    seed: int = 1,
) -> Report:
    """Client processes ask `model` for so long while its workers, and the broker, are killed.

    Ends when every instance is back and every request is answered.
    """
    with clients(server, model, count=client_count, values=values, transport=transport) as tallies:
        rager = Rage(server, model, values, seed)
        report = rager.run(seconds, worker_every_s, broker_every_s)
    report.title = title
    report.tallies = tallies
    return report
