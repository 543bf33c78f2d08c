"""Between the wire and the model: requests of a batch to ModelRequests, responses to results.

Owns no memory: views point into payload frames and mapped regions and live as long as the batch.
Knows no socket. The hot path (small inline tensors) makes no array and copies bytes once, into the
one payload frame that all small outputs of the batch share.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final, NamedTuple, Protocol

from naiad.config.model import ModelConfig
from naiad.protocol.datatypes import element_count
from naiad.protocol.errors import Code, ModelError, RequestError
from naiad.protocol.messages import (
    INLINE_BYTES_MAX,
    BatchRequest,
    BatchResult,
    OutputRequest,
    Place,
    Tensor,
)
from naiad.worker.backends.base import (
    DeviceMemory,
    DeviceSpan,
    ModelRequest,
    ModelResponse,
    OutputTensor,
)
from naiad.worker.device_regions import DeviceRegions
from naiad.worker.device_tensors import DeviceContent, DeviceInput
from naiad.worker.outputs import OutputRules
from naiad.worker.shapes import InputReshapes, Shape
from naiad.worker.tensors import Input, bytes_offsets, pack_array

INLINE_OUTPUT_BYTES_MAX: Final = 16 * 1024
"""Larger outputs whose place is the server's choice are leased from the worker's arena."""

_REGION: Final = int(Place.REGION)
_LEASE: Final = int(Place.LEASE)
_new_tuple: Final = tuple.__new__
_NO_PLACES: Final[dict[str, OutputRequest]] = {}

Buffer = memoryview | bytes


class Regions(Protocol):
    """The mapped client regions of one broker (worker.regions)."""

    device: DeviceRegions
    device_ids: set[int]

    def readable(self, region: int, offset: int, size: int) -> memoryview: ...

    def writable(self, region: int, offset: int, size: int) -> memoryview: ...

    def copy(self, region: int, offset: int, size: int) -> memoryview: ...


class Lender(Protocol):
    """The worker's output arena (shm.output_arena)."""

    def lend(self, request: BatchRequest, content: Buffer) -> tuple[int, int] | None:
        """(region id, offset) of a copy of the bytes, leased; None when there is no room."""
        ...

    def end(self, session: int, request: int) -> bool:
        """Take back what was lent to this request."""
        ...


class ReceivedBatch(NamedTuple):
    """A batch with the memory it refers to. `frames` are the payload frames."""

    id: int
    requests: tuple[BatchRequest, ...]
    frames: list[memoryview]
    regions: Regions


class RequestReader:
    """BatchRequest → ModelRequest, for one model."""

    def __init__(
        self,
        config: ModelConfig,
        rules: OutputRules,
        is_cancelled: Callable[[tuple[int, int]], bool],
        takes_device_memory: bool = False,
    ) -> None:
        self._rules = rules
        self._takes_device_memory = takes_device_memory
        self._reshapes = InputReshapes(config)
        shape_tensors = frozenset(t.name for t in config.inputs if t.is_shape_tensor)
        strings = frozenset(t.name for t in config.inputs if t.data_type in ("BYTES", ""))
        self._special = self._reshapes.names | shape_tensors | strings
        self._parsed = shape_tensors | strings
        """Inputs that somebody parses: they are copied out before, their owner may change them."""
        self._is_cancelled = is_cancelled

    def read(self, request: BatchRequest, batch: ReceivedBatch) -> ModelRequest:
        """Raises RequestError when the bytes of an input cannot be had or are malformed."""
        (session, ident, label, tensors, outputs, remaining_us, priority, sequence, _,
         parameters) = request  # fmt: skip
        frames = batch.frames
        regions = batch.regions
        on_device = regions.device_ids
        special = self._special
        inputs: dict[str, Any] = {}
        spans: dict[str, DeviceSpan] = {}
        for name, datatype, shape, place, region, offset, size in tensors:
            if special and name in special:
                inputs[name] = self._read_special(tensors[len(inputs)], batch, spans)
                continue
            if place == 0:
                buffer = frames[region][offset : offset + size]
            elif region in on_device:
                inputs[name] = self._on_device(tensors[len(inputs)], regions.device, spans)
                continue
            else:
                buffer = regions.readable(region, offset, size)
            inputs[name] = Input(name, datatype, shape, buffer)
        places = _places(outputs, regions) if outputs else {}
        device: DeviceMemory | None = None
        if self._takes_device_memory and on_device:
            device = _device_memory(spans, outputs, regions)
        start = end = False
        sequence_id: int | str = 0
        if sequence is not None:
            sequence_id, start, end = sequence
        return ModelRequest(
            label,
            inputs,
            self._rules.wanted(outputs) if outputs else self._rules.names,
            places,
            parameters,
            priority,
            remaining_us,
            sequence_id,
            start,
            end,
            partial(self._is_cancelled, (session, ident)),
            device,
        )

    def _on_device(
        self, tensor: Tensor, device: DeviceRegions, spans: dict[str, DeviceSpan]
    ) -> Any:
        """An input in GPU memory, copied for a backend that does not take it there."""
        name, datatype, shape, _, region, offset, size = tensor
        if name in self._reshapes.names:
            shape = self._reshapes.model_shape(name, shape)
        span = device.span(region, offset, size)
        if self._takes_device_memory:
            spans[name] = span
            return DeviceInput(name, datatype, shape, span, device)
        return Input(name, datatype, shape, device.host_copy(span))

    def _read_special(
        self, tensor: Tensor, batch: ReceivedBatch, spans: dict[str, DeviceSpan]
    ) -> Any:
        """An input that is parsed or that the model sees in another shape."""
        name, datatype, shape, place, region, offset, size = tensor
        regions = batch.regions
        if place == 0:
            buffer = batch.frames[region][offset : offset + size]
        elif region in regions.device_ids:
            if name not in self._parsed:
                return self._on_device(tensor, regions.device, spans)
            buffer = regions.device.host_copy(regions.device.span(region, offset, size))
        elif name in self._parsed:
            buffer = regions.copy(region, offset, size)
        else:
            buffer = regions.readable(region, offset, size)
        if datatype == "BYTES":
            _check_bytes_input(name, shape, buffer)
        if name in self._reshapes.names:
            shape = self._reshapes.model_shape(name, shape)
        return Input(name, datatype, shape, buffer)


def _check_bytes_input(name: str, shape: Shape, private: memoryview) -> None:
    try:
        bytes_offsets(private, element_count(shape))
    except RequestError as fault:
        raise RequestError(f"input {name!r}: {fault.message}") from fault


def _places(outputs: tuple[OutputRequest, ...], regions: Regions) -> dict[str, Any]:
    """Writable uint8 arrays for the outputs that the client wants in its own ordinary memory."""
    places: dict[str, Any] = {}
    for name, place, region, offset, size in outputs:
        if place != _REGION:
            continue
        if region in regions.device_ids:
            regions.device.span(region, offset, size)  # before the model runs for nothing
            continue
        import numpy as np

        places[name] = np.frombuffer(regions.writable(region, offset, size), dtype=np.uint8)
    return places


def _device_memory(
    inputs: dict[str, DeviceSpan], outputs: tuple[OutputRequest, ...], regions: Regions
) -> DeviceMemory | None:
    places: dict[str, DeviceSpan] = {}
    for name, place, region, offset, size in outputs:
        if place == _REGION and region in regions.device_ids:
            places[name] = regions.device.span(region, offset, size)
    for span in (*inputs.values(), *places.values()):
        regions.device.wait_for(span)
    return DeviceMemory(inputs, places) if inputs or places else None


def awaits_owners(batch: ReceivedBatch) -> bool:
    """Whether reading this batch would wait, or might, for clients' own work on the GPU."""
    regions = batch.regions
    if not regions.device_ids:
        return False
    named: set[int] = set()
    for request in batch.requests:
        named.update(one.region for one in request.inputs if one.place == _REGION)
        named.update(one.region for one in request.outputs if one.place == _REGION)
    return regions.device.awaits_owner(named & regions.device_ids)


class ResultWriter:
    """Responses → BatchResults and the payload frames of one RESULTS message."""

    def __init__(self, rules: OutputRules, batch: ReceivedBatch, lender: Lender) -> None:
        self._rules = rules
        self._batch = batch
        self._lender = lender
        self._frames: list[Buffer] = []
        self._packed: list[Buffer] = []
        self._packed_bytes = 0
        self._packed_frame = -1
        self._inline_bytes = 0
        self.fallback_count = 0
        """Outputs that had to go inline because there was no room in shared memory."""

    def frames(self) -> list[Buffer]:
        """The payload frames, once everything is written."""
        if self._packed:
            self._frames[self._packed_frame] = b"".join(self._packed)
        return self._frames

    def write(
        self, request: BatchRequest, wanted: tuple[str, ...], response: ModelResponse
    ) -> BatchResult:
        """One request's result.

        Raises ModelError when the response does not fit the config, RequestError when an output
        does not fit where the client wants it.
        """
        rules = self._rules
        asked = request.outputs
        places = {o.name: o for o in asked if o.place == _REGION} if asked else _NO_PLACES
        inputs = request.inputs
        if rules.shape_tensors:
            inputs = tuple([one for one in inputs if one.name not in rules.shape_tensors])
        batch_size = inputs[0].shape[0] if inputs and inputs[0].shape else 0
        outputs = response.outputs
        if len(outputs) != 1 or len(wanted) != 1 or outputs[0].name != wanted[0]:
            outputs = rules.select(outputs, wanted)
        tensors: list[Tensor] = []
        for output in outputs:
            name, datatype = output.name, output.datatype
            try:
                given: Any = output.shape
                shape, expected = rules.allowed[(name, datatype, given, batch_size)]
            except (KeyError, TypeError):  # a new shape, or one given as a list
                shape, expected = rules.check(output, batch_size)
            content: Any = output.buffer  # of any type that has bytes
            if content is None:
                span = output.span
                content = (
                    self._packed_array(output) if span is None else self._moved(output, places)
                )
            size: int = content.nbytes if type(content) is memoryview else len(content)
            if size != expected:
                if expected is not None:
                    raise rules.wrong_size(output, expected, size)
                _check_bytes_output(rules, output, shape, content)
            if places and name in places:
                wish = places[name]
                if tensors:
                    _check_apart(wish, size, tensors)
                place, region, offset = self._put(wish, content, size)
            elif size <= INLINE_OUTPUT_BYTES_MAX:
                place, region, offset = 0, self._packed_frame, self._packed_bytes
                if region < 0:
                    region = self._reserve_packed_frame()
                self._packed.append(content)
                self._packed_bytes = offset + size
            else:
                place, region, offset = self._place_large(request, name, content, size)
            tensors.append(_new_tuple(Tensor, (name, datatype, shape, place, region, offset, size)))
        parameters = rules.parameters(response.parameters) if response.parameters else {}
        return _new_tuple(BatchResult, (None, tuple(tensors), 0, True, parameters))

    def _packed_array(self, output: OutputTensor) -> Buffer:
        array = output.array
        if array is None:
            raise self._rules.not_packable(output, TypeError("neither array nor buffer is set"))
        if tuple(array.shape) != tuple(output.shape):
            raise self._rules.not_packable(
                output, ValueError(f"shape {list(output.shape)}, but its array has {array.shape}")
            )
        try:
            return pack_array(output.datatype, array)
        except (TypeError, ValueError) as fault:
            raise self._rules.not_packable(output, fault) from fault

    def _moved(self, output: OutputTensor, places: dict[str, OutputRequest]) -> Any:
        """What a backend left in GPU memory: as it is, if it stays there, else copied."""
        span: Any = output.span
        if output.datatype == "BYTES":
            raise self._rules.not_packable(output, TypeError("strings cannot lie in GPU memory"))
        regions = self._batch.regions
        place = places.get(output.name)
        if place is not None and place.region in regions.device_ids:
            return DeviceContent(span)
        return regions.device.host_copy(span)

    def _reserve_packed_frame(self) -> int:
        """The place of the shared frame of small outputs among the payload frames."""
        self._packed_frame = len(self._frames)
        self._frames.append(b"")
        return self._packed_frame

    def _place_large(
        self, request: BatchRequest, name: str, content: Buffer, size: int
    ) -> tuple[int, int, int]:
        """Into the worker's arena, else into a frame of its own."""
        lent = self._lender.lend(request, content)
        if lent is not None:
            return _LEASE, *lent
        self.fallback_count += 1
        if self._inline_bytes + size > INLINE_BYTES_MAX:
            raise ModelError(
                f"output {name!r} of {size} bytes: expected at most {INLINE_BYTES_MAX} bytes of "
                "inline outputs in a batch, and there was no room in shared memory; enlarge "
                "/dev/shm or make batches smaller",
                code=Code.UNAVAILABLE,
                retryable=True,
            )
        self._inline_bytes += size
        self._frames.append(bytes(content))
        return 0, len(self._frames) - 1, 0

    def _put(self, wanted: OutputRequest, content: Any, size: int) -> tuple[int, int, int]:
        """Into the client's own memory, unless the backend wrote it there already."""
        if size > wanted.size:
            raise RequestError(
                f"shared memory size specified with the request for output '{wanted.name}' "
                f"({wanted.size} bytes) should be at least {size} bytes to hold the results"
            )
        regions = self._batch.regions
        if wanted.region in regions.device_ids:
            place = regions.device.span(wanted.region, wanted.offset, wanted.size)
            if not isinstance(content, DeviceContent):
                regions.device.write(place, content)
            elif content.span.address != place.address:
                regions.device.move(place, content.span)
            return _REGION, wanted.region, wanted.offset
        target = regions.writable(wanted.region, wanted.offset, wanted.size)[:size]
        if size and _address(target) != _address(content):
            target[:] = memoryview(content).cast("B")
        return _REGION, wanted.region, wanted.offset


def _check_apart(wanted: OutputRequest, size: int, written: list[Tensor]) -> None:
    """Places may reach over each other when the outputs themselves do not."""
    for other in written:
        if (
            other.place == _REGION
            and other.region == wanted.region
            and other.offset < wanted.offset + size
            and wanted.offset < other.offset + other.size
        ):
            raise RequestError(
                f"outputs '{other.name}' ({other.size} bytes at {other.offset}) and"
                f" '{wanted.name}' ({size} bytes at {wanted.offset}) lie over each other in shared"
                " memory; place them apart"
            )


def _check_bytes_output(
    rules: OutputRules, output: OutputTensor, shape: Shape, content: Buffer
) -> None:
    try:
        bytes_offsets(content, element_count(shape))
    except RequestError as fault:
        raise rules.not_packable(output, fault) from fault


def _address(buffer: Buffer) -> int:
    import numpy as np

    address: int = np.frombuffer(buffer, dtype=np.uint8).__array_interface__["data"][0]
    return address
