"""Seeded scenarios: whatever dies, breaks or restarts, each request gets its one right answer.

A failing seed prints its story and the command that replays it. `NAIAD_SIMULATION_SCENARIOS` sets
how many seeds the short run takes; `make soak` runs SOAK_SEEDS.
"""

from __future__ import annotations

import os

import pytest

from naiad.protocol.errors import Code
from support.simulated_scenario import Simulation

SHORT_SEEDS = int(os.environ.get("NAIAD_SIMULATION_SCENARIOS", "200"))
SOAK_SEEDS = 10_000
CHUNK = 250
STORY_LINES = 60


def run(seed: int) -> None:
    """One scenario. When it fails it is run again for its story: a seed always does the same."""
    try:
        Simulation(seed).run()
    except Exception as fault:
        again = Simulation(seed, tells=True)
        with pytest.raises(type(fault)):
            again.run()
        token = getattr(fault, "token", 0)
        story = again.ledger.tale(token, STORY_LINES)
        command = f"python tests/simulation/replay.py {seed}"
        pytest.fail(f"{story}\n\n{type(fault).__name__}: {fault}\nreplay with: {command}")


@pytest.mark.parametrize("first", range(0, SHORT_SEEDS, 25))
def test_scenarios(first: int) -> None:
    for seed in range(first, min(first + 25, SHORT_SEEDS)):
        run(seed)


@pytest.mark.soak
@pytest.mark.parametrize("first", range(0, SOAK_SEEDS, CHUNK))
def test_many_scenarios(first: int) -> None:
    for seed in range(first, first + CHUNK):
        run(seed)


def test_a_seed_does_the_same_twice() -> None:
    stories = []
    for _ in range(2):
        simulation = Simulation(7, tells=True)
        simulation.run()
        stories.append(simulation.ledger.story)
    assert len(stories[0]) > 100
    assert stories[0] == stories[1]


def test_the_scenarios_do_contain_what_they_are_about() -> None:
    """Over some seeds: deaths while executing, restarts, resends, early batches, poison, drains,
    turns that others waited for, budgets that were used up, memory on GPUs of models that are on
    several."""
    kinds = ("deaths", "restarts", "resends", "reexecutions", "drains", "early", "turns", "budgets",
             "apart")  # fmt: skip
    seen = dict.fromkeys(kinds, 0)
    for seed in range(60):
        simulation = Simulation(seed)
        simulation.run()
        records = simulation.ledger.records.values()
        counters = simulation.server.scheduler.world.counters
        seen["deaths"] += sum(counters.worker_deaths.values())
        seen["restarts"] += simulation.server.restarts
        seen["resends"] += sum(record.resends for record in records)
        seen["reexecutions"] += sum(record.executions > 1 for record in records)
        seen["drains"] += simulation.server.exit_code is not None
        seen["early"] += counters.early_batches
        seen["turns"] += simulation.server.turns.passes
        spread = {model.name for model in simulation.plan.models if model.spans_gpus}
        seen["apart"] += sum(
            one.has_gpu_memory and one.executions > 0 and one.model in spread for one in records
        )
        seen["budgets"] += sum(
            record.error is not None and record.error[0] == Code.BUDGET_EXCEEDED
            for record in records
        )
    assert min(seen.values()) > 5, seen
