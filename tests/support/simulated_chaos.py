"""What goes wrong in a scenario, again and again until the scenario is over."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING

from support.simulated_models import edited
from support.simulated_time import MICROSECOND, MILLISECOND

if TYPE_CHECKING:
    from support.simulated_scenario import Simulation
    from support.simulated_worker import SimulatedWorker

Act = Callable[["Simulation", Random], None]


@dataclass(frozen=True, slots=True)
class Disturbance:
    """`act` happens at random moments, on average `pauses_us` (one of them) apart.

    `share` is the probability that a scenario has it at all.
    """

    name: str
    act: Act
    share: float
    pauses_us: tuple[int, ...]
    needs_explicit: bool = False
    leads_to_kills: bool = False
    """The broker has workers killed for it."""

    def begin(self, simulation: Simulation, random: Random) -> None:
        pause_us = random.choice(self.pauses_us)

        def next_time() -> None:
            if simulation.is_disturbed:
                self.act(simulation, random)
                plan()

        def plan() -> None:
            delay_us = 1 + int(random.expovariate(1.0) * pause_us)
            simulation.agenda.after(delay_us * MICROSECOND, next_time)

        plan()


def _workers(simulation: Simulation) -> list[SimulatedWorker]:
    return [one for one in simulation.server.workers.alive.values() if one.is_alive]


def _kill_worker(simulation: Simulation, random: Random) -> None:
    """SIGKILL: a busy one rather than an idle one."""
    workers = _workers(simulation)
    busy = [one for one in workers if one.executing is not None]
    if busy and random.random() < 0.7:
        workers = busy
    if workers:
        simulation.server.workers.dies(random.choice(workers), "SIGKILL")


def _kill_after_results(simulation: Simulation, random: Random) -> None:
    """The next worker to finish a batch dies right after, its results perhaps on their way."""
    for worker in _workers(simulation):
        if worker.executing is not None:
            batch = worker.executing[0].id

            def look(worker: SimulatedWorker = worker, batch: int = batch) -> None:
                if batch in worker.finished:
                    simulation.server.workers.dies(worker, "SIGKILL")
                elif worker.is_alive and worker.executing is not None:
                    simulation.agenda.after(15 * MICROSECOND, look)

            look()
            return


def _hang_worker(simulation: Simulation, random: Random) -> None:
    """SIGSTOP; SIGCONT later, perhaps after the broker has given it up."""
    workers = [one for one in _workers(simulation) if not one.is_stopped]
    if workers:
        worker = random.choice(workers)
        for_ms = random.choice((5, 50, 300, 3_000))
        worker.stop(for_ms * MILLISECOND)
        if for_ms > 50:
            simulation.server.workers.cut(worker)


def _break_worker(simulation: Simulation, random: Random) -> None:
    workers = _workers(simulation)
    if workers:
        simulation.server.workers.cut(random.choice(workers))


def _break_client(simulation: Simulation, random: Random) -> None:
    clients = [one for one in simulation.clients if one.is_alive and one.connection]
    if clients:
        client = random.choice(clients)
        client.stay_away(random.choice((0, 0, 0, 5, 1_900, 2_500)) * MILLISECOND)


def _kill_client(simulation: Simulation, random: Random) -> None:
    clients = [one for one in simulation.clients if one.is_alive]
    if len(clients) > 1:
        simulation.server.clients.dies(random.choice(clients))


def _crash_broker(simulation: Simulation, random: Random) -> None:
    simulation.server.crash(random.choice((1, 20, 300, 3_000)) * MILLISECOND)


def _crash_while_hanging(simulation: Simulation, random: Random) -> None:
    """The broker restarts while a worker is stopped in the midst of an execution."""
    busy = [one for one in _workers(simulation) if one.executing and not one.is_stopped]
    if busy:
        random.choice(busy).stop(random.choice((1_000, 4_000, 8_000)) * MILLISECOND)
        simulation.server.crash(random.choice((1, 20)) * MILLISECOND)


def _crash_while_away(simulation: Simulation, random: Random) -> None:
    """The broker restarts, and a client that reads what a worker lent it comes back late."""
    reading = [one for one in simulation.clients if one.is_alive and one.leases]
    if reading:
        random.choice(reading).stay_away(random.choice((3_000, 6_000, 12_000)) * MILLISECOND)
        simulation.server.crash(random.choice((1, 20)) * MILLISECOND)


def _reload(simulation: Simulation, random: Random) -> None:
    """Edit a model and load it, or load it unchanged; sometimes in a way that fails."""
    server = simulation.server
    plan = random.choice(list(simulation.repository.plans.values()))
    if random.random() < 0.8:
        number = random.getrandbits(40)
        simulation.repository.edit(plan.name, edited(random, plan, number, trouble=0.4))
    if server.is_up:
        server.control("load", {"model": plan.name}, lambda error, result: None)


def _unload(simulation: Simulation, random: Random) -> None:
    """Unload a model and load it again soon."""
    server = simulation.server
    plan = random.choice(list(simulation.repository.plans.values()))
    simulation.troubled.add(plan.name)
    if server.is_up:
        server.control("unload", {"model": plan.name}, lambda error, result: None)

    def load() -> None:
        if server.is_up:
            server.control("load", {"model": plan.name}, lambda error, result: None)

    simulation.agenda.after(random.choice((0, 1, 100)) * MILLISECOND, load)


def _rename_region(simulation: Simulation, random: Random) -> None:
    """Unregister a named region, whoever uses it, and register another one."""
    server = simulation.server
    if server.named.open and server.is_up:
        ident = random.choice(sorted(server.named.open))
        simulation.unregister(ident)
        simulation.register()


DISTURBANCES = (
    Disturbance("kill worker", _kill_worker, 0.45, (15_000, 60_000, 300_000)),
    Disturbance("kill after results", _kill_after_results, 0.15, (20_000, 100_000)),
    Disturbance("hang worker", _hang_worker, 0.2, (50_000, 200_000), leads_to_kills=True),
    Disturbance("break worker", _break_worker, 0.2, (10_000, 100_000), leads_to_kills=True),
    Disturbance("break client", _break_client, 0.3, (10_000, 100_000, 500_000)),
    Disturbance("kill client", _kill_client, 0.25, (50_000, 300_000)),
    Disturbance("crash broker", _crash_broker, 0.3, (80_000, 400_000)),
    Disturbance("crash while hanging", _crash_while_hanging, 0.2, (80_000, 400_000)),
    Disturbance("crash while away", _crash_while_away, 0.1, (80_000, 400_000)),
    Disturbance("rename region", _rename_region, 0.15, (30_000, 200_000)),
    Disturbance("reload", _reload, 0.6, (20_000, 200_000), needs_explicit=True),
    Disturbance("unload", _unload, 0.4, (50_000, 400_000), needs_explicit=True),
)
