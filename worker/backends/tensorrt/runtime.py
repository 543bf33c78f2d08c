"""From a plan file to a deserialised engine, or to the reason why not in TensorRT's own words.

Chooses the file (by compute capability) and the TensorRT module (by parameter, or by what the plan
is), and owns the logger and the runtime: both must live as long as the engine.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, Final

from naiad.config.backends import DEFAULT_FILENAME, TENSORRT_MODULES, tensorrt_imports
from naiad.config.faults import listed
from naiad.config.names import inner_path_fault, printable
from naiad.worker.backends.base import ModelInstance
from naiad.worker.backends.tensorrt.cuda import Cuda
from naiad.worker.backends.tensorrt.engine import load_error

FULL, LEAN, RTX = TENSORRT_MODULES
MODULE_PARAMETER: Final = "tensorrt_module"
PLUGINS_PARAMETER: Final = "plugins"
VERSION_COMPATIBLE_PARAMETER: Final = "version-compatible"
RTX_MAGIC: Final = b"vtrt"
INSTALL: Final = {
    FULL: "pip install 'naiad[tensorrt]'",
    LEAN: "pip install tensorrt-lean",
    RTX: "pip install 'naiad[cuda,rtx]'",
}
LFS_START: Final = b"version https://git-lfs"
CUT_SHORT: Final = ("== blobsize", "< blobsize", ">= minbuffersize")
"""In the assertions that fail where a plan does not have the size that it says."""
LOG_LINES_KEPT: Final = 8
LOG_LINE_CHARS_MAX: Final = 400
_HEAD_BYTES: Final = 64

Importer = Callable[[str], Any]

_log = logging.getLogger(__name__)


class LastWords:
    """The last errors that TensorRT logged; most of its calls fail without saying why."""

    def __init__(self, trt: Any) -> None:
        self._lines: deque[str] = deque(maxlen=LOG_LINES_KEPT)
        self.logger = _logger(trt, self._lines)

    def take(self) -> str:
        """What was logged since the last call, in one line."""
        lines = list(self._lines)
        self._lines.clear()
        return " | ".join(lines) or "TensorRT logged no error"


def _logger(trt: Any, lines: deque[str]) -> Any:
    severity = trt.ILogger.Severity
    errors = (severity.INTERNAL_ERROR, severity.ERROR)

    class Logger(trt.ILogger):  # type: ignore[misc]
        def __init__(self) -> None:
            trt.ILogger.__init__(self)

        def log(self, severity: Any, msg: str) -> None:
            if severity in errors:
                lines.append(" ".join(msg.split())[:LOG_LINE_CHARS_MAX])
            else:
                _log.debug("TensorRT: %s", msg)

    return Logger()


def plan_path(instance: ModelInstance, compute_capability: str) -> Path:
    """`cc_model_filenames` for this GPU, else default_model_filename, else model.plan."""
    config = instance.config
    by_capability = config.cc_model_filenames.get(compute_capability, "")
    name = by_capability or config.default_model_filename or DEFAULT_FILENAME["tensorrt"]
    fault = inner_path_fault(name)
    if fault:
        raise load_error(f"model file {printable(name)}: {fault}")
    path = Path(instance.directory) / str(instance.version) / name
    if not path.is_file():
        folder = path.parent
        there = sorted(entry.name for entry in folder.iterdir()) if folder.is_dir() else []
        chosen = f" (cc_model_filenames for {compute_capability})" if by_capability else ""
        raise load_error(
            f"no engine file {path}{chosen} (there: {listed(there, empty='nothing')}); put it "
            "there, or name it with default_model_filename or cc_model_filenames"
        )
    return path


def read_plan(path: Path) -> bytes:
    """The file's bytes. Raises ModelError (LOAD_FAILED) for what is certainly no plan."""
    try:
        plan = path.read_bytes()
    except OSError as error:
        raise load_error(f"cannot read {path} ({error.strerror})") from error
    head = plan[:_HEAD_BYTES]
    if not plan:
        raise load_error(f"{path} is empty; put the engine there")
    if head.startswith(LFS_START):
        raise load_error(
            f"{path} is a pointer of Git LFS, not the engine; run `git lfs pull` where the "
            "repository was cloned"
        )
    return plan


def trt_module(instance: ModelInstance, plan: bytes, importer: Importer = import_module) -> Any:
    """The TensorRT module for this plan, imported."""
    asked = instance.config.parameters.get(MODULE_PARAMETER, "")
    if asked and asked not in TENSORRT_MODULES:
        raise load_error(
            f'parameters["{MODULE_PARAMETER}"]: expected {listed(TENSORRT_MODULES)}, got "{asked}"'
        )
    is_rtx = plan.startswith(RTX_MAGIC)
    if asked and is_rtx != (asked == RTX):
        kind = "a plan of TensorRT-RTX" if is_rtx else "no plan of TensorRT-RTX"
        raise load_error(
            f'parameters["{MODULE_PARAMETER}"] is "{asked}", but the file is {kind}; remove the '
            "parameter, or build the engine with the right tool"
        )
    names = (asked,) if asked else (RTX,) if is_rtx else (FULL, LEAN)
    faults = []
    for name in names:
        for module in tensorrt_imports(name):
            try:
                return importer(module)
            except ModuleNotFoundError:
                continue
            except ImportError as error:
                faults.append(f"{name}: {error}")
                break
        else:
            faults.append(f"{name} is not installed")
    raise load_error(
        f"the engine needs the Python module {' or '.join(names)}, which cannot be imported "
        f"({'; '.join(faults)}); {INSTALL[names[0]]}"
    )


def plugin_libraries(instance: ModelInstance) -> list[Path]:
    """The files that the model's parameter names."""
    text = instance.config.parameters.get(PLUGINS_PARAMETER, "")
    names = [name.strip() for name in text.split(";") if name.strip()]
    for name in names:
        fault = inner_path_fault(name)
        if fault:
            raise load_error(f'parameters["{PLUGINS_PARAMETER}"]: {printable(name)}: {fault}')
    return [Path(instance.directory) / name for name in names]


def runs_host_code(instance: ModelInstance) -> bool:
    """Whether the plan may bring a runtime of its own, as version-compatible ones do."""
    text = instance.config.parameters.get(VERSION_COMPATIBLE_PARAMETER, "false")
    if text not in ("true", "false"):
        raise load_error(
            f'parameters["{VERSION_COMPATIBLE_PARAMETER}"]: expected true or false, got '
            f"{printable(text)}"
        )
    return text == "true"


class LoadedEngine:
    """The engine with what must outlive it."""

    def __init__(
        self,
        trt: Any,
        plan: bytes,
        path: Path,
        cuda: Cuda,
        *,
        plugins: Sequence[Path] = (),
        runs_host_code: bool = False,
    ) -> None:
        self.trt = trt
        self.words = words = LastWords(trt)
        register_plugins = getattr(trt, "init_libnvinfer_plugins", None)
        if register_plugins is not None:  # the full package's own operators
            register_plugins(words.logger, "")
        for library in plugins:
            _load_plugins(trt, library, words)
        self._runtime = trt.Runtime(words.logger)
        if runs_host_code:
            self._runtime.engine_host_code_allowed = True
        engine = self._runtime.deserialize_cuda_engine(plan)
        cuda.forget_error(f"deserialising {path}")
        if engine is None:
            said = words.take()
            # Now, and not when the error is collected: that may be while TensorRT logs something,
            # holding a lock which it needs to end a runtime.
            self.close()
            raise load_error(
                f"unable to create TensorRT engine from {path}: {said}"
                f"{_way_out(said, trt, cuda, size=len(plan))}"
            )
        self.engine: Any = engine

    def close(self) -> None:
        self.engine = None
        self._runtime = None


def _load_plugins(trt: Any, library: Path, words: LastWords) -> None:
    if not library.is_file():
        raise load_error(
            f'parameters["{PLUGINS_PARAMETER}"]: there is no {library}; give paths from the '
            "model's directory on, separated by semicolons"
        )
    try:
        handle = trt.get_plugin_registry().load_library(str(library))
        fault = None if handle is not None else words.take()
    except Exception as error:
        fault = str(error)
    if fault is not None:
        raise load_error(
            f"{trt.__name__} {trt.__version__} cannot load the plugins of {library}: {fault}; were "
            "they built for this version, and is none of them registered already?"
        )


def _way_out(said: str, trt: Any, cuda: Cuda, *, size: int) -> str:
    """What to do about the commonest reasons, told by TensorRT's words. `size` is the plan's."""
    words = said.lower()
    here = f"this worker has {trt.__name__} {trt.__version__}"
    if "out of memory" in words or "outofmemory" in words:
        free, total = cuda.call("cudaMemGetInfo")
        return f"; {free} of {total} bytes are free on GPU {cuda.device}"
    if "compute capability" in words or "different gpu" in words or "incompatible device" in words:
        return (
            f"; GPU {cuda.device} has compute capability {cuda.compute_capability()}: build the "
            "engine on such a GPU, and name several by cc_model_filenames"
        )
    if "host code" in words or "hostcode" in words or "engine_host_code_allowed" in words:
        return (
            f"; a version-compatible plan brings code of its own: if you trust it, set parameters "
            f'{{ key: "{VERSION_COMPATIBLE_PARAMETER}" value {{ string_value: "true" }} }}'
        )
    if any(text in words for text in CUT_SHORT):
        return f"; the file of {size} bytes was cut short, or is no plan: copy it or build it anew"
    if any(text in words for text in ("version tag", "engine version", "version of tensorrt")):
        return f"; {here}: build the engine with that version, or install the engine's"
    return f"; {here}: check that the file is a plan built by it for this GPU"
