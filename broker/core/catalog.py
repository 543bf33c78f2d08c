"""Models come and go: load, reload, unload, as the repository and the operator say.

A reload is make-before-break: the incoming generation loads beside the serving one, the swap is
one step, the old one drains. A failed load leaves the old one serving and says so.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import partial
from typing import Any, Final

from naiad.broker.core.endings import Endings
from naiad.broker.core.events import Json, SaveState, ScanRepository, SendReply
from naiad.broker.core.fleet import Fleet
from naiad.broker.core.instances import Instance, InstanceState
from naiad.broker.core.loading import Loading
from naiad.broker.core.models import UNLOADED, Model, ModelState, ModelVersion
from naiad.broker.core.uploads import Uploads
from naiad.broker.core.world import SECOND_NS, World
from naiad.config.model import ModelConfig
from naiad.config.names import model_name_fault
from naiad.protocol.errors import Code, ModelError, NaiadError, RequestError, Unavailable

_DESIRED: Final = (ModelState.READY, ModelState.LOADING, ModelState.UNAVAILABLE)
"""What a restarted broker has again. What could not be had is tried again: from LOADING."""
SCANS_PENDING_MAX: Final = 1024
OVERRIDE_BYTES_MAX: Final = 1024 * 1024
OVERRIDES_PENDING_MAX: Final = 16
"""Configurations given with a load are kept until the repository helper has looked at them."""
INSTANCES_MAX: Final = 4096

Call = tuple[int, int]


class Scan:
    """A question to the repository helper and whom its answer concerns."""

    __slots__ = ("calls", "names", "override", "upload")

    def __init__(
        self, names: tuple[str, ...] | None, calls: list[Call], override: str | None, upload: str
    ):
        self.names = names
        self.calls = calls
        self.override = override
        self.upload = upload


class Catalog:
    """Owns the table of models and the decision which generation serves."""

    def __init__(
        self,
        world: World,
        fleet: Fleet,
        endings: Endings,
        loading: Loading,
        *,
        explicit: bool,
        allow_files: bool = False,
    ) -> None:
        self._world = world
        self._uploads = Uploads(world, allow_files)
        self._fleet = fleet
        self._endings = endings
        self._loading = loading
        self.explicit = explicit
        self._scans: dict[int, Scan] = {}
        self.settled_once = False
        """Whether every model of the start has become READY or UNAVAILABLE."""

    @property
    def has_scanned(self) -> bool:
        """Whether it is known what is to be served from the start; that question has no caller."""
        return all(scan.calls for scan in self._scans.values())

    # --- asking for loads --------------------------------------------------------------

    def start(self, names: tuple[str, ...] | None) -> None:
        """Load what is served from the beginning; None means every model of the repositories."""
        if names is None or names:
            self._scan(names, [], None)
            self._world.scanning = True
        else:
            self.settled_once = True

    def load(self, name: str, call: Call, override: str | None, upload: str = "") -> None:
        """Load or reload one model; the call is answered when it has settled.

        `upload` has the model's files, in place of the repository's; `override` must be there then.
        """
        if upload:
            self._uploads.take(upload)
        try:
            self._check_load(name, override, upload)
            self._scan((name,), [call], override, upload)
        finally:
            self._drop_uploads()

    def _check_load(self, name: str, override: str | None, upload: str) -> None:
        if upload:
            self._uploads.check(override)
        if not self.explicit:
            raise Unavailable(
                "explicit model load / unload is not allowed if polling is enabled; start the"
                " server with --control-mode explicit to allow it",
                retryable=False,
            )
        self._check_room(override)
        fault = model_name_fault(name)
        if fault is not None:
            raise RequestError(fault)  # before anybody looks for a directory of that name

    def _check_room(self, override: str | None) -> None:
        """Whether one more question may wait for the helper, with its configuration."""
        waiting, most = len(self._scans), SCANS_PENDING_MAX
        what = "loads"
        if override is not None and waiting < most:
            waiting = sum(1 for scan in self._scans.values() if scan.override is not None)
            most = OVERRIDES_PENDING_MAX
            what = "loads with a configuration of their own"
        if waiting >= most:
            raise Unavailable(
                f"{waiting} {what} wait until the model repository is read, at most {most}; wait"
                " for some to end"
            )
        size_bytes = 0 if override is None else len(override.encode())
        if size_bytes > OVERRIDE_BYTES_MAX:
            raise RequestError(
                f"Invalid config override: {size_bytes} bytes, expected at most"
                f" {OVERRIDE_BYTES_MAX}"
            )

    def unload(self, name: str, call: Call) -> None:
        """Drain and end every version of a model; unknown names succeed, as in Triton."""
        if not self.explicit:
            raise Unavailable(
                "explicit model load / unload is not allowed if polling is enabled; start the"
                " server with --control-mode explicit to allow it",
                retryable=False,
            )
        model = self._world.models.get(name)
        if model is not None:
            model.override = None
            self._answer(model, _outdated())
            for version in model.all_versions():
                if (
                    version.state is not ModelState.UNLOADING
                    and version not in self._world.retiring
                ):
                    self._endings.retire(version)
            model.incoming = {}
            model.failure = ""
            if not model.versions:
                del self._world.models[name]
        self._world.actions.append(SendReply(*call, None, {}))
        self._world.actions.append(SaveState())

    def _scan(
        self,
        names: tuple[str, ...] | None,
        calls: list[Call],
        override: str | None,
        upload: str = "",
    ) -> None:
        token = self._world.number()
        self._scans[token] = Scan(names, calls, override, upload)
        self._world.actions.append(ScanRepository(token, names, override, upload=upload))

    @property
    def allows_files(self) -> bool:
        """Whether a load may bring the model's files along."""
        return self._uploads.is_allowed

    def announce_uploads(self) -> None:
        self._uploads.announce()

    def _drop_uploads(self) -> None:
        self._uploads.drop_unused(scan.upload for scan in self._scans.values())

    # --- answers of the repository helper ----------------------------------------------

    def scanned(
        self,
        token: int,
        entries: tuple[Json, ...],
        fault: str | None,
        is_lost: bool = False,
        notes: tuple[str, ...] = (),
    ) -> None:
        scan = self._scans.get(token)
        if scan is None:
            return
        if is_lost and not scan.calls:
            self._ask_again_later(token, scan, str(fault))
            return
        del self._scans[token]
        if is_lost:
            self._lost(scan, str(fault))
            self._drop_uploads()
            return
        self._world.scanning = not self.has_scanned
        for note in notes if scan.names is None else ():
            self._world.log("info", f"model repository: {note}")
        if fault is not None:
            self._world.log("error", f"model repository: {fault}")
            if not entries:
                for call in scan.calls:
                    self._reply(call, RequestError(fault))
        seen = set()
        for entry in entries:
            name = str(entry["name"])
            seen.add(name)
            try:
                self._begin(name, entry, scan)
            except Exception as raised:
                self._spoiled(name, scan, raised)
        for name in scan.names or ():
            if name not in seen and fault is None:
                self._missing(name, "no such model there", scan.calls)
        self._drop_uploads()
        self._loading.assign()
        self._fleet.want()
        self._check_settled()

    def _ask_again_later(self, token: int, scan: Scan, fault: str) -> None:
        """What is served from the start is still not known: a server of nothing helps nobody."""
        world = self._world
        pause_ns = world.limits.retry_last_ns
        world.log("error", f"model repository: {fault} Trying again in {pause_ns // SECOND_NS} s.")

        def ask() -> None:
            if not world.draining:
                world.actions.append(ScanRepository(token, scan.names, scan.override))

        world.at(world.now_ns + pause_ns, ask)

    def _lost(self, scan: Scan, fault: str) -> None:
        """A load whose model nobody could look at; what is served already goes on."""
        for name in scan.names or ():
            text = f"failed to load '{name}': {fault}"
            self._world.log("error", text)
            model = self._world.models.get(name)
            if model is not None:
                model.failure = _failed_reload(text)
            for call in scan.calls:
                self._reply(call, Unavailable(text))
        self._check_settled()

    def _missing(self, name: str, why: str, calls: list[Call]) -> None:
        text = f"failed to load '{name}', failed to poll from model repository: {why}"
        self._world.log("error", text)
        model = self._world.models.get(name)
        if model is not None:
            model.failure = _failed_reload(text)
        elif not calls:
            self._world.models[name] = model = Model(name)
            model.failure = text
        self._world.actions.append(SaveState())
        for call in calls:
            self._reply(call, NaiadError(text, code=Code.INTERNAL))

    def _spoiled(self, name: str, scan: Scan, raised: Exception) -> None:
        """A load that failed by a fault of ours: its own calls alone, what serves goes on."""
        world = self._world
        fault = world.blame(raised, f"the load of '{name}'")
        model = world.models.setdefault(name, Model(name))
        model.calls = [call for call in model.calls if call not in scan.calls]
        failed, model.incoming = model.incoming, {}
        model.failure = _failed_reload(fault.message) if model.versions else fault.message
        for version in failed.values():
            self._endings.retire(version)
        world.actions.append(SaveState())
        for call in scan.calls:
            self._reply(call, fault)

    def _begin(self, name: str, entry: Json, scan: Scan) -> None:
        world = self._world
        if "missing" in entry:
            self._missing(name, str(entry["missing"]), scan.calls)
            return
        model = world.models.setdefault(name, Model(name))
        for warning in entry.get("warnings", ()):
            world.log("warning", f"model {name}: {warning}")
        faults = [str(fault) for fault in entry.get("faults", ())]
        versions = [int(version) for version in entry.get("versions", ())]
        config_json = entry.get("config")
        if not faults and not versions:
            faults = [
                f"at least one version must be available under the version policy of model '{name}'"
            ]
        if faults or config_json is None:
            self._refuse(model, faults, scan.calls)
            return
        if self._is_same(model, entry, scan):
            model.failure = ""
            model.calls.extend(scan.calls)
            self._settle_serving(model)
            return
        fresh = self._generation(name, entry, ModelConfig.from_json(config_json), scan.upload)
        for version in model.incoming.values():
            self._endings.retire(version)
        self._answer(model, _outdated())
        model.calls.extend(scan.calls)
        model.incoming_override = scan.override
        model.failure = ""
        for version in fresh.values():
            world.instances.update({one.id: one for one in version.instances})
        model.incoming = fresh
        model.incoming_since_ns = world.now_ns
        if not any(one.state is ModelState.READY for one in model.versions.values()):
            self._swap(model)
        world.actions.append(SaveState())

    def _is_same(self, model: Model, entry: Json, scan: Scan) -> bool:
        """Whether a plain load finds what is served, or being loaded, already."""
        fingerprint = str(entry.get("fingerprint", ""))
        newest = (model.incoming or model.versions).values()
        override = model.incoming_override if model.incoming else model.override
        return (
            scan.override is None
            and override is None
            and bool(fingerprint)
            and bool(newest)
            and all(one.state in (ModelState.READY, ModelState.LOADING) for one in newest)
            and all(one.fingerprint == fingerprint for one in newest)
        )

    def _refuse(self, model: Model, faults: list[str], calls: list[Call]) -> None:
        reason = "; ".join(faults) or "its configuration cannot be read"
        model.failure = _failed_reload(reason) if model.versions else reason
        self._world.log("error", f"model {model.name}: {reason}")
        self._world.actions.append(SaveState())
        for call in calls:
            self._reply(call, RequestError(f"load failed for model '{model.name}': {reason}"))

    def _generation(
        self, name: str, entry: Json, config: ModelConfig, upload: str
    ) -> dict[int, ModelVersion]:
        """A new generation of what was found, with its instances; nobody knows it yet."""
        world = self._world
        generation = world.number()
        fresh = {}
        for number in map(int, entry.get("versions", ())):
            version = ModelVersion(name, number, str(entry["directory"]), config, generation)
            version.fingerprint = str(entry.get("fingerprint", ""))
            version.upload = upload
            version.labels = entry.get("labels", {})
            version.move(ModelState.LOADING)
            self._make_instances(version)
            fresh[number] = version
        return fresh

    def _make_instances(self, version: ModelVersion) -> None:
        world = self._world
        total = sum(max(1, group.count) for group in version.config.instance_groups) or 1
        version.threads = version.config.naiad.threads or max(1, world.limits.cores // total)
        index = 0
        for group in version.config.instance_groups:
            gpus = group.gpus if group.kind == "KIND_GPU" else (0,)
            for gpu in gpus:
                for copy in range(max(1, group.count)):
                    if index >= INSTANCES_MAX:
                        return
                    device = f"gpu:{gpu}" if group.kind == "KIND_GPU" else "cpu"
                    name = f"{group.name or version.name}_{copy}"
                    if group.kind == "KIND_GPU":
                        name += f"_gpu{gpu}"
                    if len(version.config.version_policy.versions) != 1:
                        name += f"_v{version.version}" if version.version != 1 else ""
                    instance = Instance(world.number(), version, name, group.kind, device, gpu)
                    version.instances.append(instance)
                    index += 1

    # --- settling ----------------------------------------------------------------------

    def settled(self, version: ModelVersion) -> None:
        """A version became READY or UNAVAILABLE, or one more of its instances is there."""
        self._drop_uploads()
        model = self._world.models.get(version.name)
        if model is None:
            return
        if model.incoming.get(version.version) is version:
            if version.state is ModelState.UNAVAILABLE:
                self._give_up(model, version.reason)
            else:
                self._try_swap(model)
        elif model.versions.get(version.version) is version and not model.incoming:
            self._settle_serving(model)
        self._check_settled()

    def _try_swap(self, model: Model) -> None:
        """Swap once every instance is there."""
        incoming = model.incoming.values()
        if all(one.state is ModelState.READY for one in incoming) and self._are_whole(model):
            self._swap(model)

    def _are_whole(self, model: Model) -> bool:
        """Whether every instance of the newest generation serves, or only lacks a slot for too
        long. If it is too early to tell, the generation is looked at again."""
        waited_ns = self._world.now_ns - model.incoming_since_ns
        patience_ns = self._world.limits.slot_wait_ns
        for version in (model.incoming or model.versions).values():
            missing = [one for one in version.instances if not one.serves]
            if any(one.state is InstanceState.LOADING for one in missing):
                return False
            if missing and waited_ns < patience_ns:
                when_ns = model.incoming_since_ns + patience_ns
                self._world.at(when_ns, partial(self._look_again, model, version.generation))
                return False
        return True

    def _look_again(self, model: Model, generation: int) -> None:
        if any(one.generation == generation for one in model.incoming.values()):
            self._try_swap(model)
        elif any(one.generation == generation for one in model.versions.values()):
            self._settle_serving(model)

    def _swap(self, model: Model) -> None:
        old = list(model.versions.values())
        model.versions = model.incoming
        model.override = model.incoming_override
        model.incoming = {}
        self._world.forget_lookups()
        for version in old:
            self._move_queue(version, model)
            if version.state is not ModelState.UNLOADING and version.reason != UNLOADED:
                self._endings.retire(version)
        if all(version.state is ModelState.READY for version in model.versions.values()):
            self._settle_serving(model)
        self._world.actions.append(SaveState())

    def _move_queue(self, old: ModelVersion, model: Model) -> None:
        """Requests that the old generation had not begun go to the new one where they still fit."""
        new = model.versions.get(old.version) or model.newest()
        if new is None or new.signature is None:
            return
        for job in list(old.queue.jobs()):
            if job.request.version >= 0 and job.request.version != new.version:
                continue
            try:
                rows, key = new.signature.check(job.request)
            except RequestError:
                continue
            old.queue.remove(job)
            job.model = new
            job.rows = rows
            job.key = key
            job.level = new.level_policy(job.priority).rank
            if job.suspect:
                new.queue.push_front(job)
            else:
                new.queue.push(job)
        self._world.wake(new)

    def _give_up(self, model: Model, reason: str) -> None:
        failed = model.incoming
        model.incoming = {}
        model.failure = _failed_reload(reason)
        for version in failed.values():
            self._endings.retire(version)
        self._answer(model, _load_error(model.name, min(failed), reason))

    def _settle_serving(self, model: Model) -> None:
        if model.incoming:
            return  # the calls are about those
        states = {version.state for version in model.versions.values()}
        if ModelState.LOADING in states or not model.calls:
            return
        broken = next(
            (one for one in model.versions.values() if one.state is ModelState.UNAVAILABLE), None
        )
        if broken is not None:
            self._answer(model, _load_error(model.name, broken.version, broken.reason))
        elif self._are_whole(model):
            self._answer(model, None)

    def _answer(self, model: Model, fault: NaiadError | None) -> None:
        calls, model.calls = model.calls, []
        for call in calls:
            self._reply(call, fault)

    def _reply(self, call: Call, fault: NaiadError | None) -> None:
        self._world.actions.append(SendReply(*call, fault, {} if fault is None else None))

    def _check_settled(self) -> None:
        if self.settled_once or self._scans:
            return
        if all(
            version.state is not ModelState.LOADING
            for model in self._world.models.values()
            for version in model.versions.values()
        ):
            self.settled_once = True
            self._world.log("info", "all models of the start have settled")

    # --- for the state file ------------------------------------------------------------

    def restore(self, saved: list[dict[str, Any]]) -> None:
        """Models of an earlier broker, as `saved_models` wrote them: instances keep their ids."""
        world = self._world
        for entry in saved:
            name = entry["name"]
            model = world.models.setdefault(name, Model(name))
            model.override = entry["override"]
            config = ModelConfig.from_json(json.loads(entry["config"]))
            version = ModelVersion(
                name, entry["version"], entry["directory"], config, entry["generation"]
            )
            version.fingerprint = entry["fingerprint"]
            version.upload = entry["upload"]
            if version.upload:
                self._uploads.take(version.upload)
            version.labels = entry["labels"]
            version.threads = entry["threads"]
            version.move(ModelState.LOADING)
            if entry["completed"]:
                version.complete(config)
            for ident, instance_name, kind, device, device_id in entry["instances"]:
                instance = Instance(ident, version, instance_name, kind, device, device_id)
                instance.has_served = entry["was_ready"]
                version.instances.append(instance)
                world.instances[ident] = instance
            if entry["completed"] and entry["was_ready"]:
                # It served before: requests queue while its workers say hello or are replaced.
                version.move(ModelState.READY)
            model.versions[version.version] = version

    def restore_failures(self, saved: Sequence[tuple[str, str]]) -> None:
        """Models that could not be had, so that the index goes on to say why."""
        for name, failure in saved:
            self._world.models.setdefault(name, Model(name)).failure = failure

    def saved_failures(self) -> list[tuple[str, str]]:
        models = self._world.models.values()
        return [(model.name, model.failure) for model in models if model.failure]

    def saved_models(self) -> list[dict[str, Any]]:
        saved = []
        for model in self._world.models.values():
            for version in model.versions.values():
                if version.state not in _DESIRED or version.reason == UNLOADED:
                    continue
                saved.append(
                    {
                        "name": model.name,
                        "override": model.override,
                        "version": version.version,
                        "directory": version.directory,
                        "config": version.config_text(),
                        "completed": version.signature is not None,
                        "was_ready": version.state is ModelState.READY,
                        "generation": version.generation,
                        "fingerprint": version.fingerprint,
                        "upload": version.upload,
                        "labels": version.labels,
                        "threads": version.threads,
                        "instances": [
                            (one.id, one.name, one.kind, one.device, one.device_id)
                            for one in version.instances
                            if one.state is not InstanceState.EXITED
                        ],
                    }
                )
        return saved


def _outdated() -> RequestError:
    return RequestError(
        "Newer operation has been applied to the model lifecycle, current load operation is"
        " out-dated."
    )


def _failed_reload(reason: str) -> str:
    return f"last load failed: {reason}"


def _load_error(name: str, version: int, reason: str) -> ModelError:
    return ModelError(
        f"load failed for model '{name}': version {version} is at UNAVAILABLE state: {reason};",
        code=Code.LOAD_FAILED,
    )
