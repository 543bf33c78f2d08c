"""Whenever the device does what it is told: everybody's bytes are everybody's own.

The fake's streams work as early or as late as CUDA allows, in every combination, and clients' own
streams as late as they may. So whoever does not wait for an event, or lets go of memory too soon,
has wrong bytes here.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from naiad.shm.mapped_memory import MappedMemory
from naiad.worker.backends.base import DeviceMemory, DeviceSpan, ModelRequest
from support import engines, fake_cudart
from support.engines import load, put_plan
from support.fake_streams import LATE, MOODS, Order

ROWS_MAX = 8
REQUESTS_MAX = 12
BLOCK = 512
UNTOUCHED, BUSY, GONE = 0xC5, 0xB5, 0x60
"""What a block holds at first; after its client's own work on it; once its client has it back."""

INPUTS, OUTPUTS = {"a": 4, "b": 2}, {"p": 4, "q": 3}
"""Elements of a row."""
GRAPHS = [
    {"batch_size": ROWS_MAX, "input": {}, "graph_lower_bound": {"batch_size": 3, "input": {}}},
    {"batch_size": 2, "input": {}},
]


class Wish(NamedTuple):
    """A request. Of each tensor: where it is, or is to go."""

    rows: int
    sources: tuple[str, str]
    targets: tuple[str, str]


class Turn(NamedTuple):
    """A batch, and what becomes of it while the one before is executed."""

    wishes: list[Wish]
    how: str
    settles: bool
    """Whether everything that the device may do by itself is done when the batch is answered."""


class Asked(NamedTuple):
    request: ModelRequest
    results: dict[str, Any]
    places: dict[str, tuple[str, int]]
    """(gpu or host, offset) by output."""
    sources: dict[str, tuple[str, int]]


class World:
    """One instance, and a client with memory on the GPU and on the host, a block per tensor."""

    def __init__(self, folder: Path, config: dict[str, Any]) -> None:
        self.order = Order()
        self.gpu = fake_cudart.reset(self.order)
        profile = {name: [[1, n], [2, n], [ROWS_MAX, n]] for name, n in INPUTS.items()}
        directory = put_plan(engines.write_mixed(folder / "mixed"), [profile])
        self.served = load(directory, {"max_batch_size": ROWS_MAX, **config})
        self.backend = cast("Any", self.served.backend)
        self.own_streams = list(self.gpu.streams.values())
        self.staging: Sequence[ModelRequest] | None = None
        self.backend.overlap(self._meanwhile, lambda: True)
        count = REQUESTS_MAX * (len(INPUTS) + len(OUTPUTS))
        _, *found = fake_cudart.cudaMalloc(BLOCK * count)
        self.device = int(found[0])
        self.host = MappedMemory(-1, BLOCK * count)
        self.writing, self.reading = (
            fake_cudart.cudaStreamCreateWithPriority(fake_cudart.cudaStreamNonBlocking, 0)[1]
            for _ in range(2)
        )
        self.blocks = 0

    def _meanwhile(self) -> None:
        if self.staging is not None:
            self.backend.stage(self.staging)
            self.staging = None

    def begin(self, moods: tuple[str, ...], seed: int) -> None:
        self.order.moods = (*moods, LATE)
        self.order.seed(seed)
        self.blocks = 0
        for address, size in ((self.device, self._size), (self._host_address, self._size)):
            ctypes.memset(address, UNTOUCHED, size)

    @property
    def _size(self) -> int:
        return len(self.host)

    @property
    def _host_address(self) -> int:
        return np.frombuffer(self.host, np.uint8).ctypes.data

    def address(self, kind: str, offset: int) -> int:
        return (self._host_address if kind == "host" else self.device) + offset

    def content(self, kind: str, offset: int) -> bytes:
        """Of the whole block."""
        return ctypes.string_at(self.address(kind, offset - offset % BLOCK), BLOCK)

    def _block(self, where: str) -> tuple[str, int]:
        self.blocks += 1
        offset = BLOCK * (self.blocks - 1) + (4 if where == "odd" else 0)
        return ("host" if where == "host" else "gpu"), offset

    def ask(self, wish: Wish, numbers: np.random.Generator) -> Asked:
        arrays = {
            name: numbers.integers(-9, 9, (wish.rows, n)).astype(np.float32)
            for name, n in INPUTS.items()
        }
        p = arrays["a"] + arrays["b"] @ engines.MIXED_M
        results = {"p": p, "q": p @ engines.MIXED_N}
        request = self.served.request(arrays)
        device = DeviceMemory({}, {})
        sources, places = {}, {}
        for (name, array), where in zip(arrays.items(), wish.sources, strict=True):
            if where != "message":
                sources[name] = kind, offset = self._block(where)
                if kind == "host":
                    end = offset + array.nbytes
                    self.host[offset:end] = array.tobytes()
                    request.inputs[name].buffer = memoryview(self.host)[offset:end]
                else:
                    device.inputs[name] = self._written_late(offset, array.tobytes())
        for (name, array), where in zip(results.items(), wish.targets, strict=True):
            if where != "message":
                places[name] = kind, offset = self._block(where)
                room = array.nbytes + 4 * (wish.rows % 2)
                if kind == "host":
                    place = memoryview(self.host)[offset : offset + room]
                    request.places[name] = np.frombuffer(place, np.uint8)
                else:
                    device.places[name] = self._busy(offset, room)
        request.device = device if device.inputs or device.places else None
        return Asked(request, results, places, sources)

    def _written_late(self, offset: int, content: bytes) -> DeviceSpan:
        """The client's kernel writes its input when somebody waits for it."""
        address = self.address("gpu", offset)
        self.writing.add(lambda: ctypes.memmove(address, content, len(content)))
        return DeviceSpan(address, len(content), 0, self._event(self.writing))

    def _busy(self, offset: int, size: int) -> DeviceSpan:
        """The client's kernel uses the place until somebody waits for it."""
        address = self.address("gpu", offset)
        block = self.address("gpu", offset - offset % BLOCK)
        self.reading.add(lambda: ctypes.memset(block, BUSY, BLOCK))
        return DeviceSpan(address, size, 0, self._event(self.reading))

    def _event(self, stream: Any) -> Any:
        event = fake_cudart.cudaEvent_t()
        fake_cudart.cudaEventRecord(event, stream)
        return event

    def run(self, batch: Sequence[Asked], following: Sequence[Asked] | None) -> None:
        self.staging = None if following is None else [one.request for one in following]
        responses = self.backend.execute([one.request for one in batch])
        for asked, response in zip(batch, responses, strict=True):
            self.check(asked, response)
            for kind, offset in asked.sources.values():  # its client has its memory back
                ctypes.memset(self.address(kind, offset), GONE, 16)

    def check(self, asked: Asked, response: Any) -> None:
        by_name = {output.name: output for output in response.outputs}
        assert by_name.keys() == asked.results.keys()
        for name, want in asked.results.items():
            found = by_name[name]
            assert found.shape == want.shape
            where = asked.places.get(name)
            if where is None or where[0] == "host":
                assert bytes(found.buffer) == want.tobytes(), name
            if where is not None:
                self._check_block(*where, want.tobytes())

    def _check_block(self, kind: str, offset: int, content: bytes) -> None:
        """The result at its place, and nothing around it."""
        filler = bytes([UNTOUCHED if kind == "host" else BUSY])
        before = filler * (offset % BLOCK)
        assert self.content(kind, offset) == (before + content).ljust(BLOCK, filler)

    def check_untouched(self, batch: Sequence[Asked]) -> None:
        """Of a batch whose turn has not come."""
        for asked in batch:
            for kind, offset in asked.places.values():
                content = self.content(kind, offset)
                assert content in (bytes([UNTOUCHED]) * BLOCK, bytes([BUSY]) * BLOCK)

    def give_back(self, batch: Sequence[Asked]) -> None:
        """Another worker is to execute it: its clients' memory is not used here any more."""
        self.backend.unstage()
        assert not any(stream.pending for stream in self.own_streams)
        self.check_untouched(batch)

    def close(self) -> None:
        self.backend.unload()
        self.gpu.close()


# One world after the other: there is one fake GPU.
@pytest.fixture(scope="module", params=["graphs", "no graphs", "one set"])
def world(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Any]:
    config: dict[str, Any] = {}
    if request.param == "graphs":
        config["optimization"] = {"cuda": {"graphs": True, "graph_spec": GRAPHS}}
    if request.param == "one set":
        config["parameters"] = {"naiad.late_batch": {"string_value": "false"}}
    world = World(tmp_path_factory.mktemp("engines"), config)
    yield world
    world.close()


sources = st.sampled_from(["gpu", "odd", "message", "host"])
wishes = st.builds(
    Wish,
    st.integers(1, 4),
    st.tuples(sources, sources),
    st.tuples(sources, sources),
)
turns = st.builds(
    Turn,
    st.lists(wishes, min_size=1, max_size=3).filter(
        lambda batch: sum(one.rows for one in batch) <= ROWS_MAX
    ),
    st.sampled_from(["staged", "staged", "alone", "given back"]),
    st.booleans(),
)
mood = st.sampled_from(MOODS)


@given(st.lists(turns, min_size=1, max_size=4), st.tuples(mood, mood, mood), st.integers(0, 2**32))
@settings(max_examples=100, deadline=None)
def test_everybodys_bytes_are_his_own_whenever_the_device_does_what(
    world: World, story: list[Turn], moods: tuple[str, str, str], seed: int
) -> None:
    world.begin(moods, seed)
    numbers = np.random.default_rng(seed)
    batches = [[world.ask(wish, numbers) for wish in turn.wishes] for turn in story]
    for number, (batch, turn) in enumerate(zip(batches, story, strict=True)):
        last = number + 1 == len(batches)
        following = None if last or story[number + 1].how == "alone" else batches[number + 1]
        world.run(batch, following)
        if turn.settles:
            world.gpu.settle()
        if following is not None:
            world.check_untouched(following)
            if story[number + 1].how == "given back":
                world.give_back(following)
    world.gpu.settle()


@pytest.mark.parametrize("name", INPUTS)
def test_an_output_over_any_of_its_inputs_is_copied(world: World, name: str) -> None:
    world.begin((LATE, LATE, LATE), 0)
    asked = world.ask(Wish(2, ("gpu", "gpu"), ("message", "message")), np.random.default_rng(0))
    device = asked.request.device
    assert device is not None
    device.places["p"] = DeviceSpan(device.inputs[name].address, 32)
    asked.places["p"] = "gpu", device.inputs[name].address - world.device
    before = world.gpu.calls["cudaMemcpyAsync"]
    (response,) = world.backend.execute([asked.request])
    assert response.outputs[0].span.address == device.inputs[name].address
    assert ctypes.string_at(device.inputs[name].address, 32) == asked.results["p"].tobytes()
    assert world.gpu.calls["cudaMemcpyAsync"] == before + 2, "both outputs, and no input"
