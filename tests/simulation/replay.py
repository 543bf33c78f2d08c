#!/usr/bin/env python3
"""Run scenarios again: `replay.py SEED` tells the story of one, `replay.py A-B` runs many."""

from __future__ import annotations

import argparse
import sys
import time
import traceback
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "tests")]

from support.simulated_scenario import Simulation  # noqa: E402

LINES = 80
COLUMNS = 400
"""Of a line: whole payloads stand in some."""


def tell(seed: int, lines: int) -> bool:
    """Run one seed with its story; whether it went well."""
    simulation = Simulation(seed, tells=True)
    try:
        simulation.run()
    except Exception as fault:
        token = getattr(fault, "token", 0)
        print(f"seed {seed}: the story of request {token} (0: of all)\n")
        for line in simulation.ledger.tale(token, lines).splitlines():
            print(line[:COLUMNS])
        print()
        traceback.print_exc(limit=-6)
        return False
    requests = len(simulation.ledger.records)
    print(f"seed {seed}: {simulation.server.steps} decisions, {requests} requests, well")
    return True


def run_many(first: int, last: int) -> list[int]:
    """Run a range of seeds without stories; those that failed."""
    failed = []
    begun = time.monotonic()
    for seed in range(first, last + 1):
        try:
            Simulation(seed).run()
        except Exception as fault:
            failed.append(seed)
            print(f"seed {seed}: {type(fault).__name__}: {str(fault)[:200]}", flush=True)
    count = last + 1 - first
    took_s = time.monotonic() - begun
    print(f"{count} scenarios in {took_s:.1f} s, {len(failed)} failed: {failed[:20]}")
    return failed


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("seeds", help="one seed, or a range such as 0-999")
    parser.add_argument("--lines", type=int, default=LINES, help="of the story, from its end")
    arguments = parser.parse_args()
    first, dash, last = arguments.seeds.partition("-")
    if dash:
        return 1 if run_many(int(first), int(last)) else 0
    return 0 if tell(int(first), arguments.lines) else 1


if __name__ == "__main__":
    sys.exit(main())
