"""A scenario from a seed: models, clients and what goes wrong, then the run and its end.

python tests/simulation/replay.py SEED      tells the story of one
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from random import Random

from naiad.broker.core import events as e
from naiad.broker.core.deadlines import NEVER_NS
from naiad.broker.core.world import Limits
from naiad.protocol import messages as m
from naiad.protocol.errors import Code
from support.simulated_chaos import DISTURBANCES, Disturbance
from support.simulated_checks import check_empty
from support.simulated_client import SimulatedClient
from support.simulated_host import Repository
from support.simulated_ledger import Ledger, Record, Violation
from support.simulated_links import DYING_US, UNDYING_US
from support.simulated_models import ModelPlan, random_model
from support.simulated_regions import REGION_BYTES
from support.simulated_requests import ClientPlan
from support.simulated_server import Server
from support.simulated_time import MICROSECOND, MILLISECOND, SECOND, Agenda

READY_WITHIN_NS = 5 * SECOND
QUIET_WITHIN_NS = 200 * SECOND
"""All is answered within this after the last disturbance: the longest retry pause is 60 s."""
LONG_AFTER_NS = 700 * SECOND
"""Longer than any timer the scheduler ever sets."""
DRAIN_NS = 60 * SECOND
USERS = ("", "ada", "ben", "cyd", "dot")
DEATHS_SUSPICIOUS = 4
"""In a row: from here on a model may rightly have been given up (the crash budget is 5)."""


@dataclass(slots=True)
class Plan:
    """What a seed stands for."""

    models: list[ModelPlan]
    clients: list[ClientPlan]
    disturbances: list[Disturbance]
    lasts_ns: int
    explicit: bool
    drains: bool
    limits: Limits
    is_strict: bool
    """No process dies, no connection breaks: every request is executed at most once."""


def plan_of(random: Random) -> Plan:
    can_time_out = random.random() < 0.5
    has_limits = random.random() < 0.3
    models = [
        random_model(random, f"m{n}", can_time_out=can_time_out, has_limits=has_limits)
        for n in range(random.choice((1, 1, 2, 4)))
    ]
    for model in models:
        if random.random() < 0.1:
            model.edition.config["parameters"]["naiad.retry"] = {"string_value": "false"}
    clients = [
        _client_plan(random, models, can_time_out) for _ in range(random.choice((1, 2, 3, 5)))
    ]
    limits = _limits(random, clients)
    explicit = random.random() < 0.4
    chosen = [one for one in DISTURBANCES if random.random() < one.share]
    if random.random() < 0.15:
        chosen = []
    if not explicit:
        chosen = [one for one in chosen if not one.needs_explicit]
    is_strict = not chosen and not any(one.poison_share for one in clients)
    return Plan(
        models=models,
        clients=clients,
        disturbances=chosen,
        lasts_ns=random.choice((30, 200, 800, 2_500)) * MILLISECOND,
        explicit=explicit,
        drains=random.random() < 0.25,
        limits=limits,
        is_strict=is_strict,
    )


def _client_plan(random: Random, models: list[ModelPlan], can_time_out: bool) -> ClientPlan:
    def perhaps(chance: float, share: float) -> float:
        return share if random.random() < chance else 0.0

    return ClientPlan(
        models=random.sample(models, random.randint(1, len(models))),
        requests=random.choice((5, 20, 60)),
        burst=random.choice((1, 1, 4, 20)),
        pause_us=random.choice((50, 1_000, 8_000, 30_000)),
        cancel_share=perhaps(0.4, 0.2),
        timeout_share=perhaps(0.5, 0.3) if can_time_out else 0.0,
        poison_share=perhaps(0.15, 0.04),
        raise_share=perhaps(0.2, 0.1),
        region_share=perhaps(0.5, 0.6),
        wrong_share=perhaps(0.1, 0.1),
        forget_share=perhaps(0.15, 0.1),
        named_share=perhaps(0.25, 0.3),
        gpus=random.choice(((), (0,), (0, 1), (0, 1, 1))),
    )


def _limits(random: Random, clients: list[ClientPlan]) -> Limits:
    """In half of all scenarios there are users, and in half of those tight budgets for them."""
    if random.random() < 0.5:
        for client in clients:
            client.users = tuple(random.sample(USERS, random.randint(1, 4)))
    if random.random() < 0.5:
        return Limits(cores=2)
    return Limits(
        cores=2,
        user_requests_max=random.choice((0, 1, 3, 20)),
        user_bytes_max=random.choice((0, 200, 100_000)),
    )


class Simulation:
    """One scenario. `run` raises Violation, or an error of the scheduler itself."""

    def __init__(self, seed: int, *, tells: bool = False) -> None:
        random = Random(f"naiad {seed}")
        self.seed = seed
        self.plan = plan_of(random)
        self.random = random
        self.agenda = Agenda()
        self.ledger = Ledger(self.agenda, tells)
        self.repository = Repository(self.agenda, Random(random.random()), self.plan.models)
        self.server = Server(
            self.agenda,
            self.ledger,
            Random(random.random()),
            self.repository,
            explicit=self.plan.explicit,
            limits=self.plan.limits,
            judge_error=self._judge,
        )
        self.clients: list[SimulatedClient] = []
        self.is_disturbed = True
        self.troubled: set[str] = set()
        """Models that were rightly unavailable at some time: unloaded, or they died in a row."""
        self.is_draining = False
        self._names = 0
        self._name_of: dict[int, str] = {}
        self.server.truth = self
        self._deaths: Counter[tuple[str, int]] = Counter()
        self._served: set[str] = set()
        # Drawn apart: what other seeds stand for does not change by it.
        has_kills = any(one.leads_to_kills for one in self.plan.disturbances)
        self.has_undying = has_kills and Random(f"undying {seed}").random() < 0.4
        """Some workers that are killed do not die before long: they are LOST."""
        if self.has_undying:
            self.server.workers.dying_us = (DYING_US[-1], *UNDYING_US)

    def run(self) -> None:
        agenda, server = self.agenda, self.server
        self.ledger.tell(f"plan {self.plan}")
        server.start()
        if not agenda.run(agenda.now_ns + READY_WITHIN_NS, self._is_ready):
            raise Violation(f"not ready: {self.server.scheduler.world.models}")
        self.register()
        self.register()
        agenda.run(agenda.now_ns + MILLISECOND)
        for number, plan in enumerate(self.plan.clients):
            random = Random(self.random.random())
            client = SimulatedClient(server, f"c{number}", 100 + number, plan, random)
            self.clients.append(client)
        for disturbance in self.plan.disturbances:
            disturbance.begin(self, Random(self.random.random()))
        agenda.run(agenda.now_ns + self.plan.lasts_ns)
        self.is_disturbed = False
        if self.plan.drains:
            self._drain()
        else:
            self._finish()

    def _is_ready(self) -> bool:
        found = [version for model in self.server.scheduler.world.models.values()
                 for version in model.all_versions()]  # fmt: skip
        return len(found) >= len(self.plan.models) and all(one.is_ready for one in found)

    # --- regions with a name -------------------------------------------------------------

    def register(self) -> None:
        """The operator registers one more region, which every client may use from then on."""
        self._names += 1
        name = f"region_{self._names}"
        key = f"/shared.{self._names}"
        arguments: m.Parameters = {"name": name, "key": key, "byte_size": REGION_BYTES}

        def registered(error: object, result: dict[str, int] | None) -> None:
            if result is None:
                raise Violation(f"registering {name} failed: {error}")
            self._name_of[result["id"]] = name
            self.server.named.add(result["id"], key)

        self.server.control("region_register", arguments, registered)

    def unregister(self, ident: int) -> None:
        self.server.named.close(ident)
        for client in self.clients:
            client.named_region_ends(ident)
        arguments: m.Parameters = {"name": self._name_of[ident]}
        self.server.control("region_unregister", arguments, lambda error, result: None)

    # --- the end -------------------------------------------------------------------------

    def _finish(self) -> None:
        """All is answered; the clients leave; nothing is left of them."""
        agenda = self.agenda
        if not agenda.run(agenda.now_ns + QUIET_WITHIN_NS, self._is_quiet):
            owed = [
                asked.record.token
                for client in self.clients
                if client.is_alive
                for asked in (*client.asked.values(), *client.held.values())
            ]
            raise Violation(f"requests {owed} never ended", owed[0] if owed else 0)
        agenda.run(agenda.now_ns + SECOND)
        for session in self.server.scheduler.world.sessions.values():
            if len(session.accounts):
                raise Violation(f"session {session.key} still has users with something in flight")
        for client in self.clients:
            if client.is_open and self.random.random() < 0.5:
                client.close()
            else:
                self.server.clients.dies(client)
        agenda.run(agenda.now_ns + 10 * SECOND)
        if self.has_undying:
            agenda.run(agenda.now_ns + max(UNDYING_US) * MICROSECOND)
        check_empty(self.server.scheduler)
        for worker in self.server.workers.alive.values():
            if worker.arena.leases:
                raise Violation(f"{worker} still lends {worker.arena.leases} to nobody")
        self._check_executions()
        for _ in range(5):
            agenda.run(agenda.now_ns + LONG_AFTER_NS)
            if self.server.scheduler.deadline_ns() == NEVER_NS or self._still_tries():
                return
        raise Violation(f"a timer is still set for {self.server.scheduler.deadline_ns()}")

    def _still_tries(self) -> bool:
        """Whether a model that cannot be had is tried again and again."""
        world = self.server.scheduler.world
        versions = [one for model in world.models.values() for one in model.versions.values()]
        return any(one.next_retry_ns > world.now_ns or not one.is_ready for one in versions)

    def _is_quiet(self) -> bool:
        return self.server.is_up and all(client.is_quiet for client in self.clients)

    def _drain(self) -> None:
        """Stop at whatever moment this is: what was admitted is answered, every process ends."""
        agenda, server = self.agenda, self.server
        for client in self.clients:
            client.left = 0
        agenda.run(agenda.now_ns + MILLISECOND)
        agenda.run(agenda.now_ns + READY_WITHIN_NS, lambda: server.is_up)
        if not server.is_up:
            raise Violation("the broker did not come back")
        self.is_draining = True
        connected = [one for one in self.clients if one.is_alive and one.is_open]
        before = {id(one): one.reconnects for one in connected}
        server.tell(e.DrainAsked(agenda.now_ns + DRAIN_NS))
        if not agenda.run(agenda.now_ns + 2 * DRAIN_NS, lambda: server.exit_code is not None):
            raise Violation(f"draining does not end: {server.scheduler.world.slots}")
        agenda.run(agenda.now_ns + MILLISECOND)
        alive = [worker for worker in server.workers.alive.values() if worker.is_alive]
        is_left = any(worker.incarnation for worker in alive)
        if not self.has_undying and (server.exit_code or is_left):
            raise Violation(f"exit code {server.exit_code}, alive: {alive}")
        for client in connected:
            owed = list(client.asked.values())
            if not self.has_undying:  # whose memory stays taken: the server ends without them
                owed += client.held.values()
            if client.is_alive and client.reconnects == before[id(client)] and owed:
                raise Violation(f"{client} is owed {owed}", owed[0].record.token)
        self._check_executions()

    def _check_executions(self) -> None:
        if not self.plan.is_strict:
            return
        for record in self.ledger.records.values():
            wanted = 1 if record.error is None or record.error[0] == Code.MODEL_ERROR else 0
            if record.answers == 1 and record.executions < wanted:
                raise Violation("answered without being executed", record.token)
            if record.executions > 1:
                raise Violation("executed twice without a reason", record.token)

    # --- what is true --------------------------------------------------------------------

    def worker_died(self, directory: str, version: int, *, is_known: bool) -> None:
        """`is_known`: as its earlier death it was a poison request's doing, for which no model may
        be given up."""
        if is_known:
            self._deaths[directory, version] = max(0, self._deaths[directory, version] - 1)
            return
        self._deaths[directory, version] += 1
        if self._deaths[directory, version] >= DEATHS_SUSPICIOUS:
            self._gave_up(directory)

    def load_failed(self, directory: str) -> None:
        self._gave_up(directory)

    def load_succeeded(self, directory: str) -> None:
        self._served.add(directory)

    def executed(self, directory: str, version: int) -> None:
        self._deaths[directory, version] = 0

    def _gave_up(self, directory: str) -> None:
        name = directory.split("/")[2]
        editions = [one for one in self._served if one.split("/")[2] == name]
        if directory in self._served or not editions:
            self.troubled.add(name)

    def _judge(self, client: SimulatedClient, record: Record, error: tuple[str, str, bool]) -> None:
        """An error answer needs a reason that the simulation knows of."""
        model = self.repository.plans[record.model]
        code = error[0]
        retry = model.edition.config["parameters"].get("naiad.retry")
        limited = "max_queue_size" in str(model.edition.config)
        limits = self.plan.limits
        has_budgets = bool(limits.user_requests_max or limits.user_bytes_max)
        times_out = "timeout" in str(model.edition.config) or bool(record.timeout_us)
        is_troubled = record.model in self.troubled or self.has_undying
        legitimate = {
            Code.MODEL_ERROR: record.raises,
            Code.INVALID_ARGUMENT: record.is_wrong,
            Code.CANCELLED: record.cancel_asked or record.uses_forgotten_region,
            Code.TIMEOUT: times_out,
            Code.QUEUE_FULL: limited,
            Code.BUDGET_EXCEEDED: bool(record.user) and has_budgets,
            Code.POISON_REQUEST: record.deaths_alone >= 2,
            Code.NOT_FOUND: record.uses_forgotten_region or is_troubled,
            Code.NOT_READY: is_troubled,
            Code.UNAVAILABLE: is_troubled,
            Code.WORKER_DIED: retry is not None or self.has_undying,
            Code.CONNECTION_LOST: retry is not None,
            Code.DRAINING: self.is_draining,
        }
        if not legitimate.get(Code(code), False):
            raise Violation(f"{client} got {error} for no reason", record.token)
