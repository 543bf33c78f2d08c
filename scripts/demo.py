#!/usr/bin/env python3
"""Set up the example models, serve them, ask each a real question, show the answers, stop.

First through naiad's own client, then the same through every other door: curl and Triton's clients.
`--stay` serves them until Ctrl-C instead and says what to try. Exit code 0: every answer was right,
the same through every door; 1: one was not, or the server failed; 3 and 4: the models could not be
set up (see setup_models.py).
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import demo_inputs
import numpy as np
from demo_doors import Ask, Door, DoorFailed, Tensors, curl_line, doors
from numpy.typing import NDArray
from tritonclient.utils import InferenceServerException

from naiad.cli.tables import table
from naiad.client import NaiadError
from naiad.testing.server import ServerFailed, serve

ROOT = Path(__file__).resolve().parent.parent
REPOSITORY = ROOT / "model_repository"
SPEECH_MIN = 0.5
FILES = {
    "README.md": "markdown",
    "protocol/codec.py": "python",
    "pyproject.toml": "toml",
    "scripts/setup": "shell",
    "config/proto/model_config.proto": "proto",
    "Makefile": "makefile",
}
"""Files of this checkout and what any person would call them."""
SHOUT: Tensors = {"INPUT0": np.array([["hello, naiad"]], dtype=object)}

TRY_NEXT = """\
When it says "listening on ...", try in another terminal:

  .venv/bin/naiad status
  .venv/bin/naiad infer string_upper --input INPUT0='["hello"]'
  curl localhost:8000/v2/models/string_upper/infer -d \
    '{"inputs":[{"name":"INPUT0","datatype":"BYTES","shape":[1,1],"data":["hello"]}]}'
  .venv/bin/naiad perf -m identity --concurrency 1,16
  kill -9 PID        of a worker that `naiad status` shows, then ask again: nothing is lost

Ctrl-C here stops everything.
"""


class Answer(NamedTuple):
    """One row of the table; `is_right` as a person would judge."""

    model: str
    question: str
    answer: str
    is_right: bool


def main() -> int:
    setup = [sys.executable, str(ROOT / "scripts" / "setup_models.py")]
    code = subprocess.run(setup, check=False).returncode
    if code != 0:
        return code
    if "--stay" in sys.argv[1:]:
        print(TRY_NEXT, flush=True)
        command = [sys.executable, "-m", "naiad", "serve", str(REPOSITORY), *sys.argv[2:]]
        os.execv(sys.executable, command)
    try:
        return demonstrate()
    except (ServerFailed, NaiadError, DoorFailed, InferenceServerException) as failure:
        print(f"demo: {failure}", file=sys.stderr)
        return 1


def demonstrate() -> int:
    print("demo: starting naiad serve model_repository", flush=True)
    began = time.monotonic()
    with serve(REPOSITORY, arguments=["--http-port", "0", "--grpc-port", "0"]) as server:
        print(f"demo: every model is loaded after {time.monotonic() - began:.1f} s", flush=True)
        with doors(server) as (own, *others):
            expected = visit(own)
            rows = [(*one[:3], "yes" if one.is_right else "NO") for one in expected.answers]
            print(table(("MODEL", "QUESTION", "ANSWER", "RIGHT"), rows), flush=True)
            print("\ndemo: the same questions through the other doors, such as", flush=True)
            print(f"  {curl_line(server.http_url, 'string_upper', SHOUT)}", flush=True)
            visits = [visit(door) for door in others]
    rows = [one.row(expected) for one in (expected, *visits)]
    print(table(("DOOR", "QUESTIONS", "SECONDS", "ANSWERS"), rows))
    wrong = sum(not answer.is_right for answer in expected.answers)
    strange = [one.door for one in visits if not one.agrees(expected)]
    if strange:
        print(f"demo: other answers than naiad's own client got: {'; '.join(strange)}")
    print(f"demo: stopped; {len(rows)} doors, {wrong} wrong answers, {len(strange)} other answers; "
          "`make serve` keeps it running")  # fmt: skip
    return 1 if wrong or strange else 0


class Visit(NamedTuple):
    """All questions through one door: the answers, every tensor that came, and how long it took."""

    door: str
    answers: list[Answer]
    tensors: list[Tensors]
    seconds: float

    def agrees(self, other: Visit) -> bool:
        """The same answers, and the same tensors but for rounding.

        A batch of another size may sum in another order.
        """
        return self.answers == other.answers and all(
            mine.keys() == theirs.keys() and all(same(mine[name], theirs[name]) for name in mine)
            for mine, theirs in zip(self.tensors, other.tensors, strict=True)
        )

    def row(self, expected: Visit) -> tuple[str, int, str, str]:
        said = "above" if self is expected else "the same" if self.agrees(expected) else "OTHERS"
        return self.door, len(self.tensors), f"{self.seconds:.1f}", said


def visit(door: Door) -> Visit:
    tensors: list[Tensors] = []

    def ask(model: str, questions: Sequence[Tensors]) -> list[Tensors]:
        found = door.ask(model, questions)
        tensors.extend(found)
        return found

    began = time.monotonic()
    answers = [answer for ask_model in QUESTIONS for answer in ask_model(ask)]
    return Visit(door.name, answers, tensors, time.monotonic() - began)


def same(mine: NDArray[Any], theirs: NDArray[Any]) -> bool:
    if (mine.shape, mine.dtype) != (theirs.shape, theirs.dtype):
        return False
    if mine.dtype == object:
        return bool((mine == theirs).all())
    return np.allclose(mine, theirs, rtol=1e-3, atol=1e-5)


def ask_magika(ask: Ask) -> list[Answer]:
    rules = demo_inputs.FileTypeRules.load(REPOSITORY / "magika")
    found = ask(
        "magika", [{"bytes": demo_inputs.magika_input(ROOT / name)[None]} for name in FILES]
    )
    answers = []
    for name, outputs in zip(FILES, found, strict=True):
        kind = rules.type_of(outputs["target_label"][0])
        shown = f"{kind.description} ({kind.label}, {kind.score:.0%} sure)"
        answers.append(Answer("magika", f"what is {name}?", shown, kind.label == FILES[name]))
    return answers


def ask_silero_vad(ask: Ask) -> list[Answer]:
    samples, segments = demo_inputs.demo_recording()

    def listen(
        chunk: demo_inputs.Float32, state: demo_inputs.Float32
    ) -> tuple[demo_inputs.Float32, demo_inputs.Float32]:
        (outputs,) = ask("silero_vad", [{"input": chunk, "state": state}])
        return outputs["output"], outputs["stateN"]

    probabilities = demo_inputs.speech_probabilities(samples, listen)
    answers = []
    for segment in segments:
        mean = float(probabilities[segment.chunks()].mean())
        is_speech = mean >= SPEECH_MIN
        where = f"{segment.start_seconds:g} to {segment.stop_seconds:g} s"
        answers.append(
            Answer(
                "silero_vad",
                f"speech in the {segment.sound} from {where}?",
                f"{'yes' if is_speech else 'no'} ({mean:.0%})",
                is_speech == (segment.sound == "voice"),
            )
        )
    return answers


def ask_mlp(ask: Ask) -> list[Answer]:
    """It knows nothing; what can be checked is that the same question gets the same answer."""
    features = np.linspace(-1, 1, 1024, dtype=np.float32)[None]
    scores = [outputs["scores"] for outputs in ask("mlp", [{"features": features}] * 32)]
    alike = all(same(one, scores[0]) for one in scores)
    text = f"{'the same' if alike else 'different'} 16 scores, the best is {scores[0].argmax()}"
    return [Answer("mlp", "32 times the same 1024 numbers?", text, alike)]


def ask_add_sub(ask: Ask) -> list[Answer]:
    left, right = np.full((1, 16), 5, np.float32), np.full((1, 16), 3, np.float32)
    (outputs,) = ask("add_sub", [{"INPUT0": left, "INPUT1": right}])
    total, difference = outputs["OUTPUT0"][0, 0], outputs["OUTPUT1"][0, 0]
    return [Answer("add_sub", "5 + 3, 5 - 3?", f"{total:g}, {difference:g}",
                   (total, difference) == (8, 2))]  # fmt: skip


def ask_string_upper(ask: Ask) -> list[Answer]:
    (outputs,) = ask("string_upper", [SHOUT])
    text = outputs["OUTPUT0"][0, 0].decode()
    return [Answer("string_upper", '"hello, naiad" in capitals?', text, text == "HELLO, NAIAD")]


def ask_identity(ask: Ask) -> list[Answer]:
    values = np.arange(16, dtype=np.float32)[None]
    (outputs,) = ask("identity", [{"INPUT0": values}])
    alike = bool((outputs["OUTPUT0"] == values).all())
    return [Answer("identity", "0 to 15, please back?", "0 to 15" if alike else "others", alike)]


QUESTIONS: tuple[Callable[[Ask], list[Answer]], ...] = (
    ask_magika,
    ask_silero_vad,
    ask_mlp,
    ask_add_sub,
    ask_string_upper,
    ask_identity,
)

if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        print("demo: interrupted", file=sys.stderr)
        sys.exit(130)
