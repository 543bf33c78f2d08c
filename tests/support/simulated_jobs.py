"""Jobs for tests of the parts of the scheduler that only look at jobs."""

from __future__ import annotations

from naiad.broker.core.job import Job
from naiad.broker.core.models import ModelVersion
from naiad.broker.core.sessions import Session
from naiad.config.model import ModelConfig
from naiad.protocol.messages import InferRequest

_SESSION = Session(1, "client", 1)
_MODEL = ModelVersion("m", 1, "/m", ModelConfig.from_json({"name": "m"}), 1)


def job(
    number: int,
    *,
    key: object = None,
    rows: int = 1,
    level: int = 0,
    enqueued_ns: int = 0,
    timeout_ns: int = 0,
) -> Job:
    """A queued job; `timeout_ns` counts from `enqueued_ns`."""
    request = InferRequest(number, 1, "m", -1, str(number), (), ())
    made = Job(number, _SESSION, request, _MODEL, [], enqueued_ns)
    made.key = key
    made.rows = rows
    made.level = level
    made.timeout_ns = timeout_ns
    made.deadline_ns = enqueued_ns + timeout_ns if timeout_ns else 0
    return made
