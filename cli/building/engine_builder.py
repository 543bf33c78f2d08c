"""An ONNX file parsed by TensorRT and built into a plan: all calls into the module are here.

TensorRT reports failures through its logger and returns None or False; here they are CommandFailed
with its own last words. It is used as of version 10.13, with what 11 and RTX still have.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple, NoReturn

from naiad.cli.building.modules import Toolkit
from naiad.cli.building.profiles import Profile
from naiad.cli.building.progress import Messages, Phases, logger_of, monitor_of
from naiad.cli.exit_codes import ExitCode
from naiad.cli.failure import CommandFailed
from naiad.cli.streams import complain
from naiad.config.backends import TENSORRT_DATATYPE
from naiad.config.faults import listed
from naiad.worker.backends.completion import DeclaredTensor

PARSER_ERRORS_MAX: Final = 10
CURRENT: Final = "current"


class Limits(NamedTuple):
    """What a build may use, and for which GPUs it is. Empty capabilities: the module's default."""

    workspace_bytes: int = 0
    capabilities: tuple[str, ...] = ()


class EngineBuilder:
    """One network on its way to one plan. Everything it made must live as long as it does."""

    def __init__(self, toolkit: Toolkit, messages: Messages) -> None:
        trt: Any = toolkit.module
        self._toolkit = toolkit
        self._trt = trt
        self._messages = messages
        self._logger = logger_of(toolkit.module, messages)
        try:
            self._builder = trt.Builder(self._logger)
        except (TypeError, RuntimeError) as fault:  # pybind11's words for a factory without result
            raise self._failed(f"{toolkit} cannot make a builder ({fault})") from fault
        # Precision as the ONNX has it: what 11 and RTX always do, and 10 when it is told.
        typed = 1 << int(trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED)
        self._network = self._builder.create_network(typed)
        self._parser = trt.OnnxParser(self._network, self._logger)
        self._cache: Any = None

    def parse(self, path: str) -> tuple[list[DeclaredTensor], list[DeclaredTensor]]:
        """Read the ONNX file, with the external data beside it; its inputs and outputs."""
        if not self._parser.parse_from_file(path):
            count = self._parser.num_errors
            errors = [self._parser.get_error(i) for i in range(min(count, PARSER_ERRORS_MAX))]
            said = "\n".join(f"  {parser_error(error)}" for error in errors)
            raise CommandFailed(f"{self._toolkit} cannot read {path}:\n{said}")
        network = self._network
        inputs = [network.get_input(index) for index in range(network.num_inputs)]
        outputs = [network.get_output(index) for index in range(network.num_outputs)]
        shapes = [tensor.name for tensor in (*inputs, *outputs) if tensor.is_shape_tensor]
        if shapes:
            raise CommandFailed(
                f"{listed(shapes)}: shape tensors (whose values decide shapes) are not in this "
                "release; make them constants of the ONNX"
            )
        return list(map(_declared, inputs)), list(map(_declared, outputs))

    def build(
        self, profiles: Sequence[Profile], limits: Limits, cache: bytes | None, phases: Phases
    ) -> memoryview:
        """The plan. `cache` is a timing cache to begin with; None: none is used."""
        trt = self._trt
        config = self._builder.create_builder_config()
        for profile in profiles:
            made = self._builder.create_optimization_profile()
            for name, ranged in profile.items():
                made.set_shape(name, *ranged)
            if config.add_optimization_profile(made) < 0:
                raise self._failed(f"{self._toolkit} takes no profile {shown(profile)}")
        if limits.workspace_bytes:
            config.set_memory_pool_limit(trt.MemoryPoolType.WORKSPACE, limits.workspace_bytes)
        self._set_capabilities(config, limits.capabilities)
        if cache is not None:
            self._set_cache(config, cache)
        monitor = monitor_of(self._toolkit.module, phases)
        if monitor is not None:
            config.progress_monitor = monitor
        plan = interruptible(
            lambda: self._builder.build_serialized_network(self._network, config),
            phases.cancel,
            lambda: _leave(phases),
        )
        if plan is None:
            raise self._failed(f"{self._toolkit} built no plan")
        return memoryview(plan)

    def timing_cache(self) -> bytes:
        """What was measured by the last build that used a cache."""
        return bytes(self._cache.serialize())

    def _set_cache(self, config: Any, cache: bytes) -> None:
        self._cache = config.create_timing_cache(cache)
        if not config.set_timing_cache(self._cache, False):
            # Of another TensorRT or another GPU: what it holds says nothing here.
            self._cache = config.create_timing_cache(b"")
            config.set_timing_cache(self._cache, False)

    def _set_capabilities(self, config: Any, wanted: Sequence[str]) -> None:
        if not wanted:
            return
        known = capabilities(self._trt)
        if not known:
            raise CommandFailed(
                f"{self._toolkit} builds for the GPU of this machine; "
                "--compute-capability is for tensorrt_rtx",
                ExitCode.USAGE,
            )
        unknown = [each for each in wanted if each not in known]
        if unknown:
            raise CommandFailed(
                f"{self._toolkit} does not build for compute capability {listed(unknown)}; "
                f"it builds for {listed(list(known))}",
                ExitCode.USAGE,
            )
        config.num_compute_capabilities = len(wanted)
        for index, each in enumerate(wanted):
            if not config.set_compute_capability(known[each], index):
                raise self._failed(f"{self._toolkit} refuses compute capability {each} here")

    def _failed(self, what: str) -> CommandFailed:
        said = "".join(f"\n  {line}" for line in self._messages.errors)
        return CommandFailed(f"{what}{':' if said else ''}{said}")


def _declared(tensor: Any) -> DeclaredTensor:
    name = tensor.dtype.name
    if name not in TENSORRT_DATATYPE:
        raise CommandFailed(
            f'"{tensor.name}" is {name}, which no request can carry; cast it inside the ONNX to '
            f"one of {listed(list(TENSORRT_DATATYPE.values()))}"
        )
    return DeclaredTensor(tensor.name, TENSORRT_DATATYPE[name], tuple(tensor.shape))


def parser_error(error: Any) -> str:
    """One of the parser's errors: the node of the ONNX where there is one, its kind, then why."""
    said = f"{error.code().name}: {error.desc()}"
    if error.node() < 0:
        return said
    name = f' "{error.node_name()}"' if error.node_name() else ""
    return f"node {error.node()}{name} ({error.node_operator()}): {said}"


def shown(profile: Profile) -> str:
    return ", ".join(f"{name} {ranged}" for name, ranged in profile.items())


def capabilities(trt: Any) -> dict[str, Any]:
    """What this TensorRT can build for besides the GPU at hand: "8.9", "12.0", ..., "current"."""
    known = getattr(trt, "ComputeCapability", None)
    if known is None:
        return {}
    members = known.__members__
    numbered = {
        f"{name[2:-1]}.{name[-1]}": member
        for name, member in members.items()
        if name.startswith("SM")
    }
    return {**numbered, CURRENT: members["CURRENT"]}


def interruptible(
    call: Callable[[], Any], cancel: Callable[[], None], leave: Callable[[], NoReturn]
) -> Any:
    """The call's result. Ctrl-C asks for its end and waits for it; a second one leaves.

    TensorRT calls back into Python, so a signal must not be handled inside its build: the call gets
    a thread of its own. Waiting is for an event: a join() that was interrupted believes the thread
    has ended (Python 3.11, 3.12).
    """
    ended = threading.Event()
    results: list[Any] = []
    faults: list[BaseException] = []

    def run() -> None:
        try:
            results.append(call())
        except BaseException as fault:
            faults.append(fault)
        finally:
            ended.set()

    try:
        threading.Thread(target=run, daemon=True).start()  # which waits too, for its first step
        ended.wait()
    except KeyboardInterrupt:
        try:
            cancel()
            ended.wait()
        except KeyboardInterrupt:
            leave()
        raise
    if faults:
        raise faults[0]
    return results[0]


def _leave(phases: Phases) -> NoReturn:
    """At once: Python's own end would pull the thread out from under TensorRT, which aborts."""
    phases.close()
    complain("interrupted")
    os._exit(ExitCode.INTERRUPTED)
