"""The real Scheduler on a bench: a test says what happens, one event after the other, and looks.

Time stands still until a test lets it pass. Slots and clients are plain numbers; what the scheduler
told each of them is kept in lists. The core's invariants are checked after every call.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import msgpack

from naiad.broker.core import events as e
from naiad.broker.core.instances import Instance
from naiad.broker.core.models import ModelVersion
from naiad.broker.core.scheduler import Scheduler
from naiad.broker.core.world import Limits
from naiad.protocol import messages as m
from naiad.protocol.errors import NaiadError, WireError

US, MS, S = 1_000, 1_000_000, 1_000_000_000
CLIENT, OTHER = 501, 502
Json = dict[str, Any]


def config(name: str = "m", **fields: Any) -> Json:
    """An identity model: UINT8 X [4] to Y [4], one instance, no batching."""
    tensor = {"data_type": "TYPE_UINT8", "dims": [4]}
    return {
        "name": name,
        "backend": "identity",
        "max_batch_size": 0,
        "input": [{"name": "X", **tensor}],
        "output": [{"name": "Y", **tensor}],
        "instance_group": [{"name": name, "kind": "KIND_CPU", "count": 1}],
        **fields,
    }


def batching(rows: int = 8, **fields: Any) -> Json:
    """Fields for a model of the dynamic batcher."""
    return {"max_batch_size": rows, "dynamic_batching": fields}


def queue_policy(rows: int = 1, **policy: Any) -> Json:
    return batching(rows, default_queue_policy=policy)


def parameters(**own: object) -> Json:
    """`naiad.` parameters, as a config has them."""
    texts = {f"naiad.{name}": str(value).lower() for name, value in own.items()}
    return {"parameters": {name: {"string_value": text} for name, text in texts.items()}}


def instances(count: int, name: str = "m") -> Json:
    return {"instance_group": [{"name": name, "kind": "KIND_CPU", "count": count}]}


class Bench:
    """See the module. `saved` is what an earlier bench's `restarted` found in its state file."""

    def __init__(
        self,
        *,
        explicit: bool = True,
        limits: Limits | None = None,
        saved: Json | None = None,
        now_ns: int = S,
        first_number: int = 1_000,
        allow_files: bool = False,
        gpus: Sequence[str] = (),
    ) -> None:
        self.now_ns = now_ns
        self.scheduler = Scheduler(
            incarnation=first_number, server="bench", software="0", first_number=first_number,
            explicit=explicit, limits=limits or Limits(), allow_files=allow_files,
            gpus=gpus,
        )  # fmt: skip
        self.world = self.scheduler.world
        self.batches: dict[int, list[m.Batch]] = defaultdict(list)
        self.frames: dict[int, list[e.Frames]] = defaultdict(list)
        self.answers: dict[tuple[int, int], list[m.InferAnswer]] = defaultdict(list)
        self.answer_frames: dict[tuple[int, int], e.Frames] = {}
        self.order: list[tuple[str, int]] = []
        """("answer" or "released", request id) as they were sent."""
        self.released: dict[int, list[int]] = defaultdict(list)
        self.told: dict[int, list[m.Message]] = defaultdict(list)
        self.replies: dict[tuple[int, int], tuple[NaiadError | None, Any]] = {}
        self.killed: list[int] = []
        self.wanted: list[m.Want] = []
        self.scans: list[e.ScanRepository] = []
        self.logs: list[str] = []
        self.quit_code: int | None = None
        self.saves = 0
        self._slots = 0
        self._call = 0
        self._take(self.scheduler.start((), saved, now_ns))

    # --- time and events -----------------------------------------------------------------

    def do(self, *events: e.Event) -> list[e.Action]:
        """All these events in one call."""
        actions = self.scheduler.handle(events, self.now_ns)
        if self.quit_code is None and not any(type(one) is e.Quit for one in actions):
            self.scheduler.check_invariants()
        self._take(actions)
        return actions

    def wait(self, for_ns: int) -> None:
        """Let time pass; the scheduler is called whenever it asked to be."""
        until_ns = self.now_ns + for_ns
        while self.scheduler.deadline_ns() <= until_ns:
            self.now_ns = max(self.now_ns, self.scheduler.deadline_ns())
            self.do()
        self.now_ns = until_ns

    def _take(self, actions: list[e.Action]) -> None:
        for action in actions:
            match action:
                case e.SendBatch(slot, batch, frames):
                    self.batches[slot].append(batch)
                    self.frames[slot].append(frames)
                case e.SendAnswers(session, answers, _, frames):
                    for answer in answers:
                        self.answers[session, answer.id].append(answer)
                        self.answer_frames[session, answer.id] = frames
                        self.order.append(("answer", answer.id))
                case e.TellSession(session, m.Released(_, ids)):
                    self.released[session] += ids
                    self.order += [("released", ident) for ident in ids]
                case e.TellSlot(slot, message, _):
                    self.told[slot].append(message)
                case e.SendReply(session, call, error, result):
                    self.replies[session, call] = (error, result)
                case e.KillSlot(slot, _):
                    self.killed.append(slot)
                case e.TellSupervisor(want):
                    self.wanted.append(want)
                case e.ScanRepository():
                    self.scans.append(action)
                case e.Log(_, text):
                    self.logs.append(text)
                case e.Quit(code):
                    self.quit_code = code
                case e.SaveState():
                    self.saves += 1
                case _:
                    pass

    # --- the operator --------------------------------------------------------------------

    def control(self, operation: str, **arguments: Any) -> Any:
        """The result of a call that is answered at once; raises its error."""
        call = self.ask_control(operation, **arguments)
        error, result = self.replies[CLIENT, call]
        if error is not None:
            raise error
        return result

    def index(self, *lying_there: str) -> list[Json]:
        """The index, when these are the models in the repository."""
        call = self.ask_control("index")
        if (CLIENT, call) not in self.replies:
            token = self.scans.pop().token
            models = tuple({"name": name} for name in lying_there)
            self.do(e.RepositoryScanned(token, models, None, only_names=True))
        error, rows = self.replies[CLIENT, call]
        assert error is None
        return list(rows)

    def ask_control(self, operation: str, payload: bytes = b"", **arguments: Any) -> int:
        """Begin a call; its reply will be in `replies[CLIENT, call]`."""
        if CLIENT not in self.world.sessions:
            self.client()
        self._call += 1
        self.do(e.ControlAsked(CLIENT, self._call, operation, arguments, payload))
        return self._call

    def load(
        self, found: Json, *, versions: tuple[int, ...] = (1,), edition: str = "0", **extra: Any
    ) -> int:
        """Begin to load a model whose repository entry is this config; the call's number."""
        call = self.ask_control("load", model=found["name"])
        self.scanned(found, versions=versions, edition=edition, **extra)
        return call

    def scanned(
        self, found: Json, *, versions: tuple[int, ...] = (1,), edition: str = "0", **extra: Any
    ) -> None:
        """The repository helper answers the oldest question."""
        directory = f"/models/{found['name']}/{edition}"
        entry = {
            "name": found["name"], "directory": directory, "versions": list(versions),
            "config": found, "fingerprint": edition, "faults": [], "warnings": [], **extra,
        }  # fmt: skip
        self.do(e.RepositoryScanned(self.scans.pop(0).token, (entry,), None))

    def served(self, found: Json, **how: Any) -> list[int]:
        """Load a model with a worker for each instance; the slots, all READY."""
        self.load(found, **how)
        slots = []
        for instance in list(self.model(found["name"]).instances):
            if instance.slot is None:
                self.worker()
            assert instance.slot is not None
            slots.append(instance.slot.key)
            self.loaded(instance.slot.key)
        return slots

    def model(self, name: str = "m", version: int = 1) -> ModelVersion:
        return self.world.models[name].versions[version]

    # --- workers -------------------------------------------------------------------------

    def hello(self, slot: int, **fields: Any) -> m.SlotHello:
        known: dict[str, Any] = {
            "secret": b"", "slot": f"cpu-{slot}", "device": "cpu", "pid": slot, "software": "0",
            "backends": ("identity",), "incarnation": 0, "instance": 0, "model": "", "version": 0,
            "held": (), "arenas": (), "leases": (),
        }  # fmt: skip
        return m.SlotHello(**{**known, **fields})

    def worker(self, device: str = "cpu") -> int:
        """A fresh worker says hello; its slot."""
        self._slots += 1
        slot = self.world.incarnation * 9 + self._slots  # another one than in an earlier life
        self.do(e.SlotOpened(slot, self.hello(slot, device=device), slot))
        return slot

    def instance(self, slot: int) -> Instance:
        found = self.world.slots[slot].instance
        assert found is not None
        return found

    def worker_of(self, model: ModelVersion) -> int:
        """The slot of a version's first instance."""
        slot = model.instances[0].slot
        assert slot is not None
        return slot.key

    def loaded(
        self, slot: int, error: WireError | None = None, config: Json | None = None,
        gpu_bytes: int = 0,
    ) -> None:  # fmt: skip
        """The worker answers the LOAD it was told."""
        instance = self.instance(slot)
        known = config or (None if error else instance.model.config.to_json())
        self.do(e.InstanceLoaded(slot, instance.id, error, 1 * MS, known, gpu_bytes))

    def finish(
        self, slot: int, *, batch: m.Batch | None = None, error: WireError | None = None,
        took_ns: int = 1 * MS,
    ) -> None:  # fmt: skip
        """Results of the oldest batch the slot has: zeros of the right size, or an error each."""
        batch = batch or self.batches[slot].pop(0)
        results = []
        for request in batch.requests:
            source = request.inputs[0]
            output = m.Tensor("Y", source.datatype, source.shape, m.Place.INLINE, 0, 0, source.size)
            results.append(m.BatchResult(error, () if error else (output,)))
        size = max(request.inputs[0].size for request in batch.requests)
        message = m.Results(batch.id, tuple(results), m.Durations(0, took_ns, 0), 0, ())
        self.do(e.BatchFinished(slot, message, [b"\0" * size]))

    def dies(self, slot: int, *, executing: int = 0, ordered: bool = False, begun: int = 0) -> None:
        self.batches.pop(slot, None)
        self.do(e.SlotDied(slot, "SIGKILL", executing, ordered, (), begun))

    # --- clients -------------------------------------------------------------------------

    def client(self, key: int = CLIENT) -> int:
        self.do(e.SessionOpened(key, "client", 1, ()))
        return key

    def request(self, ident: int, model: str = "m", **fields: Any) -> m.InferRequest:
        """`rows` gives a leading dimension; everything else is a field of InferRequest."""
        rows = fields.pop("rows", None)
        shape = fields.pop("shape", (4,) if rows is None else (rows, 4))
        size = 1
        for dim in shape:
            size *= dim
        place = m.Tensor("X", "UINT8", shape, int(m.Place.INLINE), 0, 0, size)
        known: dict[str, Any] = {
            "id": ident, "attempt": 1, "model": model, "version": -1, "label": "",
            "inputs": (place,), "outputs": (),
        }  # fmt: skip
        return m.InferRequest(**{**known, **fields})

    def ask(self, *idents: int, client: int = CLIENT, **fields: Any) -> None:
        """These requests arrive in one message."""
        if client not in self.world.sessions:
            self.client(client)
        requests = tuple(self.request(ident, **fields) for ident in idents)
        size = max(tensor.size for request in requests for tensor in request.inputs)
        self.do(e.RequestsArrived(client, requests, [b"\0" * size]))

    def cancel(self, *idents: int, client: int = CLIENT) -> None:
        self.do(e.CancelAsked(client, idents))

    def error(self, ident: int, client: int = CLIENT) -> tuple[str, str]:
        """Code and text of the one error answer of a request."""
        (answer,) = self.answers[client, ident]
        assert answer.error is not None, answer
        return answer.error[0], answer.error[1]

    def is_answered(self, ident: int, client: int = CLIENT) -> bool:
        """Whether it has its one good answer."""
        found = self.answers[client, ident]
        return len(found) == 1 and found[0].error is None

    def sent(self, slot: int) -> list[list[int]]:
        """Request ids of the batches the slot has."""
        return [[request.id for request in batch.requests] for batch in self.batches[slot]]

    def is_stopped(self, slot: int) -> bool:
        """Whether it was told to."""
        return any(type(message) is m.Stop for message in self.told[slot])

    # --- the broker dies -----------------------------------------------------------------

    def restarted(self, limits: Limits | None = None) -> Bench:
        """A new broker with what this one had saved, as the state file keeps it."""
        raw = msgpack.packb(self.scheduler.snapshot())
        saved = msgpack.unpackb(raw, strict_map_key=False, use_list=False)
        return Bench(
            saved=saved, now_ns=self.now_ns + 100 * MS, limits=limits,
            first_number=self.world.number() + 1_000_000,
        )  # fmt: skip
