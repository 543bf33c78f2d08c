"""What naiad's sources use of TensorRT, and what the fake answers, held to the real packages.

Every attribute that the sources use is read from them, so that a name which no test uses, and which
a release has dropped, is found. What the fake returns is looked at while workers use it.
"""

from __future__ import annotations

import enum
import inspect
import re
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from naiad.config.backends import TENSORRT_DATATYPE
from naiad.protocol.errors import ModelError
from naiad.worker.backends.tensorrt.backend import STRATEGIES
from naiad.worker.backends.tensorrt.cuda import Cuda
from naiad.worker.backends.tensorrt.memory import output_allocator
from naiad.worker.backends.tensorrt.runtime import LastWords, LoadedEngine
from support import engines, fake_cudart, fake_trt
from support.gpu_worker import STORIES, GpuWorker
from support.real_api import SOURCES, elsewhere, returned, uses
from support.real_packages import real_package

LEAN, RTX = "tensorrt_lean_bindings", "tensorrt_rtx_bindings"
PACKAGES = {
    LEAN: "tensorrt-lean-cu13-libs tensorrt-lean-cu13-bindings",
    RTX: "tensorrt-rtx-cu13-libs tensorrt-rtx-cu13-bindings",
}


@pytest.fixture(scope="module", params=PACKAGES)
def bindings(request: pytest.FixtureRequest) -> Any:
    return real_package(request.param, PACKAGES[request.param])


@pytest.fixture(scope="module")
def rtx() -> Any:
    return real_package(RTX, PACKAGES[RTX])


# --- What the sources use ------------------------------------------------------------------------

WORKER = sorted((SOURCES / "worker/backends/tensorrt").glob("*.py"))
OWNERS = {
    "trt": "",
    "loaded.trt": "",
    "self._trt": "",
    "trt.ILogger": "ILogger",
    "severity": "ILogger.Severity",
    "trt.IOutputAllocator": "IOutputAllocator",
    "trt.TensorIOMode": "TensorIOMode",
    "trt.TensorLocation": "TensorLocation",
    "engine": "ICudaEngine",
    "loaded.engine": "ICudaEngine",
    "context": "IExecutionContext",
    "self._context": "IExecutionContext",
    "self._runtime": "Runtime",
    "trt.get_plugin_registry()": "IPluginRegistry",
}
"""What the expressions of the backend's sources are."""
CLASSES = ("Runtime", "ICudaEngine", "IExecutionContext", "IPluginRegistry")


def found(module: Any, owner: str) -> Any:
    for name in filter(None, owner.split(".")):
        module = getattr(module, name)
    return module


def test_whatever_the_backend_uses_is_in_the_real_package_and_in_the_fake(bindings: Any) -> None:
    used = uses(WORKER, OWNERS)
    assert len({one.name for one in used}) > 30
    for module in (bindings, fake_trt):
        absent = [
            one
            for one in used
            if not hasattr(found(module, one.owner), one.name)
            and not (module is fake_trt and one.name in own_attributes(one.owner))
        ]
        assert absent == []


def own_attributes(owner: str) -> set[str]:
    """What objects of the fake have, and its classes do not."""
    kind = found(fake_trt, owner)
    return set(re.findall(r"^ +self\.([a-z]\w*) = ", inspect.getsource(kind), re.MULTILINE))


def test_nothing_of_tensorrt_is_used_of_what_is_not_known(bindings: Any) -> None:
    """Else such a use would be held to nothing: say in OWNERS what that expression is."""
    members = {name for one in CLASSES for name in vars(getattr(bindings, one)) if name[0] != "_"}
    members -= {"name", "engine", "logger"}  # of our own things as well
    assert elsewhere(WORKER, OWNERS, members) == []


def test_attributes_of_the_fakes_objects_are_properties_of_the_real_ones(bindings: Any) -> None:
    own = {"ICudaEngine": {"busy_profiles"}, "IExecutionContext": {"executions"}}
    own["IPluginRegistry"] = {"loaded"}
    for name in CLASSES:
        real = vars(getattr(bindings, name))
        public = own_attributes(name) | {
            one
            for one, value in vars(getattr(fake_trt, name)).items()
            if one[0] != "_" and not callable(value)
        }
        wrong = {
            one for one in public - own.get(name, set()) if not isinstance(real[one], property)
        }
        assert wrong == set()


def test_the_builder_uses_what_is_there(rtx: Any) -> None:
    """`naiad build`: what it uses of a builder, a network, a parser and a config."""
    owners = {
        "trt": "",
        "trt.NetworkDefinitionCreationFlag": "NetworkDefinitionCreationFlag",
        "trt.MemoryPoolType": "MemoryPoolType",
        "self._builder": "Builder",
        "self._network": "INetworkDefinition",
        "self._parser": "OnnxParser",
        "network": "INetworkDefinition",
        "tensor": "ITensor",
        "tensor.dtype": "DataType",
        "error": "ParserError",
        "config": "IBuilderConfig",
        "self._cache": "ITimingCache",
        "made": "IOptimizationProfile",
    }
    used = uses([SOURCES / "cli/building/engine_builder.py"], owners)
    assert len(used) > 15
    assert [one for one in used if not hasattr(found(rtx, one.owner), one.name)] == []


# --- Enumerations ----------------------------------------------------------------------------


def enumerations() -> dict[str, type[enum.IntEnum]]:
    kinds = {"": fake_trt, **{name: getattr(fake_trt, name) for name in ("ILogger",)}}
    return {
        f"{owner}.{name}".strip("."): value
        for owner, kind in kinds.items()
        for name, value in vars(kind).items()
        if inspect.isclass(value) and issubclass(value, enum.IntEnum) and value is not enum.IntEnum
    }


@pytest.mark.parametrize("name", enumerations())
def test_enumerations_have_the_real_numbers(bindings: Any, name: str) -> None:
    if name == "TensorFormat" and bindings.__name__ == LEAN:
        assert not hasattr(bindings, name), "the lean runtime cannot name formats"
        return
    real = found(bindings, name).__members__
    for member in enumerations()[name]:
        assert (int(real[member.name]), real[member.name].name) == (member.value, member.name)


def test_every_type_is_served_or_refused_knowingly(bindings: Any) -> None:
    assert set(bindings.DataType.__members__) - set(TENSORRT_DATATYPE) == {
        "FP8",
        "INT4",
        "FP4",
        "E8M0",
    }
    assert set(TENSORRT_DATATYPE) <= set(bindings.DataType.__members__)


def test_strategies_are_the_real_ones(bindings: Any) -> None:
    assert set(STRATEGIES) < set(bindings.ExecutionContextAllocationStrategy.__members__)


# --- What is returned ------------------------------------------------------------------------


def all_of(kind: Any) -> Callable[[Any], bool]:
    return lambda value: type(value) is list and all(RIGHT[kind](one) for one in value)


def is_one(name: str) -> Callable[[Any], bool]:
    return lambda value: type(value) is getattr(fake_trt, name)


RIGHT: dict[str, Callable[[Any], bool]] = {
    "bool": lambda value: type(value) is bool,
    "int": lambda value: type(value) is int,
    "str": lambda value: type(value) is str,
    "Dims": lambda value: type(value) is fake_trt.Dims,
    "list[str]": all_of("str"),
    "list[int]": all_of("int"),
    "list[Dims]": all_of("Dims"),
    "list[list[int]]": all_of("list[int]"),
    "CapsuleType": lambda value: type(value) is object,
    **{
        name: is_one(name)
        for name in (
            "DataType",
            "ICudaEngine",
            "IExecutionContext",
            "TensorFormat",
            "TensorIOMode",
            "TensorLocation",
        )
    },
}
"""By the type that the real one says."""
METHODS = [
    (kind, name)
    for kind in CLASSES
    for name, value in vars(getattr(fake_trt, kind)).items()
    if inspect.isfunction(value) and name[0] != "_" and name not in ("datatype", "outputs_of")
]


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[tuple[str, str], list[Any]]]:
    """What the fake answered, by method, while workers lived their lives."""
    told: dict[tuple[str, str], list[Any]] = defaultdict(list)

    def watched(where: tuple[str, str], function: Any) -> Any:
        def call(*arguments: Any) -> Any:
            told[where].append(function(*arguments))
            return told[where][-1]

        return call

    with pytest.MonkeyPatch.context() as patch:
        for kind, name in METHODS:
            owner = getattr(fake_trt, kind)
            patch.setattr(owner, name, watched((kind, name), getattr(owner, name)))
        for story in STORIES.values():
            worker = GpuWorker(story.put(tmp_path_factory.mktemp("engine")), story.config)
            for step in story.steps.values():
                step(worker)
            assert worker.errors == []
            worker.close()
        with pytest.MonkeyPatch.context() as lean:  # whose formats are told in words
            lean.delattr(fake_trt, "TensorFormat")
            engines.load(story.put(tmp_path_factory.mktemp("lean")), story.config)
        yield told


@pytest.mark.parametrize(("kind", "name"), METHODS)
def test_the_fake_returns_what_the_real_one_says(
    bindings: Any, answers: dict[tuple[str, str], list[Any]], kind: str, name: str
) -> None:
    says = returned(getattr(getattr(bindings, kind), name))
    assert answers[kind, name], "no worker calls it"
    assert [one for one in answers[kind, name] if not RIGHT[says](one)] == []


@pytest.mark.parametrize(
    ("kind", "name", "says"),
    [
        ("Runtime", "engine_host_code_allowed", "bool"),
        ("ICudaEngine", "num_io_tensors", "int"),
        ("ICudaEngine", "num_optimization_profiles", "int"),
        ("IExecutionContext", "active_optimization_profile", "int"),
    ],
)
def test_properties_have_the_real_types(bindings: Any, kind: str, name: str, says: str) -> None:
    assert returned(vars(getattr(bindings, kind))[name]) == says


def test_dimensions_are_a_sequence_of_int(bindings: Any) -> None:
    for module in (bindings, fake_trt):
        dims = module.Dims([2, -1, 3])
        assert not isinstance(dims, tuple | list)
        assert (len(dims), tuple(dims), dims[1], type(dims[0])) == (3, (2, -1, 3), -1, int)
        assert tuple(module.Dims()) == ()


# --- Output allocators -----------------------------------------------------------------------


def callbacks(bindings: Any) -> dict[str, list[str]]:
    text = bindings.IOutputAllocator.__doc__
    found = re.findall(r"def (\w+)\(self, (.*)\):", text)
    return {name: parameters.split(", ") for name, parameters in found}


def test_our_allocator_has_the_callbacks_and_their_parameters(bindings: Any) -> None:
    wanted = callbacks(bindings)
    assert set(wanted) == {"reallocate_output", "reallocate_output_async", "notify_shape"}
    allocator = output_allocator(bindings, lambda name, size: 4096 if size <= 1024 else 0)
    assert isinstance(allocator, bindings.IOutputAllocator)
    for name, parameters in wanted.items():
        assert list(inspect.signature(getattr(allocator, name)).parameters) == parameters
    assert allocator.reallocate_output_async("y", 0, 1000, 256, 1) == 4096
    assert allocator.reallocate_output("y", 0, 2000, 256) == 0
    allocator.notify_shape("y", bindings.Dims([2, 3]))
    assert allocator.shape == (2, 3)


def test_the_fake_calls_them_in_that_order(bindings: Any, tmp_path: Path) -> None:
    worker = GpuWorker(STORIES["growing"].put(tmp_path), STORIES["growing"].config)
    worker.load()
    (path,) = worker.backend._paths
    allocator: Any = path.executor._allocators["OUTPUT0"]  # type: ignore[attr-defined]
    seen: dict[str, tuple[Any, ...]] = {}
    for name in callbacks(bindings):
        own = getattr(allocator, name)
        setattr(
            allocator, name, lambda *a, own=own, name=name: (seen.update({name: a}), own(*a))[1]
        )
    worker.run(worker.echo(100))
    assert worker.errors == []
    (stream,) = {int(one) for one in worker.gpu.streams.values()} & {
        seen["reallocate_output_async"][4]
    }
    given = dict(
        zip(
            callbacks(bindings)["reallocate_output_async"],
            seen["reallocate_output_async"],
            strict=True,
        )
    )
    assert given == {
        "tensor_name": "OUTPUT0",
        "memory": 0,
        "size": 400,
        "alignment": 256,
        "stream": stream,
    }
    name, shape = seen["notify_shape"]
    assert (name, type(shape), tuple(shape)) == ("OUTPUT0", fake_trt.Dims, (100,))
    worker.close()


# --- Plans that are none ---------------------------------------------------------------------


@pytest.fixture(scope="module")
def plans(rtx: Any, tmp_path_factory: pytest.TempPathFactory) -> dict[Any, bytes]:
    """A plan of the real builder, and one of the fake, of the same graph."""
    directory = engines.write_affine(tmp_path_factory.mktemp("plans") / "affine")
    model = directory / "1" / "model.onnx"
    logger = LastWords(rtx).logger
    builder = rtx.Builder(logger)
    network = builder.create_network(1 << int(rtx.NetworkDefinitionCreationFlag.STRONGLY_TYPED))
    parser = rtx.OnnxParser(network, logger)
    assert parser.parse(model.read_bytes())
    config, profile = builder.create_builder_config(), builder.create_optimization_profile()
    profile.set_shape("x", (1, 4), (2, 4), (8, 4))
    config.add_optimization_profile(profile)
    real = bytes(builder.build_serialized_network(network, config))
    return {rtx: real, fake_trt: fake_trt.plan(model, engines.AFFINE, magic=fake_trt.RTX_MAGIC)}


def refusal(module: Any, plan: bytes) -> str:
    device = fake_cudart.reset()
    try:
        with pytest.raises(ModelError) as caught:
            LoadedEngine(module, plan, Path("model.plan"), Cuda(fake_cudart, "model", 0))
    finally:
        device.close()
    return caught.value.message


def assertion(text: str) -> str:
    """The reason, without where in which source."""
    match = re.search(r"[Aa]ssertion (.*?) failed|\((Cannot .*?)\. ", text)
    assert match, text
    return match[1] or match[2]


BROKEN: dict[str, Callable[[bytes], bytes]] = {
    "one byte": lambda plan: plan[:1],
    "the mark": lambda plan: plan[:4],
    "all but the header's last byte": lambda plan: plan[:63],
    "the header": lambda plan: plan[:64],
    "one byte more": lambda plan: plan[:65],
    "half": lambda plan: plan[: len(plan) // 2],
    "all but the last byte": lambda plan: plan[:-1],
    "too much": lambda plan: plan + b"x",
    "another mark": lambda plan: b"text" + plan[4:],
    "zeros": lambda plan: bytes(len(plan)),
}


@pytest.mark.parametrize("kind", BROKEN)
def test_broken_plans_are_refused_by_the_fake_as_by_the_real_one(
    plans: dict[Any, bytes], kind: str
) -> None:
    texts = {module: refusal(module, BROKEN[kind](plan)) for module, plan in plans.items()}
    (real, fake) = texts.values()
    assert assertion(real) == assertion(fake)
    for module, text in texts.items():
        assert text.startswith("unable to create TensorRT engine from model.plan: ")
        assert "TensorRT logged no error" not in text
        size = len(BROKEN[kind](plans[module]))
        cut = f"the file of {size} bytes was cut short, or is no plan: copy it or build it anew"
        if kind in ("another mark", "zeros"):
            assert f"{module.__name__} {module.__version__}: check that the file is a plan" in text
        else:
            assert cut in text


def test_nothing_at_all_is_refused_by_both_in_words(plans: dict[Any, bytes]) -> None:
    assert {assertion(refusal(module, b"")) for module in plans} == {
        "Cannot deserialize with an empty memory buffer"
    }


def test_a_whole_plan_needs_a_driver_and_passes_the_fake(plans: dict[Any, bytes], rtx: Any) -> None:
    """The headers are alike as far as the fake has them."""
    for plan in plans.values():
        assert plan[:4] == b"vtrt"
        assert int.from_bytes(plan[16:24], "little") == len(plan)
    device = fake_cudart.reset()
    LoadedEngine(fake_trt, plans[fake_trt], Path("model.plan"), Cuda(fake_cudart, "model", 0))
    device.close()
