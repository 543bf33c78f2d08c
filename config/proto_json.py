"""ModelConfig messages to the JSON form of a config query, and back.

The form is Triton's: snake_case names, every scalar even at its default, int64 as numbers (except
the dims of CUDA graph specs, which stay strings as they do there), absent sub-messages left out.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, MutableSequence
from typing import Any, Final

from google.protobuf import json_format
from google.protobuf.message import Message

from naiad.config.faults import Fault, did_you_mean
from naiad.config.hints.spelling import enum_hint
from naiad.config.model import Json
from naiad.config.proto.model_config_pb2 import ModelConfig
from naiad.protocol.errors import RequestError

OVERRIDE_PREFIX: Final = "Invalid config override: "
_Descriptor = Any
_Field = Any
_Enum = Any
"""Descriptors have one class per protobuf implementation, and no type in common."""

_STRING_DIMS: Final = "inference.ModelOptimizationPolicy.Cuda.GraphSpec.Shape.dim"
_IN_FIELD: Final = re.compile(r"Failed to parse (\w+) field: ")
_WRONG_ENUM: Final = re.compile(r"Invalid enum value (?P<value>\S+) for enum type (?P<type>[\w.]+)")
_NO_FIELD: Final = re.compile(r'has no field named "(?P<name>[^"]*)"(?: at "(?P<at>[^"]*)")?')


def message_to_json(message: Message) -> tuple[Json, list[Fault]]:
    """The JSON form, and a fault for each enum number that stands for nothing."""
    faults: list[Fault] = []
    return _to_json(message, "", faults), faults


def json_to_message(
    config: Mapping[str, Any],
    kind: Callable[[], Message] = ModelConfig,
    *,
    prefix: str = OVERRIDE_PREFIX,
) -> Message:
    """The message of a JSON config; unknown fields are rejected, as are values of a wrong type.
    `kind`: of a message that is a part of one. `prefix` tells in errors which config it is.

    As protobuf's JSON: camelCase names and int64 as strings are accepted too, and enum names in
    any case as Triton's parser does. Raises RequestError.
    """
    message = kind()
    try:
        json_format.ParseDict(_upper_enums(config, message.DESCRIPTOR), message)
    except json_format.ParseError as error:
        raise RequestError(prefix + _explained(str(error), message.DESCRIPTOR)) from error
    except (RecursionError, TypeError, ValueError, AttributeError) as error:
        raise RequestError(f"{prefix}{error}") from error
    return message


def override_to_message(text: str) -> Message:
    """The message of a load request's `config` parameter: a JSON object as text."""
    try:
        config = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise RequestError(f"{OVERRIDE_PREFIX}expected JSON: {error}") from error
    if not isinstance(config, dict):
        raise RequestError(f"{OVERRIDE_PREFIX}expected a JSON object, got {text[:40]!r}")
    return json_to_message(config)


def _to_json(message: Message, path: str, faults: list[Fault]) -> Json:
    result: Json = {}
    field: _Field
    for field in message.DESCRIPTOR.fields:
        where = f"{path}.{field.name}" if path else field.name
        value = getattr(message, field.name)
        if _is_map(field):
            value_field = field.message_type.fields_by_name["value"]
            result[field.name] = {
                str(key): _value(value[key], value_field, f'{where}["{key}"]', faults)
                for key in value
            }
        elif isinstance(value, MutableSequence):
            result[field.name] = [
                _value(item, field, f"{where}[{index}]", faults) for index, item in enumerate(value)
            ]
        elif not field.has_presence or message.HasField(field.name):
            result[field.name] = _value(value, field, where, faults)
    return result


def _value(value: Any, field: _Field, where: str, faults: list[Fault]) -> Any:
    if field.message_type is not None:
        return _to_json(value, where, faults)
    if field.enum_type is not None:
        return _enum_name(value, field.enum_type, where, faults)
    return str(value) if field.full_name == _STRING_DIMS else value


def _enum_name(number: int, enum: _Enum, where: str, faults: list[Fault]) -> str:
    known = enum.values_by_number.get(number)
    if known is None:
        names = ", ".join(value.name for value in enum.values if value.name != "TYPE_INVALID")
        faults.append(Fault(where, f"{number} stands for no {enum.name}", f"write one of {names}"))
        known = enum.values[0]
    return str(known.name)


def _is_map(field: _Field) -> bool:
    return field.message_type is not None and field.message_type.GetOptions().map_entry


def _upper_enums(value: Any, descriptor: _Descriptor) -> Any:
    """A copy of a JSON object with enum names in upper case, where the schema has an enum."""
    if not isinstance(value, Mapping):
        return value
    result = {}
    for key, item in value.items():
        field = descriptor.fields_by_name.get(key) or descriptor.fields_by_camelcase_name.get(key)
        if field is None:
            result[key] = item
        elif _is_map(field):
            inner = field.message_type.fields_by_name["value"].message_type
            is_nested = inner is not None and isinstance(item, Mapping)
            result[key] = (
                {name: _upper_enums(one, inner) for name, one in item.items()}
                if is_nested
                else item
            )
        elif isinstance(item, list):
            result[key] = [_upper_enum(one, field) for one in item]
        else:
            result[key] = _upper_enum(item, field)
    return result


def _upper_enum(value: Any, field: _Field) -> Any:
    if field.enum_type is not None and isinstance(value, str):
        return value.upper()
    return value if field.message_type is None else _upper_enums(value, field.message_type)


def _explained(message: str, root: _Descriptor) -> str:
    """protobuf's text, with the field's path first and the closest known name last."""
    first_line = message.splitlines()[0]
    fields = _IN_FIELD.findall(first_line)
    reason = _IN_FIELD.sub("", first_line).rstrip(".")
    unknown = _NO_FIELD.search(reason)
    if unknown is not None:
        place = (unknown["at"] or "").removeprefix("ModelConfig").removeprefix(".")
        descriptor = _message_at(root, place)
        hint = did_you_mean(unknown["name"], descriptor.fields_by_name) if descriptor else ""
        where = f' in "{place}"' if place else ""
        return f'no field named "{unknown["name"]}"{where}' + (f"; {hint}" if hint else "")
    wrong_enum = _WRONG_ENUM.search(reason)
    if wrong_enum is not None:
        enum = root.file.pool.FindEnumTypeByName(wrong_enum["type"])
        hint = enum_hint(wrong_enum["value"], enum.name, [value.name for value in enum.values])
        return f"{'.'.join(fields)}: no {enum.name} {wrong_enum['value']}; {hint}"
    return f"{'.'.join(fields)}: {reason}" if fields else reason


def _message_at(root: _Descriptor, place: str) -> _Descriptor | None:
    """The message type at a path such as "input[0].reshape", or None."""
    descriptor: _Descriptor | None = root
    for part in filter(None, re.sub(r"\[[^\]]*\]", "", place).split(".")):
        field = descriptor.fields_by_name.get(part) if descriptor else None
        descriptor = field.message_type if field else None
    return descriptor
