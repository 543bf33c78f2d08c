"""Model repositories on disk: which models there are, their versions, configs and faults.

Everything an operator can get wrong comes back as a value that converts to plain JSON; scanning
raises nothing for it. Runs in the repository helper, in `naiad check` and in tests, never in the
broker: disks can be slow and this loads protobuf.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, Literal

from naiad.config.entries import DIRECTORY, FILE, is_broken_link, what_is_at
from naiad.config.faults import Fault, did_you_mean, listed
from naiad.config.model import Json
from naiad.config.model_directory import CONFIGS, ScannedModel, looks_like_model, read_model
from naiad.config.names import model_name_fault, path_text_fault, printable, remote_fault
from naiad.config.pbtxt import FILE_NAME
from naiad.config.surroundings import CPU_ONLY, Surroundings

MODELS_MAX: Final = 10_000
"""Models per repository; a directory with more is not a model repository."""
NOTES_MAX: Final = 50
LABELS_BYTES_MAX: Final = 32 * 2**20
"""Of all models of a scan together: its answer travels in one frame."""

RepositoryFaultKind = Literal[
    "remote",
    "missing",
    "not_a_directory",
    "not_utf8",
    "permission",
    "model_folder",
    "empty",
    "too_many",
]


@dataclass(frozen=True, slots=True)
class RepositoryFault:
    """Why a path is no model repository, as one sentence that says what to do.

    Whether "empty" is a fault is the caller's to say: with explicit control it is not.
    """

    kind: RepositoryFaultKind
    path: str
    message: str

    def to_json(self) -> dict[str, str]:
        return {"kind": self.kind, "path": self.path, "message": self.message}


@dataclass(frozen=True, slots=True)
class Scan:
    """What was found. `missing` are names asked for that no repository has, with the reason."""

    models: tuple[ScannedModel, ...] = ()
    missing: Mapping[str, str] = field(default_factory=dict)
    faults: tuple[RepositoryFault, ...] = ()
    notes: tuple[str, ...] = ()

    def to_json(self) -> Json:
        return {
            "models": [model.to_json() for model in self.models],
            "missing": dict(self.missing),
            "faults": [fault.to_json() for fault in self.faults],
            "notes": list(self.notes),
        }


def scan(
    repositories: Sequence[str],
    names: Sequence[str] | None = None,
    surroundings: Surroundings = CPU_ONLY,
    *,
    override: str | None = None,
) -> Scan:
    """All models of all repositories, or only those with the given names.

    `override` is the JSON of a load request and stands in for their config.pbtxt; RequestError when
    it is no config.

    A model in two repositories is served from neither, as in Triton: it comes back once, with a
    fault that names both places.
    """
    places: dict[str, list[str]] = {}
    faults: list[RepositoryFault] = []
    notes: list[str] = []
    for repository in _distinct(repositories):
        found = _candidates(repository, notes)
        if isinstance(found, RepositoryFault):
            faults.append(found)
            continue
        for name in found:
            places.setdefault(name, []).append(os.path.join(repository, name))
    wanted = sorted(places) if names is None else [name for name in names if name in places]
    models = _without_too_many_labels(
        _model(name, places, surroundings, override) for name in dict.fromkeys(wanted)
    )
    if names is None and models and surroundings.config_name:
        notes += _unused_config_name(surroundings.config_name, models)
    missing = {
        name: _missing(name, repositories, places) for name in names or () if name not in places
    }
    return Scan(tuple(models), missing, tuple(faults), tuple(notes[:NOTES_MAX]))


def names_in(repositories: Sequence[str]) -> list[str]:
    """Names of the models that lie there, unread; of a repository with a fault there are none."""
    found: set[str] = set()
    for repository in _distinct(repositories):
        candidates = _candidates(repository, [])
        if not isinstance(candidates, RepositoryFault):
            found.update(name for name in candidates if model_name_fault(name) is None)
    return sorted(found)


def _without_too_many_labels(models: Iterable[ScannedModel]) -> list[ScannedModel]:
    """Models whose labels find no room any more are faulty."""
    found = []
    left_bytes = LABELS_BYTES_MAX
    for model in models:
        size = sum(len(one.encode()) + 1 for labels in model.labels.values() for one in labels)
        if size <= left_bytes:
            left_bytes -= size
        else:
            fault = Fault(
                "",
                f"the label files of all models are larger than {LABELS_BYTES_MAX} bytes together",
                "shorten some, or load the models one by one",
            )
            model = replace(model, labels={}, faults=(*model.faults, fault))
        found.append(model)
    return found


def _distinct(repositories: Sequence[str]) -> list[str]:
    """Absolute paths, each repository once however it is spelled."""
    by_place: dict[str, str] = {}
    for repository in repositories:
        path = repository if "://" in repository else os.path.abspath(repository)
        by_place.setdefault(os.path.realpath(path), path)
    return list(by_place.values())


def _model(
    name: str,
    places: Mapping[str, Sequence[str]],
    surroundings: Surroundings,
    override: str | None,
) -> ScannedModel:
    directories = places[name]
    if len(directories) == 1:
        model = read_model(directories[0], surroundings, override=override)
        while model.name != name and model.name in places:  # spelled out as another's real name
            model = replace(model, name=f"{model.name}?")
        return model
    fault = Fault(
        "",
        f"duplicate model {printable(name)}: it is in {listed(list(directories))}",
        "keep one of them; until then neither is served",
    )
    return ScannedModel(name=name, directory=directories[0], faults=(fault,))


def _unused_config_name(name: str, models: Sequence[ScannedModel]) -> list[str]:
    """A note when no model has a configuration of the chosen name, which is then misspelt."""
    file = f"{CONFIGS}/{name}.pbtxt"
    if any(os.path.isfile(os.path.join(model.directory, file)) for model in models):
        return []
    return [f"no model has a {file}, so each is configured by its {FILE_NAME}"]


def _missing(name: str, repositories: Sequence[str], known: Mapping[str, object]) -> str:
    fault = model_name_fault(name)
    if fault:
        return fault
    hint = did_you_mean(name, known) or "check the name, or add the directory"
    # Without their paths: clients are told this, and the operator knows them.
    where = f"any of the {len(repositories)} model repositories"
    if len(repositories) == 1:
        where = "the model repository"
    return f"no directory named {printable(name)} in {where}; {hint}"


def _candidates(repository: str, notes: list[str]) -> list[str] | RepositoryFault:
    """Names of a repository's subdirectories, or why it is no repository."""
    shown = printable(repository)
    remote = remote_fault(repository)
    if remote is not None:
        return RepositoryFault("remote", repository, f"model repository {remote}")
    text_fault = path_text_fault(repository)
    if text_fault is not None:
        return RepositoryFault("not_utf8", repository, f"model repository {text_fault}")
    entries = _entries(repository)
    if isinstance(entries, RepositoryFault):
        return entries
    if looks_like_model(repository, [entry.name for entry in entries]):
        parent, name = os.path.split(repository)
        return RepositoryFault(
            "model_folder",
            repository,
            f"{shown} is one model's folder, not a model repository; give its parent "
            f"{printable(parent)} (to serve this one alone: `naiad serve --control-mode explicit "
            f"--load-model {printable(name)} {printable(parent)}`)",
        )
    names = [entry.name for entry in entries if _is_candidate(entry, notes)]
    if not names:
        return RepositoryFault(
            "empty",
            repository,
            f"model repository {shown} holds no models; each model is a directory such as "
            f"{os.path.join(repository, 'mymodel', '1', 'model.onnx')}",
        )
    if len(names) > MODELS_MAX:
        message = f"model repository {shown} holds {len(names)} directories, at most {MODELS_MAX}"
        return RepositoryFault("too_many", repository, f"{message} can be models; is it the right?")
    return names


def _entries(repository: str) -> list[os.DirEntry[str]] | RepositoryFault:
    """What lies there, by name, or why nobody can look."""
    shown = printable(repository)
    try:
        with os.scandir(repository) as entries:
            return sorted(entries, key=lambda entry: entry.name)
    except FileNotFoundError:
        return RepositoryFault(
            "missing",
            repository,
            f"model repository {shown} does not exist ({what_is_at(repository)}); check the path",
        )
    except NotADirectoryError:
        return RepositoryFault(
            "not_a_directory",
            repository,
            f"model repository {shown} is {what_is_at(repository)}; give the directory that holds "
            "the models",
        )
    except OSError as error:
        return RepositoryFault(
            "permission",
            repository,
            f"model repository {shown} cannot be read ({error.strerror}); "
            + (
                f"it is {what_is_at(repository)}, correct the link"
                if is_broken_link(repository)
                else "give this user the right to read and enter it"
            ),
        )


def _is_candidate(entry: os.DirEntry[str], notes: list[str]) -> bool:
    """Directories, links to them, and links that lead nowhere: those were meant to be a model, and
    say so as its fault. What else is passed over and may be a mistake is noted."""
    where = printable(entry.path)
    kind = what_is_at(entry.path)
    is_meant = kind == DIRECTORY or is_broken_link(entry.path)
    if is_meant and entry.name.startswith((".", "__")):
        notes.append(f"skipped hidden directory {where}")
        return False
    if not is_meant and kind != FILE:
        notes.append(f"skipped {where}: it is {kind}, expected a directory")
    return is_meant
