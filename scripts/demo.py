#!/usr/bin/env python3
"""Set up the example models, serve them, ask each a real question, show the answers, stop.

`--stay` serves them until Ctrl-C instead and says what to try. Exit code 0: every answer was right;
1: one was not, or the server failed; 3 and 4: the models could not be set up (see setup_models.py).
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import demo_inputs
import numpy as np

from naiad.cli.tables import table
from naiad.client import Client, NaiadError
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

TRY_NEXT = """\
When it says "listening on ...", try in another terminal:

  .venv/bin/naiad status
  .venv/bin/naiad infer string_upper --input INPUT0='["hello"]'
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
    except (ServerFailed, NaiadError) as failure:
        print(f"demo: {failure}", file=sys.stderr)
        return 1


def demonstrate() -> int:
    print("demo: starting naiad serve model_repository", flush=True)
    began = time.monotonic()
    with serve(REPOSITORY) as server:
        print(f"demo: every model is loaded after {time.monotonic() - began:.1f} s", flush=True)
        client = server.client()
        answers = [answer for ask in QUESTIONS for answer in ask(client)]
    rows = [(*answer[:3], "yes" if answer.is_right else "NO") for answer in answers]
    print(table(("MODEL", "QUESTION", "ANSWER", "RIGHT"), rows))
    wrong = sum(not answer.is_right for answer in answers)
    print(f"demo: stopped; {len(answers)} answers, {wrong} wrong; `make serve` keeps it running")
    return 1 if wrong else 0


def ask_magika(client: Client) -> list[Answer]:
    """All files at once: pipelined requests, answered in any order."""
    rules = demo_inputs.FileTypeRules.load(REPOSITORY / "magika")
    futures = {
        name: client.submit("magika", {"bytes": demo_inputs.magika_input(ROOT / name)[None]})
        for name in FILES
    }
    answers = []
    for name, future in futures.items():
        kind = rules.type_of(future.result()["target_label"][0])
        shown = f"{kind.description} ({kind.label}, {kind.score:.0%} sure)"
        answers.append(Answer("magika", f"what is {name}?", shown, kind.label == FILES[name]))
    return answers


def ask_silero_vad(client: Client) -> list[Answer]:
    samples, segments = demo_inputs.demo_recording()

    def ask(
        chunk: demo_inputs.Float32, state: demo_inputs.Float32
    ) -> tuple[demo_inputs.Float32, demo_inputs.Float32]:
        result = client.infer("silero_vad", {"input": chunk, "state": state})
        return result["output"], result["stateN"]

    probabilities = demo_inputs.speech_probabilities(samples, ask)
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


def ask_mlp(client: Client) -> list[Answer]:
    """It knows nothing; what can be checked is that the same question gets the same answer."""
    features = np.linspace(-1, 1, 1024, dtype=np.float32)[None]
    futures = [client.submit("mlp", {"features": features}) for _ in range(32)]
    scores = [future.result()["scores"] for future in futures]
    # A batch of another size may sum in another order: equal up to rounding.
    same = all(np.allclose(one, scores[0], rtol=1e-3, atol=1e-5) for one in scores)
    text = f"{'the same' if same else 'different'} 16 scores, the best is {int(scores[0].argmax())}"
    return [Answer("mlp", "32 times the same 1024 numbers?", text, same)]


def ask_add_sub(client: Client) -> list[Answer]:
    left, right = np.full((1, 16), 5, np.float32), np.full((1, 16), 3, np.float32)
    result = client.infer("add_sub", {"INPUT0": left, "INPUT1": right})
    total, difference = result["OUTPUT0"][0, 0], result["OUTPUT1"][0, 0]
    return [Answer("add_sub", "5 + 3, 5 - 3?", f"{total:g}, {difference:g}",
                   (total, difference) == (8, 2))]  # fmt: skip


def ask_string_upper(client: Client) -> list[Answer]:
    result = client.infer("string_upper", {"INPUT0": np.array([["hello, naiad"]], dtype=object)})
    text = result["OUTPUT0"][0, 0].decode()
    return [Answer("string_upper", '"hello, naiad" in capitals?', text, text == "HELLO, NAIAD")]


def ask_identity(client: Client) -> list[Answer]:
    values = np.arange(16, dtype=np.float32)[None]
    same = bool((client.infer("identity", {"INPUT0": values})["OUTPUT0"] == values).all())
    return [Answer("identity", "0 to 15, please back?", "0 to 15" if same else "others", same)]


QUESTIONS: tuple[Callable[[Client], list[Answer]], ...] = (
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
