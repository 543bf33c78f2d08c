"""What the broker's decisions cost: the scheduler alone, with scripted clients and slots.

    PYTHONPATH=src python -m benchmarks.core [--rounds 5] [--users 100] [--profile]

One request's cost is all the time spent in `Scheduler.handle` for it: full admission (validation,
budgets, a deadline, its place in the queue), its share of a batch, its result and its answer. No
socket, no codec. As in the loop, one call of `handle` takes in the results of a batch and the next
one the requests that come in their place: one message for each client that has some. Batches of 1
are the worst case, batches of 64 what 64 requests in flight are. Prints a markdown table; the exit
code is 1 when a line misses the bar.
"""

from __future__ import annotations

import argparse
import cProfile
import gc
import pstats
import statistics
import sys
from collections import deque
from time import perf_counter_ns
from typing import Any, Final, NamedTuple

from naiad.broker.core import events as e
from naiad.broker.core.scheduler import Scheduler
from naiad.broker.core.world import Limits
from naiad.protocol import messages as m

BAR_US: Final = 25.0
RATIO_MAX: Final = 1.3
ITEM_BYTES: Final = 64
SLOT_OF_MODEL: Final = 1_000_000
STEP_NS: Final = 10_000
ROWS: Final = (1, 8, 64)
INTERRUPTED: Final = 8
"""A step that takes this many times the usual was interrupted by somebody else, and is left out."""


class Case(NamedTuple):
    """`queued` requests wait at all times; `rows` 1 is the default scheduler, else the batcher."""

    queued: int
    clients: int
    models: int
    rows: int
    users: int = 0
    """Of whom each request is one's, with both keys; 0: nobody's."""


class Script:
    """One scheduler with its clients and slots, brought to a steady backlog."""

    def __init__(self, case: Case) -> None:
        self.case = case
        self.now_ns = 1_000_000_000
        self.spent: list[tuple[int, int]] = []
        """(nanoseconds, requests) of each step."""
        self.scheduler = Scheduler(
            incarnation=1, server="benchmark", software="0", first_number=1, explicit=True,
            limits=Limits(
                session_requests_max=100_000, user_requests_max=0, user_bytes_max=2**40, spares=0
            ),
        )  # fmt: skip
        self._sent: deque[tuple[int, m.Batch]] = deque()
        self._next = 0
        self.answered = 0
        self._take(self.scheduler.start((), None, self.now_ns))
        self.names = [f"model_{number}" for number in range(case.models)]
        for number, name in enumerate(self.names):
            self._serve(number, name)
        for client in range(case.clients):
            self._handle(e.SessionOpened(client + 1, "client", 1, ()))
        for _ in range(case.queued + case.models * case.rows):
            for event in self._requests(1):
                self._handle(event)

    def _serve(self, number: int, name: str) -> None:
        config = _config(name, self.case.rows)
        self._handle(e.SessionOpened(10_000_000, "operator", 1, ()))
        actions = self._handle(e.ControlAsked(10_000_000, number, "load", {"model": name}, b""))
        token = next(one.token for one in actions if isinstance(one, e.ScanRepository))
        entry = {"name": name, "directory": "/x", "versions": [1], "config": config}
        self._handle(e.RepositoryScanned(token, (entry,), None))
        slot = SLOT_OF_MODEL + number
        hello = m.SlotHello(b"", str(slot), "cpu", 1, "0", (), 0, 0, "", 0, (), (), ())
        actions = self._handle(e.SlotOpened(slot, hello, 1))
        load = next(
            one.message
            for one in actions
            if isinstance(one, e.TellSlot) and isinstance(one.message, m.Load)
        )
        self._handle(e.InstanceLoaded(slot, load.instance, None, 1, config))

    def _handle(self, event: e.Event) -> list[e.Action]:
        self.now_ns += STEP_NS
        actions = self.scheduler.handle((event,), self.now_ns)
        self._take(actions)
        return actions

    def _take(self, actions: list[e.Action]) -> None:
        for action in actions:
            if isinstance(action, e.SendBatch):
                self._sent.append((action.slot, action.batch))
            elif isinstance(action, e.SendAnswers):
                self.answered += len(action.answers)

    def _requests(self, count: int) -> list[e.RequestsArrived]:
        """The next requests, each client's in one message."""
        by_client: dict[int, list[m.InferRequest]] = {}
        for _ in range(count):
            client = self._next % self.case.clients + 1
            by_client.setdefault(client, []).append(self._request(len(by_client.get(client, ()))))
        return [
            e.RequestsArrived(client, tuple(requests), [bytes(ITEM_BYTES * len(requests))])
            for client, requests in by_client.items()
        ]

    def _request(self, place: int) -> m.InferRequest:
        """The next one; its tensor is number `place` of its message."""
        number = self._next
        self._next += 1
        case = self.case
        shape = (ITEM_BYTES // 4,) if case.rows == 1 else (1, ITEM_BYTES // 4)
        tensor = m.Tensor("X", "FP32", shape, 0, 0, place * ITEM_BYTES, ITEM_BYTES)
        model = self.names[number // case.rows % case.models]
        user = f"user {number % case.users}" if case.users else ""
        return m.InferRequest(
            number, 1, model, -1, "", (tensor,), (), timeout_us=3_600_000_000,
            accounting_key=user, fairness_key=user,
        )  # fmt: skip

    def step(self) -> None:
        """The worker that waited longest answers; as many new requests come as it answered."""
        slot, batch = self._sent.popleft()
        count = len(batch.requests)
        results = []
        for index, request in enumerate(batch.requests):
            shape = request.inputs[0].shape
            output = m.Tensor("Y", "FP32", shape, 0, 0, index * ITEM_BYTES, ITEM_BYTES)
            results.append(m.BatchResult(None, (output,)))
        message = m.Results(batch.id, tuple(results), m.Durations(10, 100, 10), 0, ())
        finished = e.BatchFinished(slot, message, [bytes(count * ITEM_BYTES)])
        turns: tuple[list[e.Event], ...] = ([finished], [*self._requests(count)])
        handle = self.scheduler.handle
        now_ns = self.now_ns
        begun_ns = perf_counter_ns()
        done = [handle(turn, now_ns) for turn in turns]
        self.spent.append((perf_counter_ns() - begun_ns, count))
        self.now_ns = now_ns + STEP_NS
        for actions in done:
            self._take(actions)

    def run(self, requests: int) -> float:
        """Microseconds per request over about this many."""
        self.spent = []
        self.answered = 0
        while self.answered < requests:
            self.step()
        usual = statistics.median(ns / count for ns, count in self.spent)
        counted = [one for one in self.spent if one[0] / one[1] <= INTERRUPTED * usual]
        return sum(ns for ns, _ in counted) / sum(count for _, count in counted) / 1e3


def _config(name: str, rows: int) -> dict[str, Any]:
    tensor = {"data_type": "TYPE_FP32", "dims": [ITEM_BYTES // 4]}
    config: dict[str, Any] = {
        "name": name,
        "backend": "identity",
        "max_batch_size": 0 if rows == 1 else rows,
        "input": [{"name": "X", **tensor}],
        "output": [{"name": "Y", **tensor}],
        "instance_group": [{"name": name, "kind": "KIND_CPU", "count": 1}],
    }
    if rows > 1:
        config["dynamic_batching"] = {}
    return config


def measure(case: Case, requests: int, rounds: int) -> float:
    """Median over rounds, each on a fresh scheduler; collection as in the broker: never midway."""
    found = []
    for _ in range(rounds):
        script = Script(case)
        script.run(requests // 10)
        gc.collect()
        gc.freeze()
        found.append(script.run(requests))
        gc.unfreeze()
    return statistics.median(found)


def table(requests: int, rounds: int, users: int) -> bool:
    """Print the table; whether every line reaches the bar."""
    print("| batches of | clients | models | 1 queued | 1,000 queued | 10,000 queued | ratio |")
    print("|---|---|---|---|---|---|---|")
    is_reached = True
    gc.disable()
    for rows in ROWS:
        base_us = 0.0
        for clients, models in ((1, 1), (200, 1), (1, 200), (200, 200)):
            found = [
                measure(Case(queued, clients, models, rows, users), requests, rounds)
                for queued in (1, 1_000, 10_000)
            ]
            base_us = base_us or found[0]
            ratio = max(found) / base_us
            is_reached = is_reached and max(found) <= BAR_US and ratio <= RATIO_MAX
            cells = " | ".join(f"{one:.1f}" for one in found)
            print(f"| {rows} | {clients} | {models} | {cells} | {ratio:.2f} |", flush=True)
    print(
        f"\nMicroseconds per request. The bar: at most {BAR_US:.0f}, and at most {RATIO_MAX} times"
        " the first figure of the block:"
        f" {'reached' if is_reached else 'missed'}."
    )
    return is_reached


def profile(requests: int) -> None:
    """Where the time goes, at 1,000 queued, 200 clients, one model, batches of 64."""
    script = Script(Case(1_000, 200, 1, 64))
    profiler = cProfile.Profile()
    profiler.enable()
    script.run(requests)
    profiler.disable()
    pstats.Stats(profiler).sort_stats("tottime").print_stats(25)


def main() -> int:
    parser = argparse.ArgumentParser(description="The cost of the broker's decisions.")
    parser.add_argument("--requests", type=int, default=20_000, help="per figure and round")
    parser.add_argument("--rounds", type=int, default=5, help="the median of these counts")
    parser.add_argument("--users", type=int, default=0, help="that take turns; 0: none")
    parser.add_argument("--profile", action="store_true", help="show where the time goes instead")
    arguments = parser.parse_args()
    if arguments.profile:
        profile(arguments.requests)
        return 0
    return 0 if table(arguments.requests, arguments.rounds, arguments.users) else 1


if __name__ == "__main__":
    sys.exit(main())
