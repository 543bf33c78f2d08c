"""Models come and go: load, reload, unload, as the repository and the operator say.

Owns the table of models, and what begins to load. A reload is make-before-break: the incoming
generation loads beside the serving one, and when it is there succession swaps them. A failed load
leaves the old one serving and says so. Never reads a repository: scans asks, generation builds
what was found.
"""

from __future__ import annotations

from naiad.broker.core.endings import Endings
from naiad.broker.core.events import Json, SaveState
from naiad.broker.core.fleet import Fleet
from naiad.broker.core.generation import new_generation
from naiad.broker.core.loading import Loading
from naiad.broker.core.models import Call, Model, ModelState, ModelVersion
from naiad.broker.core.scans import Scan, Scans
from naiad.broker.core.succession import Succession, failed_reload, reply
from naiad.broker.core.uploads import Uploads
from naiad.broker.core.world import World
from naiad.config.model import ModelConfig
from naiad.config.names import model_name_fault
from naiad.protocol.errors import Code, NaiadError, RequestError, Unavailable


class Catalog:
    """Loads and unloads models."""

    def __init__(
        self,
        world: World,
        fleet: Fleet,
        endings: Endings,
        loading: Loading,
        uploads: Uploads,
        *,
        explicit: bool,
    ) -> None:
        self._world = world
        self._uploads = uploads
        self._fleet = fleet
        self._endings = endings
        self._loading = loading
        self.explicit = explicit
        self._scans = Scans(world)
        self._succession = Succession(world, endings)
        self.settled_once = False
        """Whether every model of the start has become READY or UNAVAILABLE."""

    @property
    def has_scanned(self) -> bool:
        """Whether it is known what is to be served from the start."""
        return self._scans.is_start_known

    # --- asking for loads --------------------------------------------------------------

    def start(self, names: tuple[str, ...] | None) -> None:
        """Load what is served from the beginning; None means every model of the repositories."""
        if names is None or names:
            self._scans.ask(Scan(names, [], None, ""))
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
            self._scans.ask(Scan((name,), [call], override, upload))
        finally:
            self._drop_uploads()

    def _check_load(self, name: str, override: str | None, upload: str) -> None:
        if upload:
            self._uploads.check(override)
        self._check_explicit()
        self._scans.check_room(override)
        fault = model_name_fault(name)
        if fault is not None:
            raise RequestError(fault)  # before anybody looks for a directory of that name

    def _check_explicit(self) -> None:
        if not self.explicit:
            raise Unavailable(
                "explicit model load / unload is not allowed if polling is enabled; start the"
                " server with --control-mode explicit to allow it",
                retryable=False,
            )

    def unload(self, name: str, call: Call) -> None:
        """Drain and end every version of a model; unknown names succeed, as in Triton."""
        self._check_explicit()
        model = self._world.models.get(name)
        if model is not None:
            model.override = None
            self._succession.answer(model, _outdated())
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
        reply(self._world, [call], None)
        self._world.actions.append(SaveState())

    @property
    def allows_files(self) -> bool:
        """Whether a load may bring the model's files along."""
        return self._uploads.is_allowed

    def _drop_uploads(self) -> None:
        self._uploads.drop_unused(self._scans.uploads())

    # --- answers of the repository helper ----------------------------------------------

    def scanned(
        self,
        token: int,
        entries: tuple[Json, ...],
        fault: str | None,
        is_lost: bool = False,
        notes: tuple[str, ...] = (),
    ) -> None:
        if is_lost:
            self._lost(self._scans.lost(token, str(fault)), str(fault))
            return
        scan = self._scans.answered(token)
        if scan is None:
            return
        self._world.scanning = not self.has_scanned
        for note in notes if scan.names is None else ():
            self._world.log("info", f"model repository: {note}")
        if fault is not None:
            self._world.log("error", f"model repository: {fault}")
            if not entries:
                reply(self._world, scan.calls, RequestError(fault))
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

    def _lost(self, scan: Scan | None, fault: str) -> None:
        """A load whose model nobody could look at; what is served already goes on."""
        if scan is None:
            return
        for name in scan.names or ():
            text = f"failed to load '{name}': {fault}"
            self._world.log("error", text)
            model = self._world.models.get(name)
            if model is not None:
                model.failure = failed_reload(text)
            reply(self._world, scan.calls, Unavailable(text))
        self._check_settled()
        self._drop_uploads()

    def _missing(self, name: str, why: str, calls: list[Call]) -> None:
        text = f"failed to load '{name}', failed to poll from model repository: {why}"
        self._world.log("error", text)
        model = self._world.models.get(name)
        if model is not None:
            model.failure = failed_reload(text)
        elif not calls:
            self._world.models[name] = model = Model(name)
            model.failure = text
        self._world.actions.append(SaveState())
        reply(self._world, calls, NaiadError(text, code=Code.INTERNAL))

    def _spoiled(self, name: str, scan: Scan, raised: Exception) -> None:
        """A load that failed by a fault of ours: its own calls alone, what serves goes on."""
        world = self._world
        fault = world.blame(raised, f"the load of '{name}'")
        model = world.models.setdefault(name, Model(name))
        model.calls = [call for call in model.calls if call not in scan.calls]
        failed, model.incoming = model.incoming, {}
        model.failure = failed_reload(fault.message) if model.versions else fault.message
        for version in failed.values():
            self._endings.retire(version)
        world.actions.append(SaveState())
        reply(self._world, scan.calls, fault)

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
            self._succession.settle_serving(model)
            return
        config = ModelConfig.from_json(config_json)
        fresh = new_generation(world, name, entry, config, scan.upload)
        for version in model.incoming.values():
            self._endings.retire(version)
        self._succession.answer(model, _outdated())
        model.calls.extend(scan.calls)
        model.incoming_override = scan.override
        model.failure = ""
        for version in fresh.values():
            world.instances.update({one.id: one for one in version.instances})
        model.incoming = fresh
        model.incoming_since_ns = world.now_ns
        if not any(one.state is ModelState.READY for one in model.versions.values()):
            self._succession.swap(model)
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
        model.failure = failed_reload(reason) if model.versions else reason
        self._world.log("error", f"model {model.name}: {reason}")
        self._world.actions.append(SaveState())
        reply(self._world, calls, RequestError(f"load failed for model '{model.name}': {reason}"))

    # --- settling ----------------------------------------------------------------------

    def settled(self, version: ModelVersion) -> None:
        """A version became READY or UNAVAILABLE, or one more of its instances is there."""
        self._drop_uploads()
        model = self._world.models.get(version.name)
        if model is not None:
            self._succession.settled(model, version)
            self._check_settled()

    def _check_settled(self) -> None:
        if self.settled_once or not self._scans.are_answered:
            return
        if all(
            version.state is not ModelState.LOADING
            for model in self._world.models.values()
            for version in model.versions.values()
        ):
            self.settled_once = True
            self._world.log("info", "all models of the start have settled")


def _outdated() -> RequestError:
    return RequestError(
        "Newer operation has been applied to the model lifecycle, current load operation is"
        " out-dated."
    )
