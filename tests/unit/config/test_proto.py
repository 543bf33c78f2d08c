"""The generated schema: current, public numbers, and at peace with tritonclient's."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from google.protobuf import descriptor_pool

from naiad.config.proto.model_config_pb2 import ModelConfig

ROOT = Path(__file__).resolve().parents[3]


def test_the_committed_file_is_what_the_schema_compiles_to() -> None:
    pytest.importorskip("grpc_tools")

    command = [sys.executable, str(ROOT / "scripts" / "generate_protos"), "--check"]
    assert subprocess.run(command, check=False).returncode == 0


@pytest.mark.parametrize(
    ("message", "field", "number"),
    [
        ("ModelConfig", "backend", 17),
        ("ModelConfig", "max_batch_size", 4),
        ("ModelConfig", "dynamic_batching", 11),
        ("ModelConfig", "model_metrics", 26),
        ("ModelInput", "optional", 8),
        ("ModelOutput", "label_filename", 4),
        ("ModelInstanceGroup", "gpus", 3),
        ("ModelDynamicBatching", "priority_queue_policy", 7),
    ],
)
def test_field_numbers_are_the_public_ones(message: str, field: str, number: int) -> None:
    pool = ModelConfig.DESCRIPTOR.file.pool
    descriptor = pool.FindMessageTypeByName(f"inference.{message}")

    assert descriptor.fields_by_name[field].number == number


def test_the_default_pool_knows_nothing_of_it() -> None:
    with pytest.raises(KeyError):
        descriptor_pool.Default().FindFileByName("naiad/config/proto/model_config.proto")


def test_tritonclient_can_be_imported_beside_it() -> None:
    triton = pytest.importorskip("tritonclient.grpc.model_config_pb2")

    theirs = triton.ModelConfig(name="m", max_batch_size=3)
    ours = ModelConfig.FromString(theirs.SerializeToString())
    assert ours.SerializeToString() == theirs.SerializeToString()
