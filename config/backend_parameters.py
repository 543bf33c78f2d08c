"""The parameters that naiad's own backends read: names, values, and near misses of both.

In Triton a misspelt one has no effect, without a word. Those of `naiad.*` are judged by
config.parameters; backends of other packages have parameters that nobody here knows. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from typing import Final, NamedTuple

from naiad.config.accelerators import CUDA_OPTIONS, PARAMETERS
from naiad.config.accepts import SWITCH, TEXT, WHOLE, Accepts
from naiad.config.backends import TENSORRT_MODULES
from naiad.config.faults import SUGGESTION_CUTOFF, WORD_CHARS_MAX, Fault, listed
from naiad.config.model import ModelConfig
from naiad.config.names import printable
from naiad.config.parameters import PREFIX, TABLE

LIKENESS_OF_OWN: Final = 0.85
"""Where a model has parameters of its own, only a name that is nearly a known one is suspicious."""
THREADS_MAX: Final = 4096
OUTPUT_FAULTS: Final = ("name", "datatype", "shape", "size", "missing", "count")
"""What the identity backend can be asked to do wrong."""
_MILLISECONDS: Final = WHOLE
_YES_NO: Final = Accepts(("yes", "no"), any_case=True)


class Parameters(NamedTuple):
    """Of one backend. `known` are read here; `ignored` are Triton's, with why they change nothing
    here; `refused` have a sentence of their own in config.refusals. With `takes_own` a model may
    have any others. Names that begin with `prefix` are somebody else's to judge."""

    known: Mapping[str, Accepts]
    ignored: Mapping[str, str] = {}
    refused: tuple[str, ...] = ()
    takes_own: bool = False
    prefix: str = ""


_ONE_GPU: Final = "an instance has one GPU"
BACKEND_PARAMETERS: Final[Mapping[str, Parameters]] = {
    "tensorrt": Parameters(
        {
            "execution_context_allocation_strategy": Accepts(("STATIC", "ON_PROFILE_CHANGE")),
            "plugins": Accepts(ending=".so"),
            "tensorrt_module": Accepts(TENSORRT_MODULES),
            "version-compatible": Accepts(("true", "false")),
        },
        ignored={
            "coalesce-request-input": "inputs are copied to their places one by one",
            "enable_multi_device": _ONE_GPU,
            "execution-policy": "every instance is a process of its own",
            "multi_device_gpus": _ONE_GPU,
        },
    ),
    "onnxruntime": Parameters(
        {
            "arena_extend_strategy": CUDA_OPTIONS["arena_extend_strategy"],
            "cudnn_conv_algo_search": CUDA_OPTIONS["cudnn_conv_algo_search"],
            "do_copy_in_default_stream": CUDA_OPTIONS["do_copy_in_default_stream"],
            "enable_mem_arena": SWITCH,
            "enable_mem_pattern": SWITCH,
            "execution_mode": SWITCH,
            "gpu_mem_limit": CUDA_OPTIONS["gpu_mem_limit"],
            "inter_op_thread_count": Accepts(least=0, most=THREADS_MAX),
            "intra_op_thread_count": Accepts(least=0, most=THREADS_MAX),
            "memory.enable_memory_arena_shrinkage": TEXT,
        },
        prefix="session.",
    ),
    "python": Parameters(
        {"FORCE_CPU_ONLY_INPUT_TENSORS": _YES_NO, "READ_ONLY_INPUTS": _YES_NO},
        refused=("EXECUTION_ENV_PATH", "TRITON_BATCH_STRATEGY_PATH"),
        takes_own=True,
    ),
    "identity": Parameters(
        {
            "abort": TEXT,
            "deaf_ms": _MILLISECONDS,
            "exit": Accepts(least=0, most=255),
            "fail_load": TEXT,
            "load_ms": _MILLISECONDS,
            "output_fault": Accepts(OUTPUT_FAULTS),
            "raise": TEXT,
            "segfault": TEXT,
            "sleep_ms": _MILLISECONDS,
            "spin_ms": _MILLISECONDS,
        },
        ignored={
            "execute_delay_ms": "sleep_ms is its name here",
            "instance_wise_delay_multiplier": "all instances sleep as long",
        },
    ),
}
_FOREIGN: Final = Parameters({}, takes_own=True)
"""Of backends of other packages."""
CUDA_PARAMETERS: Final = tuple(
    name for name in BACKEND_PARAMETERS["onnxruntime"].known if name in CUDA_OPTIONS
)
"""Options of ONNX Runtime's CUDA provider that may stand among a model's, as with Triton."""


def parameter_faults(config: ModelConfig) -> Iterator[Fault]:
    """Wrong values of known parameters, and misspelt names that can mean nothing else."""
    table = BACKEND_PARAMETERS.get(config.backend, _FOREIGN)
    for name, text in _judged(config, table):
        where = f'parameters["{name}"]'
        accepts = table.known.get(name)
        if accepts is not None:
            fault = accepts.fault(text)
            if fault:
                yield Fault(where, fault, accepts.hint(text))
        elif not table.takes_own and name not in table.ignored:
            meant = _meant(name, table)
            is_sure = _bare(name) == _bare(meant) or table.known.get(meant, TEXT).is_told_by(text)
            if meant and is_sure:
                unknown = f'unknown to backend "{config.backend}"'
                yield Fault(where, unknown, f'did you mean "{meant}"?')


def parameter_warnings(config: ModelConfig) -> list[str]:
    """Parameters without an effect here: near misses one by one, the others together."""
    table = BACKEND_PARAMETERS.get(config.backend, _FOREIGN)
    sure = {fault.where for fault in parameter_faults(config)}
    found: list[str] = []
    without_effect: list[str] = []
    for name, _ in _judged(config, table):
        where = f'parameters["{name}"]'
        if where in sure or name in table.known or name in table.refused:
            continue
        if name in table.ignored:
            found.append(f"{where} has no effect: {table.ignored[name]}")
        elif home := _accelerator_of(config, name):
            found.append(
                f"{where} has no effect here; it belongs among the parameters of a "
                f'gpu_execution_accelerator "{home}", inside optimization.execution_accelerators'
            )
        elif meant := _meant(name, table):
            unknown = f'no parameter that backend "{config.backend}" knows'
            found.append(f'{where} is {unknown}; did you mean "{meant}"?')
        elif not table.takes_own:
            without_effect.append(printable(name))
    if without_effect:
        found.append(
            f'parameters without effect: backend "{config.backend}" does not know '
            f"{listed(without_effect)}; it knows {listed(sorted(table.known))}"
        )
    return found


def _judged(config: ModelConfig, table: Parameters) -> Iterator[tuple[str, str]]:
    for name, text in sorted(config.parameters.items()):
        if not name or name.startswith(PREFIX) or (table.prefix and name.startswith(table.prefix)):
            continue
        yield name, text


def _meant(name: str, table: Parameters) -> str:
    """The parameter that was probably meant, or nothing."""
    known = (*table.known, *table.refused, *(row.name for row in TABLE))
    bare = {_bare(one): one for one in known}
    cutoff = LIKENESS_OF_OWN if table.takes_own else SUGGESTION_CUTOFF
    close = get_close_matches(_bare(name), bare, n=1, cutoff=cutoff)
    return bare[close[0]] if close else ""


def _bare(name: str) -> str:
    """Without what people confuse: case, and the marks between words."""
    return name[:WORD_CHARS_MAX].casefold().replace("-", "_").replace(".", "_")


def _accelerator_of(config: ModelConfig, name: str) -> str:
    """The accelerator of an ONNX model that takes a parameter of this name, or nothing."""
    if config.backend != "onnxruntime":
        return ""
    return next((accelerator for accelerator in PARAMETERS if name in PARAMETERS[accelerator]), "")
