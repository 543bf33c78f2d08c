"""The speech detector on all sides: where its file comes from, and that everybody answers alike.

Owns the models `vad` (peers/repository: model.py, state of zeros inside) and `silero_vad`
(model_repository: onnxruntime, the state is an input) of one benchmark's repositories.
"""

from __future__ import annotations

import shutil
import zipfile
from pathlib import Path
from typing import Final

import numpy as np
from benchmarks import foreign
from benchmarks.peer_servers import VAD_MODEL_NAME
from benchmarks.questions import QUESTIONS, require_vad_answer, vad_answer

from naiad.client import Client

HERE: Final = Path(__file__).resolve().parent
WHEELS: Final = HERE.parent / ".cache" / "wheels"
"""Where scripts/setup_models.py keeps what it fetched."""
MEMBER: Final = "silero_vad/data/silero_vad_16k_op15.onnx"
STATEFUL_MEMBER: Final = "silero_vad/data/silero_vad_openvino_16k.onnx"


def add_models(given: str, ours: Path, peers: Path, folder: Path) -> None:
    """Both models into naiad's repository, `vad` into the peers', its file into the folder.

    `given` is the ONNX file or the wheel; by default the wheel in WHEELS. Without the wheel the
    model with onnxruntime is taken as scripts/setup_models.py left it.
    """
    source = Path(given) if given else _wheel()
    file = folder / VAD_MODEL_NAME
    if source.suffix == ".whl":
        file.write_bytes(_member(source, MEMBER))
    else:
        shutil.copy(source, file)
    for repository in (ours, peers):
        shutil.copytree(HERE / "peers" / "repository" / "vad", repository / "vad")
        shutil.copy(file, repository / "vad" / "1" / VAD_MODEL_NAME)
    stateful = shutil.copytree(HERE.parent / "model_repository" / "silero_vad", ours / "silero_vad")
    target = stateful / "1" / "model.onnx"
    if not target.exists():
        wheel = source if source.suffix == ".whl" else _wheel()
        target.write_bytes(_member(wheel, STATEFUL_MEMBER))


def require_right_answers(run_dir: str, urls: dict[str, str], folder: Path) -> None:
    """One request to each server and backend, against a run in this process. Exits when wrong."""
    expected = vad_answer(str(folder / VAD_MODEL_NAME))
    with Client(run_dir) as client:
        for model in ("vad", "silero_vad"):
            question = QUESTIONS[model]()
            found = client.infer(model, question.inputs, question.outputs)[question.output]
            require_vad_answer(f"naiad, {model}", found, expected)
    frame = QUESTIONS["vad"]().inputs["INPUT0"]
    body = foreign.binary_body(frame)
    bodies = {"naiad": body, "triton": body, "mosec": foreign.raw_body(frame)}
    for name, url in urls.items():
        answer = foreign.post(url, bodies[name])
        require_vad_answer(name, np.frombuffer(answer[-4:], dtype=np.float32), expected)


def _wheel() -> Path:
    found = sorted(WHEELS.glob("silero_vad-*.whl"))
    if not found:
        raise SystemExit(
            f"no wheel of silero-vad in {WHEELS}; run scripts/setup_models.py, or give --vad-model"
        )
    return found[-1]


def _member(wheel: Path, name: str) -> bytes:
    with zipfile.ZipFile(wheel) as archive:
        return archive.read(name)
