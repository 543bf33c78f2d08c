"""A model's configuration as the broker and the workers read it: frozen values, no protobuf.

The JSON form (snake_case as a config query shows it, TYPE_* and KIND_* names, int64 as numbers) is
the truth; the dataclasses are a typed view of the parts that decide something. What they leave out
(warm-up, sequences, ensembles, ...) stays in `raw`, so a config query shows everything. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any, Final

from naiad.config.parameters import NaiadParameters, read_parameters
from naiad.protocol.datatypes import FROM_CONFIG
from naiad.protocol.errors import RequestError

Json = dict[str, Any]

LATEST: Final = "latest"
ALL: Final = "all"
SPECIFIC: Final = "specific"


@dataclass(frozen=True, slots=True)
class TensorConfig:
    """An input or an output.

    `data_type` is the wire name (FP32, BYTES), empty when the model is to fill it in. `dims` leave
    out the batch dimension; -1 is any size. `reshape` is None unless the config has one; an empty
    one is a scalar. The last fields exist on one side only: `format`, `allow_ragged_batch` and
    `optional` on inputs, `label_filename` on outputs.
    """

    name: str
    data_type: str
    dims: tuple[int, ...]
    reshape: tuple[int, ...] | None = None
    is_shape_tensor: bool = False
    is_non_linear_format_io: bool = False
    format: str = "FORMAT_NONE"
    allow_ragged_batch: bool = False
    optional: bool = False
    label_filename: str = ""

    @property
    def model_dims(self) -> tuple[int, ...]:
        """The dimensions the model sees: reshape where given, else dims."""
        return self.dims if self.reshape is None else self.reshape

    @classmethod
    def from_json(cls, json: Mapping[str, Any]) -> TensorConfig:
        reshape = _get(json, "reshape", dict, None)
        return cls(
            name=_get(json, "name", str, ""),
            data_type=FROM_CONFIG.get(_get(json, "data_type", str, ""), ""),
            dims=_integers(json, "dims"),
            reshape=None if reshape is None else _integers(reshape, "shape"),
            is_shape_tensor=_get(json, "is_shape_tensor", bool, False),
            is_non_linear_format_io=_get(json, "is_non_linear_format_io", bool, False),
            format=_get(json, "format", str, "FORMAT_NONE"),
            allow_ragged_batch=_get(json, "allow_ragged_batch", bool, False),
            optional=_get(json, "optional", bool, False),
            label_filename=_get(json, "label_filename", str, ""),
        )


@dataclass(frozen=True, slots=True)
class QueuePolicy:
    """`timeout_action` is REJECT or DELAY. Zero: no timeout, no limit."""

    timeout_action: str = "REJECT"
    default_timeout_microseconds: int = 0
    allow_timeout_override: bool = False
    max_queue_size: int = 0

    @classmethod
    def from_json(cls, json: Mapping[str, Any]) -> QueuePolicy:
        return cls(
            timeout_action=_get(json, "timeout_action", str, "REJECT"),
            default_timeout_microseconds=_get(json, "default_timeout_microseconds", int, 0),
            allow_timeout_override=_get(json, "allow_timeout_override", bool, False),
            max_queue_size=_get(json, "max_queue_size", int, 0),
        )


@dataclass(frozen=True, slots=True)
class DynamicBatching:
    """`priority_levels` may be as large as 2**64 - 1: never make one queue per level up front."""

    preferred_batch_size: tuple[int, ...] = ()
    max_queue_delay_microseconds: int = 0
    preserve_ordering: bool = False
    priority_levels: int = 0
    default_priority_level: int = 0
    default_queue_policy: QueuePolicy = QueuePolicy()
    priority_queue_policy: Mapping[int, QueuePolicy] = field(default_factory=dict)

    def policy_of(self, level: int) -> QueuePolicy:
        """The queue policy of a priority level: its own, else the default one."""
        return self.priority_queue_policy.get(level, self.default_queue_policy)

    @classmethod
    def from_json(cls, json: Mapping[str, Any]) -> DynamicBatching:
        policies = _get(json, "priority_queue_policy", dict, {})
        default = _get(json, "default_queue_policy", dict, {})
        return cls(
            preferred_batch_size=_integers(json, "preferred_batch_size"),
            max_queue_delay_microseconds=_get(json, "max_queue_delay_microseconds", int, 0),
            preserve_ordering=_get(json, "preserve_ordering", bool, False),
            priority_levels=_get(json, "priority_levels", int, 0),
            default_priority_level=_get(json, "default_priority_level", int, 0),
            default_queue_policy=QueuePolicy.from_json(default),
            priority_queue_policy={
                int(level): QueuePolicy.from_json(policy) for level, policy in policies.items()
            },
        )


@dataclass(frozen=True, slots=True)
class InstanceGroup:
    """`count` instances, with KIND_GPU on each of `gpus`. `kind` is KIND_CPU, KIND_GPU, ..."""

    name: str = ""
    kind: str = "KIND_AUTO"
    count: int = 0
    gpus: tuple[int, ...] = ()
    profile: tuple[str, ...] = ()
    passive: bool = False
    host_policy: str = ""

    @classmethod
    def from_json(cls, json: Mapping[str, Any]) -> InstanceGroup:
        return cls(
            name=_get(json, "name", str, ""),
            kind=_get(json, "kind", str, "KIND_AUTO"),
            count=_get(json, "count", int, 0),
            gpus=_integers(json, "gpus"),
            profile=tuple(str(item) for item in _get(json, "profile", list, [])),
            passive=_get(json, "passive", bool, False),
            host_policy=_get(json, "host_policy", str, ""),
        )


@dataclass(frozen=True, slots=True)
class VersionPolicy:
    """`kind` is LATEST (the num_versions greatest), ALL or SPECIFIC (those of versions)."""

    kind: str = LATEST
    num_versions: int = 1
    versions: tuple[int, ...] = ()

    @classmethod
    def from_json(cls, json: Mapping[str, Any]) -> VersionPolicy:
        if SPECIFIC in json:
            specific = _get(json, SPECIFIC, dict, {})
            return cls(SPECIFIC, 0, _integers(specific, "versions"))
        if ALL in json:
            return cls(ALL, 0)
        if LATEST in json:
            return cls(LATEST, _get(_get(json, LATEST, dict, {}), "num_versions", int, 0))
        return cls()


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """One model. Made by from_json only; a changed copy is made by `with_fields`."""

    name: str
    platform: str = ""
    backend: str = ""
    max_batch_size: int = 0
    inputs: tuple[TensorConfig, ...] = ()
    outputs: tuple[TensorConfig, ...] = ()
    version_policy: VersionPolicy = VersionPolicy()
    dynamic_batching: DynamicBatching | None = None
    instance_groups: tuple[InstanceGroup, ...] = ()
    parameters: Mapping[str, str] = field(default_factory=dict)
    naiad: NaiadParameters = field(default_factory=NaiadParameters)
    default_model_filename: str = ""
    cc_model_filenames: Mapping[str, str] = field(default_factory=dict)
    decoupled: bool = False
    raw: Mapping[str, Any] = field(default_factory=dict, compare=False, repr=False)
    """The whole JSON; read it, never change it."""

    @classmethod
    def from_json(cls, json: Mapping[str, Any]) -> ModelConfig:
        """The typed view of a JSON config; missing fields have their defaults.

        Raises RequestError naming the field when a value has the wrong type. Whether the values
        make sense is config.validate's question, and `naiad.*` parameters with a fault have their
        default here.
        """
        batching = _get(json, "dynamic_batching", dict, None)
        parameters = {
            key: _get(value, "string_value", str, "")
            for key, value in _get(json, "parameters", dict, {}).items()
        }
        transaction = _get(json, "model_transaction_policy", dict, {})
        return cls(
            name=_get(json, "name", str, ""),
            platform=_get(json, "platform", str, ""),
            backend=_get(json, "backend", str, ""),
            max_batch_size=_get(json, "max_batch_size", int, 0),
            inputs=tuple(TensorConfig.from_json(item) for item in messages(json, "input")),
            outputs=tuple(TensorConfig.from_json(item) for item in messages(json, "output")),
            version_policy=VersionPolicy.from_json(_get(json, "version_policy", dict, {})),
            dynamic_batching=None if batching is None else DynamicBatching.from_json(batching),
            instance_groups=tuple(
                InstanceGroup.from_json(item) for item in messages(json, "instance_group")
            ),
            parameters=parameters,
            naiad=read_parameters(parameters)[0],
            default_model_filename=_get(json, "default_model_filename", str, ""),
            cc_model_filenames=dict(_get(json, "cc_model_filenames", dict, {})),
            decoupled=_get(transaction, "decoupled", bool, False),
            raw=dict(json),
        )

    def to_json(self) -> Json:
        """The whole config as JSON, a copy."""
        return deepcopy(dict(self.raw))

    def with_fields(self, **changes: Any) -> ModelConfig:
        """A copy with top-level JSON fields replaced (input, output, max_batch_size, ...)."""
        return ModelConfig.from_json({**self.raw, **changes})

    @property
    def batches(self) -> bool:
        """Whether requests are put together; otherwise the model sees one at a time."""
        return self.max_batch_size > 0 and self.dynamic_batching is not None

    def full_shape(self, tensor: TensorConfig) -> tuple[int, ...]:
        """dims with a leading -1 when the model batches."""
        return (-1, *tensor.dims) if self.max_batch_size > 0 else tensor.dims

    def sent_shape(self, tensor: TensorConfig) -> tuple[int, ...]:
        """The shape that clients send. Of a model that batches, the batch is the first dimension,
        and of a shape tensor the first of its values."""
        if not (tensor.is_shape_tensor and self.max_batch_size > 0):
            return self.full_shape(tensor)
        return tuple(count if count < 0 else count + 1 for count in tensor.dims)


def messages(json: Mapping[str, Any], key: str) -> list[Mapping[str, Any]]:
    """The list of JSON objects at `key`, empty when absent."""
    found: list[Mapping[str, Any]] = _get(json, key, list, [])
    for index, item in enumerate(found):
        if not isinstance(item, dict):
            raise RequestError(f"{key}[{index}]: expected an object, got {type(item).__name__}")
    return found


def _get(json: Mapping[str, Any], key: str, kind: type, default: object) -> Any:
    """json[key] when it is of this JSON type (bool is no int), the default when it is absent."""
    value = json.get(key)
    if value is None:
        return default
    if type(value) is not kind:
        raise RequestError(f"{key}: expected {kind.__name__}, got {type(value).__name__} {value!r}")
    return value


def _integers(json: Mapping[str, Any], key: str) -> tuple[int, ...]:
    values = _get(json, key, list, [])
    if any(type(value) is not int for value in values):
        raise RequestError(f"{key}: expected whole numbers, got {values!r}")
    return tuple(values)
