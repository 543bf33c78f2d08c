"""docs/model_configuration.md says what the code does."""

from __future__ import annotations

import re
from pathlib import Path

from naiad.config.model import ModelConfig
from naiad.config.normalise import complete, normalise
from naiad.config.parameters import TABLE
from naiad.config.pbtxt import parse
from naiad.config.refusals import refusals
from naiad.config.validate import validate

TEXT = (Path(__file__).resolve().parents[3] / "docs" / "model_configuration.md").read_text()


def test_every_example_is_sound_and_served() -> None:
    examples = re.findall(r"```pbtxt\n(.*?)```", TEXT, re.DOTALL)

    assert examples
    for example in examples:
        json, faults = parse(example.encode())
        assert json is not None, faults
        completed = complete(json, directory_name="m", files=[])
        config = ModelConfig.from_json(normalise(completed.json))
        assert [*faults, *completed.faults, *validate(config, is_complete=True)] == []
        assert refusals(config, ("onnxruntime",), ("cpu",)) == []


def test_the_table_of_parameters_is_the_code_s() -> None:
    rows = [
        f"| `{row.name}` | {str(row.default).lower()} | {row.unit} | {row.meaning} |".replace(
            "|  |", "| |"
        )
        for row in TABLE
    ]

    assert "\n".join(rows) in TEXT
