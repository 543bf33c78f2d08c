"""Real files of real users, when NAIAD_CONFIG_CORPUS names a folder of them with an index.tsv."""

from __future__ import annotations

import csv
import os
import re
import time
from pathlib import Path
from typing import NamedTuple

import pytest

from naiad.config.model_directory import ScannedModel, read_model
from naiad.config.pbtxt import parse
from naiad.config.surroundings import OnMissingGpu, Surroundings

VARIABLE = "NAIAD_CONFIG_CORPUS"
CORPUS = os.environ.get(VARIABLE)
BACKENDS = ("identity", "onnxruntime", "python")
MODEL_FILES = ("model.onnx", "model.py", "model.plan", "model.pt", "model.savedmodel")
SECONDS_MAX = 5.0

# A clause of the column naiad_must, and what the faults of such a file must match.
MUST = {
    r"name the field that has no value": r"^config\.pbtxt:\d+:\d+: field \"\w+\" has no value",
    r"unreplaced template word": r"^config\.pbtxt:\d+:\d+: unreplaced template .*(script|envsubst"
    r"|Jinja2)",
    r"not a model configuration": r"not a model configuration.*Python",
    r"did you mean TYPE_STRING": r"^config\.pbtxt:33:16: .*did you mean TYPE_STRING\?",
    r"unknown backend \"(?P<name>\w+)\"": r"\"{name}\" is not installed; installed backends: "
    r"identity, onnxruntime, python \(searched: ",
    r"without GPU: one error naming the device": r"needs an NVIDIA GPU \(visible devices: cpu\)",
    r"KIND_GPU on a machine without GPU": r"no GPU is visible \(visible devices: cpu\)",
    r"ensemble comes later": r"ensembles are not in this release",
    r"NO ISSUE PLANS PYTORCH": r"\"pytorch\" is not in this release",
    r"never planned": r"not in any planned release.*tf2onnx.*python",
    r"or the error lists what was looked for": r"looked for .*model\.onnx",
    r"sequence_batching: not in": r"^sequence_batching: .*not in this release",
    r"decoupled: not in": r"decoupled: .*not in this release",
    r"response_cache: not in": r"^response_cache: .*not in this release",
    r"model_warmup: not in": r"^model_warmup: .*not in this release",
    r"EXECUTION_ENV_PATH: not in": r"EXECUTION_ENV_PATH.*not in this release",
    r"repository agent: refuse": r"^model_repository_agents checksum: .*not in this release",
}
LOADS = "loads in release A"


class Entry(NamedTuple):
    file: str
    must: str


def entries() -> list[Entry]:
    if CORPUS is None:
        return []
    with open(Path(CORPUS) / "index.tsv", encoding="utf-8", newline="") as file:
        rows = csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE)
        return [Entry(row["file"], row["naiad_must"]) for row in rows]


def scanned(
    entry: Entry, directory: Path, on_missing_gpu: OnMissingGpu = "fail"
) -> tuple[ScannedModel, list[str]]:
    """The file as a model of its own, with the model's file beside it."""
    data = (Path(CORPUS or "") / entry.file).read_bytes()
    json = parse(data).json or {}
    model = directory / (json.get("name") or entry.file.removesuffix(".pbtxt"))
    (model / "1").mkdir(parents=True)
    (model / "config.pbtxt").write_bytes(data)
    named = json.get("default_model_filename")
    is_told = bool(json.get("platform") or json.get("backend"))
    for filename in ((named,) if named else MODEL_FILES) if is_told else ():
        (model / "1" / filename).write_text("")
    found = read_model(str(model), Surroundings(backends=BACKENDS, on_missing_gpu=on_missing_gpu))
    return found, [*map(str, found.faults), *found.refusals]


def test_the_corpus_is_there() -> None:
    if CORPUS is None:
        pytest.skip(f"{VARIABLE} names no folder of real config.pbtxt files")
    assert len(entries()) > 0


@pytest.mark.parametrize("entry", entries(), ids=lambda entry: entry.file)
def test_is_served_or_refused_as_the_index_demands(entry: Entry, tmp_path: Path) -> None:
    model, sentences = scanned(entry, tmp_path)
    demands = [
        expected.format(**match.groupdict()) if "{name}" in expected else expected
        for clause, expected in MUST.items()
        if (match := re.search(clause, entry.must))
    ]

    for demand in demands:
        assert any(re.search(demand, text) for text in sentences), (demand, sentences)
    assert demands or entry.must == LOADS, f"no rule for: {entry.must}"
    if entry.must == LOADS:
        assert sentences == []
        assert model.versions == (1,)
    for fault in model.faults:
        assert fault.remedy


@pytest.mark.parametrize(
    "entry",
    [entry for entry in entries() if "KIND_GPU on a machine" in entry.must],
    ids=lambda entry: entry.file,
)
def test_gpu_groups_load_on_the_cpu_when_told_to(entry: Entry, tmp_path: Path) -> None:
    model, sentences = scanned(entry, tmp_path, on_missing_gpu="cpu")

    assert sentences == []
    assert model.config is not None
    assert {group["kind"] for group in model.config["instance_group"]} == {"KIND_CPU"}


def test_all_of_them_in_time(tmp_path: Path) -> None:
    if CORPUS is None:
        pytest.skip(f"{VARIABLE} names no folder of real config.pbtxt files")
    start = time.monotonic()
    for entry in entries():
        scanned(entry, tmp_path / entry.file)

    assert time.monotonic() - start < SECONDS_MAX
