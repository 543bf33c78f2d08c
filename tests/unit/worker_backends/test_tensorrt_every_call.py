"""Every call of CUDA that a worker makes, from the load to the unload, fails once: out of memory,
with another error, and with one that CUDA never leaves again. The law is support/gpu_faults.py's.
"""

from __future__ import annotations

import ast
import inspect
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from naiad.shm.cuda import runtime
from naiad.worker.backends.tensorrt import cuda, streams
from support import fake_cuda_ipc
from support.gpu_faults import (
    RELEASES,
    Good,
    Prepared,
    each,
    fault_of,
    little_to_collect,
    lost_fault,
    tell,
)
from support.gpu_worker import STORIES, GpuWorker

OUT_OF_MEMORY, ANOTHER, STICKY = 2, 801, 719
KINDS = {"out of memory": OUT_OF_MEMORY, "another": ANOTHER, "sticky": STICKY}
DISPENSABLE = {("cudaHostAlloc", OUT_OF_MEMORY)}
"""There is ordinary memory instead."""
OWN_PATH = {"cudaMalloc", "cudaHostAlloc"}
"""Nobody looks whether another's error is OUT_OF_MEMORY: of those, one call in a step will do."""
ALIKE = dict.fromkeys(("load", "warm-up", "unload"), "graphs")
"""Steps that are the same in all stories, but for more calls in this one."""
NOT_HERE = {
    "cudaGetLastError": "its answer is the error of another",
    "cudaMemGetInfo": "asked when there is no memory",
    "cudaIpcGetMemHandle": "a client's",
    "cudaIpcGetEventHandle": "a client's",
    "cudaPointerGetAttributes": "a client's",
}

Loaded = tuple[Prepared, dict[str, Good]]


@pytest.fixture(scope="module")
def stories(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Loaded]]:
    """Each with its good run."""
    with little_to_collect():
        found = {}
        for name, story in STORIES.items():
            prepared = Prepared(story, story.put(tmp_path_factory.mktemp("engine")))
            found[name] = prepared, {step: prepared.good(step, called) for step in story.steps}
        yield found


def called(worker: GpuWorker) -> Counter[str]:
    """How often somebody looks at an event depends on the time: a look that was late enough is
    sure to come."""
    return worker.gpu.calls - Counter(cudaEventQuery=worker.gpu.looks)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", STORIES)
def test_every_call(
    stories: dict[str, Loaded], name: str, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    prepared, good = stories[name]
    code, faults = KINDS[kind], []
    for step, function, number in each(good):
        if code == ANOTHER and number and function not in OWN_PATH:
            continue
        if step in ALIKE and name != ALIKE[step]:
            continue
        caplog.clear()
        with prepared.worker_before(step) as worker:
            worker.gpu.fail(function, code, after=number)
            told = tell(worker, prepared.story.steps[step])
            if code == STICKY:
                fault = lost_fault(prepared, step, told, worker)
            else:
                fault = fault_of(
                    prepared,
                    step,
                    good[step],
                    told,
                    worker,
                    words=(f"CUDA error {code} (", *words(function)),
                    is_dispensable=(function, code) in DISPENSABLE or step == "forget",
                    is_release=function in RELEASES or step == "forget",
                    log=caplog.records,
                )
        if fault:
            faults.append(f"{step}: {function} {number}: {fault}")
    assert faults == [], "\n".join(faults)


def words(function: str) -> tuple[str, ...]:
    if function == "cudaGetDeviceCount":
        return ("CUDA sees no GPU (cudaError",)
    return ("out of GPU memory",) if function == "cudaMalloc" else ()


def test_the_stories_make_every_call_that_there_is(stories: dict[str, Loaded]) -> None:
    made: Counter[str] = Counter()
    for _, good in stories.values():
        for step in good.values():
            made += step.calls
    assert named() - set(made) == set(NOT_HERE)


def named() -> set[str]:
    """Functions of CUDA that the sources name, as attributes or as texts."""
    found = set()
    for module in (cuda, streams, runtime):
        for node in ast.walk(ast.parse(Path(str(module.__file__)).read_text())):
            if isinstance(node, ast.Attribute):
                found.add(node.attr)
            elif isinstance(node, ast.Constant) and str(node.value).isidentifier():
                found.add(str(node.value))
    names = {name for name in found if name.startswith("cuda") and name[4:5].isupper()}
    return {name for name in names if inspect.isfunction(getattr(fake_cuda_ipc, name, None))}
