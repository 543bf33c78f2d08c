"""Every call of TensorRT that a worker makes fails once, in each way in which such a call can: it
says False or None, or raises. The law is support/gpu_faults.py's.
"""

from __future__ import annotations

import functools
import inspect
import threading
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from support import fake_trt
from support.gpu_faults import Prepared, each, fault_of, little_to_collect, tell
from support.gpu_worker import STORIES

METHODS: list[tuple[Any, str]] = [
    (kind, name)
    for kind in (
        fake_trt.Runtime,
        fake_trt.ICudaEngine,
        fake_trt.IExecutionContext,
        fake_trt.IPluginRegistry,
    )
    for name, value in vars(kind).items()
    if inspect.isfunction(value) and not name.startswith("_")
]
METHODS += [(fake_trt.Runtime, "__init__"), (fake_trt, "init_libnvinfer_plugins")]
WORDS = "TensorRT does not feel like it"
RAISES = RuntimeError
ANSWERS: dict[str, tuple[Any, ...]] = {
    "deserialize_cuda_engine": (None,),
    "create_execution_context": (None,),
    "load_library": (None,),
    "set_optimization_profile_async": (False,),
    "set_input_shape": (False,),
    "set_tensor_address": (False,),
    "set_output_allocator": (False,),
    "execute_async_v3": (False,),
    "infer_shapes": (["one that is missing"],),
    "get_max_output_size": (-1,),
}
"""What says that a call failed, by the documentation; all of them may raise as well."""
DISPENSABLE = {("get_max_output_size", "-1")}


class Calls:
    """Calls from outside, by method; one of them may be told to fail."""

    def __init__(self) -> None:
        self.made: Counter[str] = Counter()
        self.due: tuple[str, int, Any] = ("", 0, None)
        self._is_inside = False

    def wrapped(self, function: Any, name: str) -> Any:
        @functools.wraps(function)
        def call(*arguments: Any, **named: Any) -> Any:
            if self._is_inside or threading.current_thread() is not threading.main_thread():
                return function(*arguments, **named)  # the fake asks itself
            self.made[name] += 1
            method, number, answer = self.due
            if (method, number) == (name, self.made[name]):
                if answer is RAISES:
                    raise RAISES(WORDS)
                return answer
            self._is_inside = True
            try:
                return function(*arguments, **named)
            finally:
                self._is_inside = False

        return call


@pytest.fixture(scope="module")
def calls() -> Iterator[Calls]:
    calls = Calls()
    with pytest.MonkeyPatch.context() as patch:
        for kind, name in METHODS:
            patch.setattr(kind, name, calls.wrapped(getattr(kind, name), name))
        yield calls


@pytest.mark.parametrize("name", STORIES)
def test_every_refusal(
    tmp_path_factory: pytest.TempPathFactory,
    calls: Calls,
    name: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    story = STORIES[name]
    prepared = Prepared(story, story.put(tmp_path_factory.mktemp("engine")))
    faults = []
    with little_to_collect():
        good = {step: prepared.good(step, lambda _: calls.made) for step in story.steps}
        for step, function, number in each(good):
            if (name, step) == ("affine", "load"):  # "graphs" loads the same, and more of it
                continue
            for answer in (RAISES, *ANSWERS.get(function, ())):
                caplog.clear()
                with prepared.worker_before(step) as worker:
                    calls.due = function, calls.made[function] + number + 1, answer
                    told = tell(worker, story.steps[step])
                    calls.due = "", 0, None
                    fault = fault_of(
                        prepared,
                        step,
                        good[step],
                        told,
                        worker,
                        words=(WORDS, "TensorRT"),
                        is_dispensable=(function, repr(answer)) in DISPENSABLE,
                        is_release=False,
                        log=caplog.records,
                    )
                if fault:
                    faults.append(f"{step}: {function} {number} {answer!r}: {fault}")
    assert faults == [], "\n".join(faults)
