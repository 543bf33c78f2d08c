"""The next batch comes to the device while one is executed, and nobody's results are others'."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from naiad.protocol.errors import ModelError, RequestError
from naiad.shm.mapped_memory import MappedMemory
from naiad.worker.backends.base import InstanceLost, ModelRequest
from naiad.worker.backends.tensorrt import memory
from naiad.worker.backends.tensorrt.backend import TensorRTBackend
from support import engines, fake_cudart
from support.backend_requests import Served, place
from support.engines import AFFINE, load, put_plan, random
from support.fake_streams import EARLY, LATE, Order

Batch = Sequence[ModelRequest]


class Worker:
    """What the worker's loop does for the backend: `waiting` is the batch that came meanwhile."""

    def __init__(self, served: Served) -> None:
        self.served = served
        self.waiting: Batch | None = None
        self.staged = 0
        self.begun_ahead = 0
        self.may_begin = True
        self.once_staged: Callable[[], None] = lambda: None
        self.backend = cast("Any", served.backend)
        self.backend.overlap(self._meanwhile, self._ahead)

    def _meanwhile(self) -> None:
        if self.waiting is not None:
            self.backend.stage(self.waiting)
            self.waiting = None
            self.staged += 1
            self.once_staged()

    def _ahead(self) -> bool:
        self.begun_ahead += self.may_begin
        return self.may_begin


@pytest.fixture
def trip(tmp_path: Path) -> Path:
    return tmp_path / "trip"


@pytest.fixture
def worker(tmp_path: Path, gpu: fake_cudart.Device, trip: Path) -> Worker:
    directory = engines.write_affine(tmp_path / "affine")
    return Worker(load(put_plan(directory, AFFINE, trip=str(trip))))


def be(gpu: fake_cudart.Device, *moods: str) -> None:
    """Of the streams for execution, copies in and copies out."""
    order = gpu.timing
    assert isinstance(order, Order)
    order.moods = moods


def copy_early(gpu: fake_cudart.Device) -> None:
    """Copies in are made as soon as they may be, everything else as late as it may be."""
    be(gpu, LATE, EARLY, LATE)


def check(array: Any, answer: Any) -> None:
    np.testing.assert_array_equal(answer["y"], 2 * array + 1)


def test_the_next_batch_is_there_before_the_first_is_executed(
    worker: Worker, gpu: fake_cudart.Device
) -> None:
    served = worker.served
    copy_early(gpu)
    first, second = random(1, 4), random(3, 4, seed=2)
    following = [served.request({"x": second})]
    worker.waiting = following
    copies = len(gpu.copies)
    assert len(gpu.moves) == copies
    executing = gpu.streams[min(gpu.streams)]

    def once_staged() -> None:
        gpu.timing.called()
        assert len(gpu.moves) == copies + 2, "both copies in, and none out"
        assert executing.pending

    worker.once_staged = once_staged
    check(first, served.ask({"x": first}))
    assert (worker.staged, worker.begun_ahead) == (1, 1)
    check(second, served.answers(*following)[0])
    kinds = [kind for kind, _, _ in gpu.copies[copies:]]
    assert kinds == ["in", "out", "in", "out"]


def test_the_next_batch_is_executed_ahead_and_its_results_wait_for_their_turn(
    worker: Worker, gpu: fake_cudart.Device
) -> None:
    served = worker.served
    array, own = random(2, 4, seed=3), place(32)
    worker.waiting = following = [served.request({"x": array}, places={"y": own})]
    served.ask({"x": random(1, 4)})
    context = served.backend._paths[0].executor._context  # type: ignore[attr-defined]
    assert context.executions == 3  # with the warm-up
    gpu.settle()
    assert not own.any()
    (answer,) = served.answers(*following)
    check(array, answer)
    np.testing.assert_array_equal(own.view(np.float32).reshape(2, 4), 2 * array + 1)
    assert context.executions == 3


def test_a_batch_that_comes_while_one_is_executed_is_staged(worker: Worker) -> None:
    calls: list[bool] = []

    def meanwhile() -> None:
        calls.append(True)
        if len(calls) == 2:
            worker.backend.stage([worker.served.request({"x": random(2, 4)})])
            worker.staged += 1

    worker.backend.overlap(meanwhile, lambda: False)
    check(random(1, 4), worker.served.ask({"x": random(1, 4)}))
    assert worker.staged == 1


def test_a_batch_is_staged_however_short_the_execution_is(
    worker: Worker, gpu: fake_cudart.Device
) -> None:
    be(gpu, EARLY)
    worker.waiting = following = [worker.served.request({"x": random(2, 4)})]
    check(random(1, 4), worker.served.ask({"x": random(1, 4)}))
    assert worker.staged == 1
    check(random(2, 4), worker.served.answers(*following)[0])


@pytest.mark.parametrize("ordinary", ["place of the first output", "place of the second", "ours"])
def test_a_copy_to_ordinary_memory_does_not_stop_the_worker(
    tmp_path: Path, gpu: fake_cudart.Device, ordinary: str
) -> None:
    """CUDA makes it within the call; so it begins when the execution is done."""
    directory = put_plan(
        engines.write_classifier(tmp_path / "classes"),
        [{name: [[1, 4], [4, 4], [8, 4]] for name in "ab"}],
    )
    worker = Worker(load(directory, {"max_batch_size": 8}))
    worker.may_begin = False
    inputs = {"a": random(2, 4), "b": random(2, 4, seed=2)}
    executing = gpu.streams[min(gpu.streams)]
    lent = worker.backend.execute([worker.served.request(inputs)]) if ordinary == "ours" else None
    places = {"place of the first output": {"scores": place(24)}, "ours": {}}
    own = places.get(ordinary, {"best": place(16)})
    seen: list[int] = []
    worker.once_staged = lambda: seen.append(executing.pending)
    worker.waiting = [worker.served.request(inputs)]
    requests = [worker.served.request(inputs, places=own), worker.served.request(inputs)]
    first, second = worker.backend.execute(requests)
    assert seen[0], "it was being executed when the next one was staged"
    for one, other in zip(first.outputs, second.outputs, strict=True):
        assert bytes(one.buffer) == bytes(other.buffer)
        address = np.frombuffer(other.buffer, np.uint8).ctypes.data
        assert gpu.reaches(address, 1) is (lent is None)
    worker.backend.unstage()


def test_a_staged_batch_that_was_given_back_is_not_begun(worker: Worker) -> None:
    served = worker.served
    worker.may_begin = False
    worker.waiting = [served.request({"x": random(2, 4)})]
    served.ask({"x": random(1, 4)})
    context = served.backend._paths[0].executor._context  # type: ignore[attr-defined]
    assert (worker.staged, context.executions) == (1, 2)  # with the warm-up
    worker.backend.unstage()
    array = random(1, 4)
    check(array, served.ask({"x": array}))


def test_the_time_of_copies_in_is_told_unless_they_were_made_ahead(worker: Worker) -> None:
    served = worker.served
    worker.waiting = following = [served.request({"x": random(2, 4)})]
    served.ask({"x": random(1, 4)})
    assert worker.backend.copied_in_ns > 0
    served.answers(*following)
    assert worker.backend.copied_in_ns == 0


def test_what_is_staged_and_not_executed_is_let_go(worker: Worker) -> None:
    served = worker.served
    for _ in range(3):
        worker.waiting = [served.request({"x": random(1, 4, seed=5)})]
        check(random(1, 4), served.ask({"x": random(1, 4)}))
        worker.backend.unstage()
    assert worker.staged == 3
    check(random(2, 4), served.ask({"x": random(2, 4)}))


def test_another_batch_than_the_staged_one(worker: Worker) -> None:
    served = worker.served
    for seed in range(3):
        worker.waiting = [served.request({"x": random(4, 4, seed=50)})]
        array = random(2, 4, seed=seed)
        check(array, served.ask({"x": array}))
        assert any(one.is_taken for one in worker.backend._sets), "by the staged one"
    assert worker.staged == 3
    check(array, served.ask({"x": array}))
    assert not any(one.is_taken for one in worker.backend._sets)


def test_a_part_of_the_staged_batch(worker: Worker) -> None:
    """When the other part was cancelled meanwhile."""
    served = worker.served
    arrays = [random(1, 4, seed=seed) for seed in range(2)]
    worker.waiting = following = [served.request({"x": array}) for array in arrays]
    served.ask({"x": random(1, 4, seed=9)})
    check(arrays[1], served.answers(following[1])[0])


def test_a_fault_of_the_next_batch_is_its_own(worker: Worker, gpu: fake_cudart.Device) -> None:
    served = worker.served
    memory = MappedMemory(-1, 4096)
    good, bad = (served.request({"x": random(2, 4)}) for _ in range(2))
    good.inputs["x"].buffer = memoryview(memory)[:32]
    bad.inputs["x"].buffer = bad.inputs["x"].buffer[:8]
    worker.waiting = following = [good, bad]
    check(random(1, 4), served.ask({"x": random(1, 4)}))
    assert worker.staged == 1
    assert not worker.backend._pipeline.can_stage
    with pytest.raises(RequestError, match=r"expected 32 bytes for the shape \[2, 4\], got 8"):
        served.answers(*following)
    assert not any(stream.pending for stream in gpu.streams.values())
    check(random(1, 4), served.ask({"x": random(1, 4)}))


def test_a_shape_that_no_profile_admits_is_told_at_its_turn(worker: Worker) -> None:
    served = worker.served
    worker.waiting = following = [served.request({"x": random(9, 4)})]
    served.ask({"x": random(1, 4)})
    with pytest.raises(RequestError, match="to be between 1 and 8 but received 9"):
        served.answers(*following)


@pytest.mark.parametrize("rounds", [0, 1])
def test_a_failing_batch_does_not_harm_the_one_behind_it(
    worker: Worker, gpu: fake_cudart.Device, rounds: int
) -> None:
    """In whichever set of buffers it is."""
    served = worker.served
    array = random(2, 4, seed=4)
    failing = [served.request({"x": random(1, 4)})]
    if rounds:
        worker.waiting = failing
        served.ask({"x": random(1, 4)})
        worker.staged = 0
    worker.waiting = following = [served.request({"x": array})]
    worker.once_staged = lambda: gpu.fail("cudaEventQuery", 801)
    with pytest.raises(ModelError, match="CUDA error 801"):
        served.answers(*failing)
    assert worker.staged == 1
    assert not any(stream.pending for stream in gpu.streams.values())
    copy_early(gpu)
    worker.once_staged = lambda: None
    worker.waiting = third = [served.request({"x": -array})]
    check(array, served.answers(*following)[0])
    check(-array, served.answers(*third)[0])
    assert worker.staged == 2


def test_a_failing_launch_ahead_fails_the_batch_that_was_launched(
    worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    served = worker.served
    worker.waiting = following = [served.request({"x": random(2, 4)})]
    path = served.backend._paths[0]  # type: ignore[attr-defined]
    start = path.executor.start

    def fail(stream: int) -> None:
        raise ModelError("it does not start")

    worker.once_staged = lambda: monkeypatch.setattr(path.executor, "start", fail)
    check(random(1, 4), served.ask({"x": random(1, 4)}))
    monkeypatch.setattr(path.executor, "start", start)
    with pytest.raises(ModelError, match="it does not start"):
        served.answers(*following)
    check(random(1, 4), served.ask({"x": random(1, 4)}))


def test_a_kernel_that_traps_ahead_ends_the_worker(worker: Worker, trip: Path) -> None:
    served = worker.served
    worker.waiting = following = [served.request({"x": random(2, 4)})]
    begun = worker.backend._ahead

    def ahead() -> bool:
        trip.touch()
        return cast("bool", begun())

    worker.backend._ahead = ahead

    def both() -> None:
        served.ask({"x": random(1, 4)})
        served.answers(*following)

    with pytest.raises(InstanceLost, match="CUDA error 719"):
        both()
    assert worker.begun_ahead == 1


def test_groups_of_one_batch_overlap(tmp_path: Path, gpu: fake_cudart.Device) -> None:
    copy_early(gpu)
    profiles = [{"image": [[1, 3, 4, 4], [2, 3, 8, 8], [4, 3, 16, 16]]}]
    directory = put_plan(engines.write_blur(tmp_path / "blur"), profiles)
    served = load(directory)
    images = [random(1, 3, size, size) for size in (4, 8, 4)]
    requests = [served.request({"image": image}) for image in images]
    before = len(gpu.copies)
    stage = served.backend._pipeline.stage  # type: ignore[attr-defined]

    def staged(piece: Any) -> None:
        stage(piece)
        had.append(len(gpu.moves) - before)

    served.backend._pipeline.stage = staged  # type: ignore[attr-defined]
    had: list[int] = []
    answers = served.answers(*requests)
    assert had == [2], "a copy in of each group, and none out"
    kinds = [kind for kind, _, _ in gpu.copies[before:]]
    assert kinds == ["in", "out", "in", "out"]
    for image, answer in zip(images, answers, strict=True):
        want = engines.expected(directory, {"image": image})["out"]
        np.testing.assert_allclose(answer["out"], want, rtol=1e-5, atol=1e-6)


def test_a_group_is_brought_to_the_device_once_even_if_it_cannot_be(
    tmp_path: Path, gpu: fake_cudart.Device
) -> None:
    steps: list[str] = []
    profiles = [{"image": [[1, 3, 4, 4], [2, 3, 8, 8], [4, 3, 16, 16]]}]
    directory = put_plan(engines.write_blur(tmp_path / "blur"), profiles)
    served = Served(TensorRTBackend(profiled(steps)), engines.on_gpu(directory))
    good, bad = (served.request({"image": random(1, 3, size, size)}) for size in (4, 8))
    bad.inputs["image"].buffer = bad.inputs["image"].buffer[:8]
    steps.clear()
    answer, fault = served.answers(good, bad)
    assert not isinstance(answer, Exception)
    assert isinstance(fault, RequestError)
    assert steps == ["copy in", "launch", "execute", "copy in", "copy out"]


def test_a_staged_batch_goes_with_the_model(worker: Worker, gpu: fake_cudart.Device) -> None:
    """Its clients' memory is let go when nothing reads it any more."""
    memory = MappedMemory(-1, 4096)
    request = worker.served.request({"x": random(1, 4)})
    request.inputs["x"].buffer = memoryview(memory)[:16]
    worker.may_begin = False
    worker.waiting = [request]
    check(random(1, 4), worker.served.ask({"x": random(1, 4)}))
    assert gpu.registered
    assert any(stream.pending for stream in gpu.streams.values())
    worker.backend.unload()
    assert not gpu.sticky
    assert not gpu.registered
    assert not gpu.memory


def test_without_late_batches_one_set_of_buffers_is_enough(
    tmp_path: Path, gpu: fake_cudart.Device
) -> None:
    off = {"parameters": {"naiad.late_batch": {"string_value": "false"}}}
    worker = Worker(load(put_plan(engines.write_affine(tmp_path / "affine"), AFFINE), off))
    assert gpu.used == 2 * memory.BUFFER_BYTES_MIN
    worker.waiting = [worker.served.request({"x": random(1, 4)})]
    check(random(2, 4), worker.served.ask({"x": random(2, 4)}))
    assert worker.staged == 0


def profiled(steps: list[str]) -> Callable[[str], Any]:
    """What a worker with a profiler can import; the profiler notes into `steps`."""

    class Nvtx:
        @staticmethod
        @contextmanager
        def annotate(message: str, domain: str) -> Iterator[None]:
            assert domain == "naiad"
            steps.append(message)
            yield

    return lambda name: Nvtx if name == "nvtx" else engines.importer(name)


def test_a_profiler_sees_each_step(tmp_path: Path, gpu: fake_cudart.Device) -> None:
    steps: list[str] = []
    directory = put_plan(engines.write_affine(tmp_path / "affine"), AFFINE)
    served = Served(TensorRTBackend(profiled(steps)), engines.on_gpu(directory))
    steps.clear()
    served.ask({"x": random(1, 4)})
    assert steps == ["copy in", "launch", "execute", "copy out"]


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Worker]:
    device = fake_cudart.reset()
    folder: Path = tmp_path_factory.mktemp("engines") / "affine"
    yield Worker(load(put_plan(engines.write_affine(folder), AFFINE), {"max_batch_size": 8}))
    device.close()


steps = st.tuples(
    st.lists(st.integers(1, 3), min_size=1, max_size=2),
    st.sampled_from(["staged", "alone", "given back"]),
    st.booleans(),
)


@given(st.lists(steps, min_size=2, max_size=8), st.integers(0, 2**32))
@settings(max_examples=40, deadline=None)
def test_whatever_is_staged_everybody_gets_his_own_rows(
    shared: Worker, story: list[tuple[list[int], str, bool]], seed: int
) -> None:
    numbers = np.random.default_rng(seed)
    served = shared.served
    arrays = [
        [numbers.standard_normal((rows, 4)).astype(np.float32) for rows in batch]
        for batch, _, _ in story
    ]
    places = [[place(array.nbytes) for array in batch] for batch in arrays]
    batches = [
        [
            served.request({"x": array}, places={"y": own} if has_place else {})
            for array, own in zip(batch, of_batch, strict=True)
        ]
        for batch, of_batch, (_, _, has_place) in zip(arrays, places, story, strict=True)
    ]
    for number, batch in enumerate(batches):
        if number + 1 < len(batches) and story[number + 1][1] != "alone":
            shared.waiting = batches[number + 1]
        answers = served.answers(*batch)
        for array, own, answer in zip(arrays[number], places[number], answers, strict=True):
            check(array, answer)
            if story[number][2]:
                np.testing.assert_array_equal(own.view(np.float32).ravel(), answer["y"].ravel())
        if number + 1 < len(batches) and story[number + 1][1] == "given back":
            shared.backend.unstage()
