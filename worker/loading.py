"""From a LOAD message to an instance that is loaded and warm, or to the reason why it is not."""

from __future__ import annotations

import gc
import json
import os
from typing import Final, NamedTuple

from naiad.config.faults import without_roots
from naiad.config.gpus import uuid_of
from naiad.config.model import ModelConfig
from naiad.protocol.errors import Code, ModelError, NaiadError, RequestError, Unavailable
from naiad.protocol.messages import Load
from naiad.worker.backends.base import Backend, ModelInstance
from naiad.worker.backends.registry import find_backend
from naiad.worker.device import ORDINAL
from naiad.worker.exception_text import described, own_error, place_below, traceback_text
from naiad.worker.gpu_memory import GpuMemory, Look, look

THREAD_VARIABLES: Final = (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "NUMEXPR_NUM_THREADS",
)
"""Read by engines when they are imported; a slot is empty until LOAD, so it is not too late."""
TRACEBACK_BYTES_MAX: Final = 256 * 1024


class LoadedModel(NamedTuple):
    """An instance that is ready to execute, warmed up; `config` is completed by the backend."""

    backend: Backend
    instance: ModelInstance
    config: ModelConfig
    gpu_bytes: int
    """What it took of its GPU's memory; 0 where nobody can tell."""


def load_model(
    load: Load, config_json: bytes | memoryview, device: str, look: Look = look
) -> LoadedModel:
    """Import the backend, load and warm up. Raises whatever goes wrong on the way.

    `device` is the slot's; `look` tells of its GPU's memory.
    """
    uuid = uuid_of(device)
    config = ModelConfig.from_json(json.loads(bytes(config_json)))
    instance = ModelInstance(
        name=load.model,
        version=load.version,
        instance_name=load.instance_name,
        directory=load.directory,
        kind=load.kind,
        device_id=ORDINAL if uuid else load.device_id,
        gpu_uuid=uuid,
        threads=load.threads,
        config=config,
        auto_complete=load.auto_complete,
    )
    if load.threads > 0:
        for variable in THREAD_VARIABLES:
            os.environ[variable] = str(load.threads)
    memory = GpuMemory(instance, load.gpu_bytes, look) if uuid else None
    if memory is not None:
        memory.prepare()
    backend = find_backend(config.backend)()
    loaded = backend.load(instance)
    backend.warm_up()
    gpu_bytes = 0 if memory is None else memory.taken(getattr(backend, "bound_growth", None))
    gc.collect()
    gc.freeze()  # what a model loaded stays; a collection that walks it all would delay requests
    return LoadedModel(backend, instance, _normalised(config, loaded), gpu_bytes)


def _normalised(given: ModelConfig, loaded: ModelConfig) -> ModelConfig:
    """What the backend completed, in the form that everybody reads."""
    if loaded is given:
        return given
    from naiad.config.completed import completed  # protobuf: not in every worker

    return completed(given, loaded.raw)


def load_error(load: Load, fault: BaseException) -> NaiadError:
    """What the operator is told in one sentence."""
    text = without_roots(described(fault), (os.path.dirname(load.directory),))
    what = f"model {load.model!r} version {load.version} did not load: {text}"
    if not isinstance(own_error(fault), ModelError | RequestError | Unavailable):
        place = place_below(load.directory, fault)
        what += f" ({place})" if place else ""
    if isinstance(own_error(fault), Unavailable):  # no fault of the model: it may fit later
        return Unavailable(what)
    return ModelError(what, code=Code.LOAD_FAILED)


def traceback_bytes(fault: BaseException) -> bytes:
    """The traceback as the payload of LOADED, its end kept when it is too long."""
    return traceback_text(fault).encode(errors="backslashreplace")[-TRACEBACK_BYTES_MAX:]
