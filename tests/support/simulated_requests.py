"""What simulated clients ask for: requests made from a plan, and the message they travel in."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random

from naiad.protocol import messages as m
from support.simulated_ledger import Ledger, Record, content
from support.simulated_models import ModelPlan
from support.simulated_regions import SLOT_BYTES, Place, Slots

SMALL_BYTES = 16_384
_EMPTY = m.InferRequest(0, 0, "", m.ANY_VERSION, "", (), ())


@dataclass(slots=True)
class ClientPlan:
    """How one client behaves; the fields ending in `_share` are probabilities."""

    models: list[ModelPlan]
    requests: int
    burst: int
    """Requests sent together at most."""
    pause_us: int
    """Mean pause between bursts."""
    cancel_share: float = 0.0
    timeout_share: float = 0.0
    poison_share: float = 0.0
    raise_share: float = 0.0
    region_share: float = 0.0
    wrong_share: float = 0.0
    forget_share: float = 0.0
    named_share: float = 0.0
    users: tuple[str, ...] = ("",)
    """Whom requests are made for: accounting and fairness key; the first is the greediest."""
    gpus: tuple[int, ...] = ()
    """On which it has memory."""
    rows_many: bool = True


@dataclass(slots=True)
class Asked:
    """One request of this client until its memory is free again."""

    record: Record
    request: m.InferRequest
    size: int
    own: list[Place] = field(default_factory=list)
    named: list[Place] = field(default_factory=list)
    """Ranges it was given, of the client's regions and of the server's."""
    is_sent: bool = False
    ended: bool = False
    """Its final error came: only RELEASED is waited for."""


class RequestMaker:
    """Makes one client's requests; ranges for them come from its own regions and the named ones."""

    def __init__(
        self, ledger: Ledger, plan: ClientPlan, regions: Slots, named: Slots, random: Random
    ) -> None:
        self._ledger = ledger
        self._plan = plan
        self._regions = regions
        self._named = named
        self._random = random

    def make(self, ident: int, client: str) -> Asked:
        """Any request of the plan's models; its label is its token."""
        plan, random = self._plan, self._random
        model = random.choice(plan.models)
        record = self._ledger.new(model.name, f"{client}:{ident}")
        rows = 1
        if model.rows_max and plan.rows_many:
            rows = random.choice((1, 1, 1, 2, model.rows_max))
        width = random.choice(model.widths)
        if rows * width > SLOT_BYTES:
            rows, width = 1, min(model.widths)
        size = rows * width
        shape = (rows, width) if model.rows_max else (width,)
        if random.random() < plan.wrong_share:
            shape = (*shape, 7)
            record.is_wrong = True
        record.is_poison = random.random() < plan.poison_share
        record.raises = random.random() < plan.raise_share
        if random.random() < plan.timeout_share:
            record.timeout_us = random.choice((300, 2_000, 10_000, 200_000))
        asked = Asked(record, _EMPTY, size)
        tensor, outputs = self._place(asked, shape, size)
        gpus = {
            self._regions.gpus[region] for region, _ in asked.own if region in self._regions.gpus
        }
        record.has_gpu_memory = bool(gpus)
        record.is_wrong = record.is_wrong or model.refuses(gpus)
        user = record.user = random.choice((plan.users[0], random.choice(plan.users)))
        asked.request = m.InferRequest(
            ident, 0, model.name, m.ANY_VERSION, str(record.token), (tensor,), outputs,
            priority=random.randint(0, 4) if model.priorities else 0,
            timeout_us=record.timeout_us, accounting_key=user, fairness_key=user,
        )  # fmt: skip
        return asked

    def _place(
        self, asked: Asked, shape: tuple[int, ...], size: int
    ) -> tuple[m.Tensor, tuple[m.OutputRequest, ...]]:
        random = self._random
        outputs: tuple[m.OutputRequest, ...] = ()
        tensor = m.Tensor("X", "UINT8", shape, int(m.Place.INLINE), 0, 0, size)
        token = asked.record.token
        wants = random.random() < self._plan.region_share
        source = self._regions.take(token) if wants else None
        if source is not None:
            asked.own.append(source)
        elif random.random() < self._plan.named_share:
            source = self._named.take(token)
            asked.named += [source] if source is not None else []
        if source is not None:
            region, offset = source
            tensor = tensor._replace(place=int(m.Place.REGION), region=region, offset=offset)
        beside = asked.own[0] if asked.own and random.random() < 0.95 else None
        target = self._regions.take(token, beside) if wants and random.random() < 0.7 else None
        if target is not None:
            asked.own.append(target)
            outputs = (m.OutputRequest("Y", int(m.Place.REGION), *target, SLOT_BYTES),)
        elif random.random() < 0.3:
            outputs = (m.OutputRequest("Y"),)
        return tensor, outputs


def infer_message(some: list[Asked]) -> tuple[m.Infer, list[bytes]]:
    """One INFER message: small inline inputs share frame 0."""
    small: list[bytes] = []
    small_bytes = 0
    frames: list[bytes] = []
    requests = []
    for asked in some:
        request = asked.request
        tensor = request.inputs[0]
        if tensor.place == m.Place.INLINE:
            data = content(asked.record.token, asked.size)
            if asked.size <= SMALL_BYTES:
                tensor = tensor._replace(region=0, offset=small_bytes)
                small.append(data)
                small_bytes += asked.size
            else:
                frames.append(data)
                tensor = tensor._replace(region=len(frames), offset=0)
        request = request._replace(attempt=request.attempt + 1, inputs=(tensor,))
        asked.request = request
        asked.is_sent = True
        requests.append(request)
    return m.Infer(tuple(requests)), [b"".join(small), *frames]
