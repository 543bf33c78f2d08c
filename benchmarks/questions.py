"""What the closed loops ask: for each workload the inputs, the output to read, the right answer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple

import numpy as np

SEED: Final = 1
VAD_TOLERANCE: Final = 1e-4
VAD_STATE: Final = (2, 1, 128)
VAD_RATE: Final = 16000


class Question(NamedTuple):
    """Arrays by name. `expected` is None where only a run of the model can tell; `outputs` are the
    names asked for, by default all."""

    inputs: dict[str, Any]
    output: str
    expected: Any
    outputs: tuple[str, ...] = ()


def _echo(*shape: int) -> Question:
    array = np.random.default_rng(SEED).random(shape, dtype=np.float32)
    return Question({"INPUT0": array}, "OUTPUT0", array)


def _frame() -> Any:
    """36 ms of noise."""
    return np.random.default_rng(SEED).random((1, 576), dtype=np.float32) - np.float32(0.5)


def _vad() -> Question:
    return Question({"INPUT0": _frame()}, "OUTPUT0", None)


def _vad_with_state() -> Question:
    state = np.zeros(VAD_STATE, dtype=np.float32)
    return Question({"input": _frame(), "state": state}, "output", None, ("output",))


QUESTIONS: Final[dict[str, Callable[[], Question]]] = {
    "identity": lambda: _echo(1, 16),
    "identbig": lambda: _echo(1, 3, 224, 224),
    "vad": _vad,
    "silero_vad": _vad_with_state,
}


def vad_answer(model: str) -> float:
    """What the detector says of `_frame`, from a run of onnxruntime in this process."""
    import onnxruntime

    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    inputs = {
        "input": _frame(),
        "state": np.zeros(VAD_STATE, dtype=np.float32),
        "sr": np.array(VAD_RATE, dtype=np.int64),
    }
    return float(session.run(["output"], inputs)[0].item())


def require_vad_answer(who: str, found: Any, expected: float) -> None:
    """An answer that is wrong makes every figure worthless."""
    values = np.asarray(found, dtype=np.float32).ravel()
    if values.shape != (1,) or abs(float(values[0]) - expected) > VAD_TOLERANCE:
        raise SystemExit(f"{who}: wrong answer {values!r:.100}, expected {expected:.5f}")
