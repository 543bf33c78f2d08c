"""Limits that a config is judged by and that another component keeps."""

from __future__ import annotations

from naiad.broker.core import generation
from naiad.config import validate


def test_a_sound_config_gets_all_its_instances() -> None:
    assert validate.INSTANCES_MAX <= generation.INSTANCES_MAX
