"""The Python backend: Triton's model.py, unchanged.

A model is a class TritonPythonModel with auto_complete_config, initialize, execute, finalize and
is_ready, of which only execute is required. Its exceptions pass through, so that the worker's loop
can tell the line of the model's own code and run a failed batch again by halves.
"""

from __future__ import annotations

import asyncio
import inspect
import io
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from naiad.config.faults import RELEASE, listed
from naiad.config.model import ModelConfig
from naiad.protocol.errors import Code, ModelError, NaiadError, RequestError
from naiad.worker.backends import triton_python_backend_utils as pb_utils
from naiad.worker.backends.base import ModelInstance, ModelRequest, ModelResponse
from naiad.worker.backends.source_files import import_file, import_sources_below
from naiad.worker.backends.triton_python.exchange import InferenceRequest, InferenceResponse
from naiad.worker.backends.triton_python.logger import write_to_stderr

UTILS_NAME: Final = "triton_python_backend_utils"
DEFAULT_FILENAME: Final = "model.py"
CLASS_NAME: Final = "TritonPythonModel"
FORCE_CPU_ONLY_INPUTS: Final = "FORCE_CPU_ONLY_INPUT_TENSORS"
"""A parameter of the model, Triton's: "no" leaves inputs in GPU memory that clients have there."""
READ_ONLY_INPUTS: Final = "READ_ONLY_INPUTS"
"""A parameter of the model: "yes" saves the copy of each input, whose arrays are then read-only."""


class PythonBackend:
    """One TritonPythonModel object; all calls on one thread."""

    def __init__(self) -> None:
        self._model: Any = None
        self._are_views = False
        self.takes_device_memory = False
        self._runner: asyncio.Runner | None = None

    def load(self, instance: ModelInstance) -> ModelConfig:
        """Import model.py, let it complete the config, initialize it.

        Raises what the model's own code raises, ModelError (LOAD_FAILED) for a file or class that
        is not as expected, RequestError (UNSUPPORTED) for a completion that this release lacks.
        """
        path = model_path(instance)
        _line_buffered()
        write_to_stderr()
        sys.modules[UTILS_NAME] = pb_utils
        import_sources_below(instance.directory)
        for folder in (str(path.parent), instance.directory):
            if folder not in sys.path:
                sys.path.append(folder)
        model_class = getattr(import_model(path), CLASS_NAME, None)
        if model_class is None or not callable(getattr(model_class, "execute", None)):
            raise ModelError(
                f"{path}: expected a class {CLASS_NAME} with a method execute(self, requests)",
                code=Code.LOAD_FAILED,
            )
        config = instance.config
        if instance.auto_complete:
            config = completed(model_class, config)
        self._are_views = config.parameters.get(READ_ONLY_INPUTS, "").lower() == "yes"
        self.takes_device_memory = config.parameters.get(FORCE_CPU_ONLY_INPUTS, "").lower() == "no"
        model = model_class()
        if hasattr(model, "initialize"):
            model.initialize(arguments(instance, config))
        self._model = model
        return config

    def warm_up(self) -> None:
        """A model does that itself, in initialize."""

    def is_ready(self) -> bool:
        """What the model's own is_ready() says; True where it has none."""
        check = getattr(self._model, "is_ready", None)
        return bool(self._finished(check())) if check is not None else self._model is not None

    def execute(self, batch: Sequence[ModelRequest]) -> Sequence[ModelResponse | NaiadError]:
        """Requests are not joined: each keeps its own tensors, with the batch dimension."""
        requests = [
            InferenceRequest.received(request, are_views=self._are_views) for request in batch
        ]
        try:
            responses = self._finished(self._model.execute(requests))
            return self._answers(requests, responses)
        finally:
            for request in requests:
                if request.reply is not None:
                    request.reply.close()  # whoever still has its sender is told

    def _answers(
        self, requests: list[InferenceRequest], responses: Any
    ) -> list[ModelResponse | NaiadError]:
        """What execute returned, and what was sent: by then, or from another thread later."""
        if responses is None and all(request.reply is not None for request in requests):
            responses = [None] * len(requests)
        if not isinstance(responses, list):
            raise _invalid(
                f"Expected a list in the execute return, found type '{type(responses)}'."
            )
        if len(responses) != len(requests):
            raise _invalid(
                "Number of InferenceResponse objects do not match the number of InferenceRequest "
                f"objects. InferenceRequest(s) size is:{len(requests)}, and InferenceResponse(s) "
                f"size is:{len(responses)}"
            )
        return [_answer(*pair) for pair in zip(requests, responses, strict=True)]

    def unload(self) -> None:
        """Call finalize; what it raises goes through, after the model is let go."""
        model, self._model = self._model, None
        try:
            if hasattr(model, "finalize"):
                self._finished(model.finalize())
        finally:
            if self._runner is not None:
                self._runner.close()

    def _finished(self, result: Any) -> Any:
        """The result, run to completion when it is a coroutine; one event loop serves them all."""
        if not inspect.iscoroutine(result):
            return result
        if self._runner is None:
            self._runner = asyncio.Runner()
        return self._runner.run(result)


def model_path(instance: ModelInstance) -> Path:
    """`<directory>/<version>/<default_model_filename, else model.py>`."""
    name = instance.config.default_model_filename or DEFAULT_FILENAME
    path = Path(instance.directory) / str(instance.version) / name
    if not path.is_file():
        folder = path.parent
        there = sorted(entry.name for entry in folder.iterdir()) if folder.is_dir() else []
        raise ModelError(
            f"no model file {path} (there: {listed(there, empty='nothing')}); put it there, or "
            "name it with default_model_filename",
            code=Code.LOAD_FAILED,
        )
    return path


def import_model(path: Path) -> ModuleType:
    """The file as a module of its own name, so that what it pickles is found again."""
    name = path.stem if path.stem not in sys.modules else f"naiad_model_{path.stem}"
    module = import_file(str(path), name)
    if module is None:
        raise ModelError(f"{path}: expected a file that ends in .py", code=Code.LOAD_FAILED)
    return module


def completed(model_class: Any, config: ModelConfig) -> ModelConfig:
    """The config after the model's own auto_complete_config, where it has one."""
    complete = getattr(model_class, "auto_complete_config", None)
    if complete is None:
        return config
    edited = complete(pb_utils.ModelConfig(config.to_json()))
    if not isinstance(edited, pb_utils.ModelConfig):
        raise ModelError(
            "auto_complete_config must return the ModelConfig it was given, found type "
            f"'{type(edited)}'",
            code=Code.LOAD_FAILED,
        )
    try:
        json.dumps(edited.as_dict(), ensure_ascii=False).encode()
    except (TypeError, ValueError, RecursionError) as fault:
        raise ModelError(
            f"auto_complete_config: expected values that JSON in UTF-8 can hold: {fault}",
            code=Code.LOAD_FAILED,
        ) from fault
    return _judged(config, edited.as_dict())


def _judged(given: ModelConfig, edited: Mapping[str, Any]) -> ModelConfig:
    """The config that initialize sees; raises for one that cannot be served."""
    from naiad.config.completed import completed, completion_faults  # protobuf: where it is needed

    config = completed(given, edited)
    faults = [] if config is given else completion_faults(config)
    if not faults:
        return config
    text = "auto_complete_config: " + "\n".join(faults)
    if any(RELEASE in fault for fault in faults):
        raise RequestError(text, code=Code.UNSUPPORTED)
    raise ModelError(text, code=Code.LOAD_FAILED)


def arguments(instance: ModelInstance, config: ModelConfig) -> dict[str, str]:
    """What initialize gets: texts only. `model_repository` is the model's own directory."""
    return {
        "model_config": json.dumps(config.to_json()),
        "model_instance_kind": instance.kind.removeprefix("KIND_"),
        "model_instance_name": instance.instance_name,
        "model_instance_device_id": str(instance.device_id),
        "model_repository": instance.directory,
        "model_version": str(instance.version),
        "model_name": instance.name,
    }


def _line_buffered() -> None:
    """A model's print must be in the log when it happened, not when a buffer is full; and it must
    not fail for a character that the stream does not have."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(line_buffering=True, errors="backslashreplace")


def _answer(request: InferenceRequest, returned: Any) -> ModelResponse | NaiadError:
    reply = request.reply
    if returned is None and reply is not None:
        fault = reply.wait()
        if fault or reply.response is None:
            return _invalid(f"the model {fault}; expected one InferenceResponse for each request")
        return reply.response.answer()
    if not isinstance(returned, InferenceResponse):
        return _invalid(
            "Expected an 'InferenceResponse' object in the execute function return list, "
            f"found type '{type(returned)}'."
        )
    if reply is not None and reply.response is not None:
        return _invalid(
            "the model sent a response and returned another one; expected None in the execute "
            "function return list for a request that is answered by its response sender"
        )
    return returned.answer()


def _invalid(text: str) -> ModelError:
    return ModelError(text, code=Code.MODEL_OUTPUT_INVALID)
