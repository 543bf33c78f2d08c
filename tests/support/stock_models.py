"""A repository of Python models that naiad and Triton serve alike, for tests with stock tools.

Its models echo INPUT0 as OUTPUT0. A request may ask for more by its parameters: `sleep_ms`, `raise`
(an error of this text for it alone).
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from support.grpc_models import DATATYPES
from support.models import add_python

ECHO: Final = """\
import json
import time

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        return [answer(request) for request in requests]


def answer(request):
    asked = json.loads(request.parameters() or "{}")
    end = time.monotonic() + int(asked.get("sleep_ms", 0)) / 1000
    while time.monotonic() < end and not request.is_cancelled():
        time.sleep(0.005)
    if "raise" in asked:
        return pb_utils.InferenceResponse(error=pb_utils.TritonError(asked["raise"]))
    outputs = []
    for tensor in request.inputs():
        name = tensor.name().replace("IN", "OUT")
        if name in request.requested_output_names():
            # BF16 has no NumPy type: it can only be passed on.
            passed = pb_utils.Tensor.from_dlpack(name, tensor.to_dlpack()) if BF16 else None
            outputs.append(passed or pb_utils.Tensor(name, tensor.as_numpy()))
    return pb_utils.InferenceResponse(outputs)


BF16 = False
"""
ADDER: Final = """\
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        return [answer(request) for request in requests]


def answer(request):
    first, second = (
        pb_utils.get_input_tensor_by_name(request, name).as_numpy()
        for name in ("INPUT0", "INPUT1")
    )
    both = {"OUTPUT0": first + second, "OUTPUT1": first - second}
    return pb_utils.InferenceResponse(
        [pb_utils.Tensor(name, both[name]) for name in both
         if name in request.requested_output_names()]
    )
"""
RAISES_AT_LOAD: Final = """\
import triton_python_backend_utils


class TritonPythonModel:
    def initialize(self, args):
        raise ValueError("not today")

    def execute(self, requests):
        return []
"""
LABELS: Final = ("zero", "one", "two words", "")
LABELLED_OUTPUT: Final = 'output { label_filename: "labels.txt" name: "OUTPUT0"'

TUNED: Final = """\
version_policy { specific { versions: [ 1, 3 ] } }
dynamic_batching {
  preferred_batch_size: [ 2, 4 ]
  max_queue_delay_microseconds: 100
  preserve_ordering: false
  priority_levels: 3
  default_priority_level: 2
  default_queue_policy { timeout_action: DELAY default_timeout_microseconds: 5000000 }
  priority_queue_policy { key: 1 value { max_queue_size: 10 allow_timeout_override: true } }
}
optimization { input_pinned_memory { enable: false } }
"""


def stock_repository(repository: Path) -> Path:
    """Write every model there; `refuses` fails to load on purpose, and is not to be loaded."""
    for datatype in DATATYPES:
        source = ECHO.replace("BF16 = False", f"BF16 = {datatype == 'BF16'}")
        tensor = f"{datatype} -1"
        _add(repository, f"echo_{datatype.lower()}", tensor, source)
    for name in ("identity", "spare"):
        _add(repository, name, "FP32 16", max_batch_size=8, extra="dynamic_batching { }")
    _add(repository, "text", "BYTES 1", max_batch_size=8)
    _add(repository, "batched", "FP32 4", max_batch_size=8)
    # Waits long enough for four requests to be one batch.
    delay = "preferred_batch_size: [ 4 ] max_queue_delay_microseconds: 5000000"
    _add(repository, "by_four", "FP32 4", max_batch_size=4, extra=f"dynamic_batching {{ {delay} }}")
    _add(repository, "tuned", "FP32 4", max_batch_size=8, extra=TUNED, versions=(1, 2, 3))
    _add(repository, "refuses", "FP32 4", RAISES_AT_LOAD)
    add_python(
        repository, "adder", ADDER, ("INPUT0 FP32 16", "INPUT1 FP32 16"),
        ("OUTPUT0 FP32 16", "OUTPUT1 FP32 16"), max_batch_size=8,
    )  # fmt: skip
    labelled = _add(repository, "labelled", "FP32 4", max_batch_size=8)
    config = labelled / "config.pbtxt"
    text = config.read_text().replace('output { name: "OUTPUT0"', LABELLED_OUTPUT)
    config.write_text(text)
    (labelled / "labels.txt").write_text("".join(f"{label}\n" for label in LABELS))
    return repository


def _add(
    repository: Path,
    name: str,
    tensor: str,
    source: str = ECHO,
    *,
    max_batch_size: int = 0,
    extra: str = "",
    versions: tuple[int, ...] = (1,),
) -> Path:
    return add_python(
        repository, name, source, (f"INPUT0 {tensor}",), (f"OUTPUT0 {tensor}",),
        max_batch_size=max_batch_size, extra=extra, versions=versions,
    )  # fmt: skip


LOADED: Final = (
    *(f"echo_{datatype.lower()}" for datatype in DATATYPES),
    "identity", "text", "batched", "by_four", "tuned", "adder", "labelled",
)  # fmt: skip
"""What the tests' servers load at the start."""
