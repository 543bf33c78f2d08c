"""The TensorRT backend: requests of equal shapes are joined into one batch and run together.

Loads an engine for one instance (one context per profile of its group), completes the config from
what the engine declares, and chooses the profile of each batch. What happens to the bytes of
requests is the data path's business, and in which order batches run the pipeline's.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Final

from naiad.config.faults import listed
from naiad.config.model import InstanceGroup, ModelConfig
from naiad.protocol.errors import NaiadError
from naiad.shm.cuda.errors import RUNTIME_MODULE
from naiad.worker.backends.base import ModelInstance, ModelRequest, ModelResponse
from naiad.worker.backends.completion import complete_config
from naiad.worker.backends.tensorrt import engine as declared
from naiad.worker.backends.tensorrt import runtime
from naiad.worker.backends.tensorrt.client_memory import ClientMemory
from naiad.worker.backends.tensorrt.context import Context
from naiad.worker.backends.tensorrt.cuda import Cuda
from naiad.worker.backends.tensorrt.data_path import DataPath
from naiad.worker.backends.tensorrt.engine import Binding, load_error
from naiad.worker.backends.tensorrt.graph_specs import graph_specs
from naiad.worker.backends.tensorrt.grouping import Grouping
from naiad.worker.backends.tensorrt.memory import BufferSet, ResultMemory
from naiad.worker.backends.tensorrt.pipeline import Piece, Pipeline
from naiad.worker.backends.tensorrt.profiles import Profile
from naiad.worker.backends.tensorrt.ranges import profiler_ranges
from naiad.worker.backends.tensorrt.streams import PRIORITIES, Streams
from naiad.worker.backends.tensorrt.trials import Trials

STRATEGY_PARAMETER: Final = "execution_context_allocation_strategy"
STRATEGIES: Final = ("STATIC", "ON_PROFILE_CHANGE")

SETS: Final = 2
"""Of buffers: one for the batch that is executed, one for the next. With naiad.late_batch off there
is no next one, and one set is enough."""

_log = logging.getLogger(__name__)


class TensorRTBackend:
    """One instance; all calls on one thread. `importer` is for tests, which plant modules."""

    takes_device_memory = True

    def __init__(self, importer: runtime.Importer = import_module) -> None:
        self._importer = importer
        self.copied_in_ns = 0
        self._instance_name = ""
        self._config = ModelConfig("")
        self._inputs: dict[str, Binding] = {}
        self._paths: list[DataPath] = []
        self._sets: list[BufferSet] = []
        self._profiles: tuple[Profile, ...] = ()
        self._meanwhile: Callable[[], None] | None = None
        self._ahead: Callable[[], bool] | None = None
        self._staged: tuple[Sequence[ModelRequest], list[Piece]] | None = None

    def load(self, instance: ModelInstance) -> ModelConfig:
        """Deserialise the engine, complete the config, take all memory that batches will need."""
        if instance.kind != "KIND_GPU":
            raise load_error(
                f'backend "tensorrt" runs on GPUs only, got {instance.kind}: use KIND_GPU'
            )
        strategy = instance.config.parameters.get(STRATEGY_PARAMETER, STRATEGIES[0])
        if strategy not in STRATEGIES:
            raise load_error(
                f'parameters["{STRATEGY_PARAMETER}"]: expected {listed(STRATEGIES)}, '
                f'got "{strategy}"'
            )
        self._instance_name = instance.instance_name
        cuda = Cuda(
            self._importer(RUNTIME_MODULE),
            instance.name,
            instance.device_id,
            instance.gpu_uuid,
        )
        optimization = instance.config.raw.get("optimization") or {}
        self._streams = Streams(
            cuda,
            priority=optimization.get("priority") or PRIORITIES[0],
            is_spinning=bool((optimization.get("cuda") or {}).get("busy_wait_events")),
        )
        path = runtime.plan_path(instance, cuda.compute_capability())
        plan = runtime.read_plan(path)
        trt = runtime.trt_module(instance, plan, self._importer)
        self._loaded = loaded = runtime.LoadedEngine(
            trt,
            plan,
            path,
            cuda,
            plugins=runtime.plugin_libraries(instance),
            runs_host_code=runtime.runs_host_code(instance),
        )
        del plan
        bindings = declared.read_bindings(trt, loaded.engine)
        wanted = group_of(instance).profile
        self._profiles = declared.read_profiles(loaded.engine, bindings, wanted)
        declared.check_formats(trt, loaded.engine, bindings, self._profiles)
        self._config = config = self._completed(instance, bindings)
        self._inputs = {binding.name: binding for binding in bindings if binding.is_input}
        self._grouping = Grouping(
            config, bindings, self._profiles, self._paths, self._instance_name
        )
        self._graph_specs, fault = graph_specs(config, bindings)
        if fault is not None:
            _log.warning("%s: no CUDA graphs: %s", self._instance_name, fault)
        self._take_memory(bindings, strategy)
        return config

    def _completed(self, instance: ModelInstance, bindings: Sequence[Binding]) -> ModelConfig:
        rows_max = declared.rows_max(bindings, self._profiles)
        config = complete_config(
            instance.config,
            [binding.declared() for binding in bindings if binding.is_input],
            [binding.declared() for binding in bindings if not binding.is_input],
            may_batch=instance.auto_complete
            and rows_max is not None
            and not any(binding.is_host for binding in bindings),
            rows_max=rows_max,
        )
        if config.max_batch_size > 0:
            if all(binding.is_host for binding in bindings if binding.is_input):
                raise load_error(
                    f"max_batch_size is {config.max_batch_size}, and all inputs of the engine are "
                    "shape tensors, of which none tells the size of a batch: set max_batch_size: 0"
                )
            odd = [b.name for b in bindings if b.is_host and len(b.dims) != 1]
            if odd:
                raise load_error(
                    f"max_batch_size is {config.max_batch_size}, and the shape tensors "
                    f"{listed(odd)} of the engine are no lists of values, the first of which would "
                    "be the batch: set max_batch_size: 0 and give whole shapes"
                )
            if rows_max is not None and config.max_batch_size > rows_max:
                numbers = listed([str(profile.index) for profile in self._profiles])
                raise load_error(
                    f"max_batch_size is {config.max_batch_size}, but the engine's optimization "
                    f"profiles {numbers} admit batches of {rows_max} at most; set max_batch_size: "
                    f"{rows_max}, or build the engine with larger profiles"
                )
        self._check_dims(config, {binding.name: binding for binding in bindings})
        return config

    def _check_dims(self, config: ModelConfig, bindings: Mapping[str, Binding]) -> None:
        """Fixed dims of the config that no profile admits would refuse every request."""
        lead = 1 if config.max_batch_size > 0 else 0
        for tensor in config.inputs:
            if bindings[tensor.name].dims == () or bindings[tensor.name].is_host:
                continue
            ranges = [profile.shapes[tensor.name] for profile in self._profiles]
            for axis, size in enumerate(tensor.model_dims, start=lead):
                if size == -1 or any(r.least[axis] <= size <= r.greatest[axis] for r in ranges):
                    continue
                allowed = listed([f"{r.least[axis]} to {r.greatest[axis]}" for r in ranges])
                raise load_error(
                    f"input '{tensor.name}': the config fixes dimension {axis} at {size}, the "
                    f"engine's profiles admit {allowed}; correct dims, or build the engine with "
                    "other profiles"
                )

    def _take_memory(self, bindings: Sequence[Binding], strategy: str) -> None:
        """Contexts first: they need most, and nothing smaller than all of it is of any use."""
        streams = self._streams
        self._results = ResultMemory(streams.cuda)
        self._clients = ClientMemory(streams.cuda, self._instance_name)
        count = SETS if self._config.naiad.late_batch else 1
        self._sets = [BufferSet(streams) for _ in range(count)]
        self._pipeline = Pipeline(streams, self._sets, profiler_ranges(self._importer))
        sizes: dict[str, int] = {}
        for profile in self._profiles:
            context = Context(self._loaded, profile.index, streams, strategy)
            path = DataPath(context, profile, bindings, streams, self._clients, self._results)
            self._paths.append(path)
            path.reserve(self._sets, sizes)
        for one in self._sets:
            one.allocate()
        for name, size in sizes.items():
            self._results.pin(name, max(1, size))

    def warm_up(self) -> None:
        """One run of zeros in each profile, and the graphs that the config asks for."""
        outputs = [output.name for output in self._config.outputs]
        trials = Trials(self._instance_name, self._inputs, outputs)
        for path in self._paths:
            trials.run(path, self._pipeline)
        trials.capture(self._graph_specs, self._paths, self._sets, self._streams)

    def overlap(self, meanwhile: Callable[[], None], ahead: Callable[[], bool]) -> None:
        """As base.Overlapping has it."""
        if len(self._sets) > 1:
            self._meanwhile = meanwhile
            self._ahead = ahead

    def stage(self, batch: Sequence[ModelRequest]) -> None:
        """Bring the next batch to the device; one whose shapes differ only in part."""
        if self._staged is None and self._pipeline.can_stage:
            pieces = self._grouping.pieces(batch)
            self._staged = batch, pieces
            self._pipeline.stage(pieces[0])

    def unstage(self) -> None:
        """The staged batch is not executed here after all."""
        self._staged = None
        self._pipeline.drop()

    def execute(self, batch: Sequence[ModelRequest]) -> Sequence[ModelResponse | NaiadError]:
        """Requests whose shapes agree run together, the others one after the other."""
        answers: dict[int, ModelResponse | NaiadError] = {}
        pieces = self._taken(batch)
        before_ns = self._pipeline.copied_in_ns
        for position, piece in enumerate(pieces):
            try:
                if position + 1 < len(pieces):
                    found = self._pipeline.run(piece, self._staging(pieces[position + 1]))
                else:
                    found = self._pipeline.run(piece, self._meanwhile, self._ahead)
                answers.update(zip(piece.indexes, self._configured(found), strict=True))
            except NaiadError as error:
                if len(piece.indexes) > 1 or len(pieces) == 1:
                    raise
                answers[piece.indexes[0]] = error
        self.copied_in_ns = self._pipeline.copied_in_ns - before_ns
        return [answers[index] for index in range(len(batch))]

    def _configured(self, responses: Sequence[ModelResponse]) -> Sequence[ModelResponse]:
        """A config cannot say "scalar": its dims are [1]."""
        if self._grouping.scalars:
            for response in responses:
                for output in response.outputs:
                    if output.name in self._grouping.scalars:
                        output.shape = (1,)
        return responses

    def _taken(self, batch: Sequence[ModelRequest]) -> list[Piece]:
        """The pieces of a batch, which may have been staged already."""
        staged, self._staged = self._staged, None
        if staged is None or [*map(id, staged[0])] != [*map(id, batch)]:
            return self._grouping.pieces(batch)
        return staged[1]

    def _staging(self, piece: Piece) -> Callable[[], None]:
        """What to do while the piece before this one, of the same batch, is executed."""

        def meanwhile() -> None:
            if self._pipeline.can_stage:
                self._pipeline.stage(piece)

        return meanwhile

    def bound_growth(self, size: int) -> None:
        """As base.Bounded has it: only outputs whose size depends on the data still grow."""
        self._streams.cuda.growth_left = size

    def unload(self) -> None:
        """Give everything back, in the order in which one needs the other."""
        self._streams.finish()
        self._clients.close()
        while self._paths:
            self._paths.pop().close()
        while self._sets:
            self._sets.pop().close()
        self._results.close()
        self._loaded.close()
        self._streams.close()


def group_of(instance: ModelInstance) -> InstanceGroup:
    """The instance group whose name this instance carries (`<group>_<n>_gpu<id>`)."""
    for group in instance.config.instance_groups:
        name = re.escape(group.name or instance.name)
        if re.fullmatch(rf"{name}_\d+(_gpu\d+)?(_v\d+)?", instance.instance_name):
            return group
    return InstanceGroup()
