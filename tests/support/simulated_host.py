"""What surrounds a simulated broker: the supervisor that starts workers, and the repository."""

from __future__ import annotations

from collections import Counter
from random import Random
from typing import TYPE_CHECKING

from naiad.broker.core import events as e
from naiad.protocol import messages as m
from support.simulated_models import Edition, ModelPlan
from support.simulated_time import MICROSECOND, MILLISECOND, Agenda
from support.simulated_worker import SimulatedWorker

if TYPE_CHECKING:
    from support.simulated_server import Server

WORKERS_MAX = 32


class Supervisor:
    """Keeps as many workers alive as the broker wants, never fewer for long, never ends one."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._wanted: dict[str, int] = {}
        """By device."""
        self._started = 0
        self.is_closing = False

    def opens(self) -> None:
        self._server.tell(e.SupervisorOpened())

    def wants(self, want: m.Want) -> None:
        self._wanted[want.device] = min(want.slots, WORKERS_MAX)
        self._fill()

    def exited(self) -> None:
        self._server.agenda.after(MILLISECOND, self._fill)

    def _fill(self) -> None:
        server = self._server
        if self.is_closing or server.exit_code is not None:
            return
        alive = Counter(one.device for one in server.workers.alive.values() if one.is_alive)
        for device, wanted in self._wanted.items():
            for _ in range(wanted - alive[device]):
                self._started += 1
                key = 1_000_000 + self._started
                server.workers.alive[key] = SimulatedWorker(
                    server, device, key, 10_000 + self._started, Random(server.random.random())
                )


class Repository:
    """Editions of models by directory, and the helper that answers questions about them."""

    def __init__(self, agenda: Agenda, random: Random, plans: list[ModelPlan]) -> None:
        self._agenda = agenda
        self._random = random
        self.plans = {plan.name: plan for plan in plans}
        self._editions = {plan.edition.directory: plan.edition for plan in plans}

    def edit(self, name: str, edition: Edition) -> None:
        self.plans[name].edition = edition
        self._editions[edition.directory] = edition

    def edition_of(self, directory: str) -> Edition:
        return self._editions[directory]

    def ask(self, server: Server, token: int, names: tuple[str, ...] | None) -> None:
        """Answer later what is there then. An unknown name is answered with its absence."""
        wanted = tuple(self.plans) if names is None else names

        def answer() -> None:
            entries = tuple(
                self.plans[name].edition.entry(name)
                if name in self.plans
                else {"name": name, "missing": "no directory of that name"}
                for name in wanted
            )
            server.tell(e.RepositoryScanned(token, entries, None))

        self._agenda.after(self._random.randint(100, 5_000) * MICROSECOND, answer)
