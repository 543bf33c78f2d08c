"""One model's directory: config.pbtxt, version directories, label files, all faults at once.

    bytes ─parse─▶ JSON ─complete (file names)─▶ ─validate─▶ faults ─normalise─▶ served config

Reads the disk; see config.repository for the directory above it.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Final

from naiad.config.backends import WELL_KNOWN_FILES
from naiad.config.entries import DIRECTORY, FILE, NOTHING, is_broken_link, what_is_at
from naiad.config.execution_accelerators import accelerator_warnings
from naiad.config.faults import Fault, listed, without_roots
from naiad.config.fingerprint import fingerprint
from naiad.config.labels import Labels, read_labels
from naiad.config.model import Json, ModelConfig
from naiad.config.names import inner_path_fault, model_name_fault, printable, spelled_out
from naiad.config.normalise import complete, normalise
from naiad.config.pbtxt import CONFIG_BYTES_MAX, FILE_NAME, Parsed, parse
from naiad.config.proto_json import message_to_json, override_to_message
from naiad.config.refusals import refusals
from naiad.config.refusals import warnings as config_warnings
from naiad.config.surroundings import CPU_ONLY, Surroundings
from naiad.config.validate import validate
from naiad.config.versions import choose_versions, version_of

CONFIGS: Final = "configs"
"""The folder of a model with configurations to choose from (--model-config-name)."""
ENTRIES_MAX: Final = 10_000
"""Entries of one directory that are looked at."""
_NEAR_MISSES: Final = frozenset({"config.pbtxt.txt", "config.pbtx", "config.txt", "config.pb.txt"})


@dataclass(frozen=True, slots=True)
class ScannedModel:
    """A model as found. It may be loaded when it has neither faults nor refusals.

    `config` is normalised; None when it did not parse. `refusals` are what this release or this
    machine cannot serve (config.refusals). `versions` are those its version policy serves,
    ascending; `existing` all usable ones. `fingerprint` changes when any of its files does.
    `labels` are those of its label files.
    """

    name: str
    directory: str
    versions: tuple[int, ...] = ()
    existing: tuple[int, ...] = ()
    config: Json | None = None
    faults: tuple[Fault, ...] = ()
    refusals: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    fingerprint: str = ""
    labels: Labels = field(default_factory=dict)

    @property
    def reasons(self) -> list[str]:
        """Why it cannot be served, as everybody may read it."""
        roots = (os.path.dirname(self.directory),)
        return [without_roots(text, roots) for text in (*map(str, self.faults), *self.refusals)]

    def to_json(self) -> Json:
        """The form for the broker: faults and refusals are one list of sentences."""
        return {
            "name": self.name,
            "directory": self.directory,
            "versions": list(self.versions),
            "existing": list(self.existing),
            "config": self.config,
            "faults": self.reasons,
            "warnings": list(self.warnings),
            "fingerprint": self.fingerprint,
            "labels": {name: list(labels) for name, labels in self.labels.items()},
        }


def read_model(
    directory: str, surroundings: Surroundings = CPU_ONLY, *, override: str | None = None
) -> ScannedModel:
    """The model in a directory. A faulty one comes back with its faults.

    `override` is the JSON text of a load request and stands in for config.pbtxt. Raises
    RequestError "Invalid config override: ..." when it is not a ModelConfig.
    """
    name = os.path.basename(directory)
    name_fault = model_name_fault(name)
    if name_fault:
        fault = Fault("", name_fault, "rename the directory, or move it out of the repository")
        return ScannedModel(spelled_out(name), directory, faults=(fault,))
    override_json = None
    if override is not None:
        override_json, override_faults = message_to_json(override_to_message(override))
    try:
        entries = _names(directory)
        digest = fingerprint(directory)
        if override_json is None:
            chosen = _named_config(directory, surroundings.config_name)
            parsed = _read_config(directory, entries, chosen)
            if chosen != FILE_NAME:
                entries = [*entries, FILE_NAME]  # it stands in for it
        else:
            parsed = Parsed(override_json, override_faults)
        model = _model(name, directory, entries, parsed, surroundings)
    except OSError as error:
        return ScannedModel(name, directory, faults=(_unreadable(directory, error),))
    warnings = list(model.warnings)
    if not digest.is_whole:
        warnings.append("the directory holds too many files to notice every change")
    return replace(model, warnings=tuple(warnings), fingerprint=digest.digest)


def _incomplete(given: Json, entries: Sequence[str]) -> list[Fault]:
    """What must be said where nothing is filled in; what each tensor lacks, validation says."""
    missing = [side for side in ("input", "output") if not given.get(side)]
    if not given.get("backend") and not given.get("platform"):
        missing.insert(0, "backend")
    if not missing:
        return []
    said = f"{listed(missing)} not given" if FILE_NAME in entries else f"there is no {FILE_NAME}"
    return [Fault("", said, "write it, or serve without --disable-auto-complete-config")]


def _unreadable(directory: str, error: OSError) -> Fault:
    where = str(error.filename or directory)
    if is_broken_link(where):
        expected = "the model's directory" if where == directory else "what the model needs"
        message = f"expected {expected}, but {printable(where)} is {what_is_at(where)}"
        return Fault("", message, "correct the link, or remove it")
    if isinstance(error, PermissionError):
        remedy = "give this user the right to read the model's directory"
    else:
        remedy = "correct it, or move it out of the model's directory"
    return Fault("", f"cannot read {printable(where)} ({error.strerror})", remedy)


def looks_like_model(directory: str, entries: Sequence[str]) -> bool:
    """Whether a directory is itself one model: a config.pbtxt, or a model file in a version."""
    if FILE_NAME in entries and os.path.isfile(os.path.join(directory, FILE_NAME)):
        return True
    versions = [name for name in entries if isinstance(version_of(name), int)]
    return any(
        os.path.exists(os.path.join(directory, version, filename))
        for version in versions[:ENTRIES_MAX]
        for filename, _ in WELL_KNOWN_FILES
    )


def _model(
    name: str, directory: str, entries: Sequence[str], parsed: Parsed, surroundings: Surroundings
) -> ScannedModel:
    existing, warnings = _versions(directory, entries)
    if FILE_NAME not in entries:
        warnings += _near_misses(entries)
    if parsed.json is None:
        return ScannedModel(name, directory, existing=existing, faults=tuple(parsed.faults))
    if FILE_NAME not in entries and not existing:
        fault = Fault(
            "",
            f"{printable(directory)} has neither a {FILE_NAME} nor a version directory",
            "add the directory 1 with the model's file, or move this one out of the repository",
        )
        return ScannedModel(name, directory, faults=(fault,), warnings=tuple(warnings))
    first = min(map(str, existing), default="")
    files = _names(os.path.join(directory, first)) if first else []
    completed = complete(parsed.json, directory_name=name, files=files)
    config = ModelConfig.from_json(completed.json)
    labels, label_faults = read_labels(config, directory)
    faults = [
        *parsed.faults,
        *completed.faults,
        *validate(config, is_complete=not surroundings.auto_complete),
        *(() if surroundings.auto_complete else _incomplete(parsed.json, entries)),
        *label_faults,
    ]
    usable, ignored = _usable(config, directory, existing)
    choice = choose_versions(config.version_policy, usable)
    warnings += [*completed.warnings, *config_warnings(config), *ignored]
    warnings += [f"version {v} of the version policy does not exist" for v in choice.missing]
    if not choice.versions:
        faults.append(_no_version(name, directory, usable, warnings))
    normalised = normalise(completed.json, surroundings)
    placed = ModelConfig.from_json(normalised)
    refused = refusals(placed, surroundings.backends, surroundings.devices)
    warnings += accelerator_warnings(placed)
    return ScannedModel(
        name,
        directory,
        choice.versions,
        usable,
        normalised,
        tuple(faults),
        tuple(refused),
        tuple(warnings),
        labels=labels,
    )


def _named_config(directory: str, name: str) -> str:
    """Where this model's configuration is: one of that name, if it has one, is preferred."""
    chosen = f"{CONFIGS}/{name}.pbtxt"
    return chosen if name and os.path.isfile(os.path.join(directory, chosen)) else FILE_NAME


def _read_config(directory: str, entries: Sequence[str], chosen: str = FILE_NAME) -> Parsed:
    """The chosen configuration, or an empty one where there is none: it is optional."""
    if chosen == FILE_NAME and FILE_NAME not in entries:
        return parse(b"")
    path = os.path.join(directory, chosen)
    found = what_is_at(path)
    if found != FILE:
        fault = Fault(
            FILE_NAME, f"expected a file, but it is {found}", "write the configuration into a file"
        )
        return Parsed(None, [fault])
    with open(path, "rb") as file:
        return parse(file.read(CONFIG_BYTES_MAX + 1), file=chosen)


def _names(directory: str) -> list[str]:
    with os.scandir(directory) as entries:
        return sorted(entry.name for entry in islice(entries, ENTRIES_MAX))


def _near_misses(entries: Sequence[str]) -> list[str]:
    return [
        f"{printable(entry)} is not read; the configuration's name is {FILE_NAME}"
        for entry in entries
        if entry.lower() in _NEAR_MISSES or (entry.lower() == FILE_NAME and entry != FILE_NAME)
    ]


def _versions(directory: str, entries: Sequence[str]) -> tuple[tuple[int, ...], list[str]]:
    """Version directories, ascending, and why others are none. Links to directories count."""
    found: list[int] = []
    warnings: list[str] = []
    for entry in entries:
        version = version_of(entry)
        kind = what_is_at(os.path.join(directory, entry))
        if isinstance(version, int) and kind == DIRECTORY:
            found.append(version)
        elif isinstance(version, int):
            warnings.append(f"ignored: version {version} is {kind}, expected a directory")
        elif version.reason and kind == DIRECTORY:
            warnings.append(f"ignored: {version.reason}")
    return tuple(sorted(found)), warnings


def _usable(
    config: ModelConfig, directory: str, versions: Sequence[int]
) -> tuple[tuple[int, ...], list[str]]:
    """Versions that hold the model's file, as far as its backend has one."""
    filenames = [name for name in (config.default_model_filename,) if name]
    filenames += [name for name in config.cc_model_filenames.values() if name]
    if not filenames or any(inner_path_fault(name) for name in filenames):
        return tuple(versions), []
    usable: list[int] = []
    warnings: list[str] = []
    for version in versions:
        path = os.path.join(directory, str(version))
        kinds = {name: what_is_at(os.path.join(path, name)) for name in filenames}
        if any(kind in (FILE, DIRECTORY) for kind in kinds.values()):
            usable.append(version)
            continue
        odd = [f"{name} is {kind}" for name, kind in kinds.items() if kind != NOTHING]
        why = f": {'; '.join(odd)}" if odd else f" has no {listed(list(kinds))}"
        warnings.append(f"ignored: version directory '{version}'{why}")
    return tuple(usable), warnings


def _no_version(name: str, directory: str, usable: Sequence[int], warnings: Sequence[str]) -> Fault:
    """Triton's text, then which directories there are and why none will do."""
    ignored = [text.removeprefix("ignored: ") for text in warnings if text.startswith("ignored: ")]
    if usable:
        found = f"it leaves none of the versions {listed([str(v) for v in usable])}"
        remedy = "correct version_policy"
    elif ignored:
        found = f"no model version was found in {printable(directory)}: {'; '.join(ignored[:5])}"
        remedy = "name version directories 1, 2, ... and put the model's file into them"
    else:
        found = f"no model version was found in {printable(directory)}"
        remedy = f"put the model's file into {os.path.join(directory, '1')}"
    return Fault(
        "",
        "at least one version must be available under the version policy of model "
        f"'{name}'; {found}",
        remedy,
    )
