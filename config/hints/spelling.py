"""What people write instead of the schema's words, and the words they mean. Pure."""

from __future__ import annotations

from typing import Final

from naiad.config.faults import did_you_mean
from naiad.protocol.datatypes import CONFIG_NAME

_TYPE_SYNONYMS: Final = {
    "BYTES": "TYPE_STRING",
    "STR": "TYPE_STRING",
    "TEXT": "TYPE_STRING",
    "BOOLEAN": "TYPE_BOOL",
    "HALF": "TYPE_FP16",
    "FLOAT": "TYPE_FP32",
    "DOUBLE": "TYPE_FP64",
    "FLOAT16": "TYPE_FP16",
    "FLOAT32": "TYPE_FP32",
    "FLOAT64": "TYPE_FP64",
    "BFLOAT16": "TYPE_BF16",
    "F16": "TYPE_FP16",
    "F32": "TYPE_FP32",
    "F64": "TYPE_FP64",
    "BYTE": "TYPE_UINT8",
    "INT": "TYPE_INT32",
    "LONG": "TYPE_INT64",
}

_ENUM_SYNONYMS: Final = {
    "HIGH": "PRIORITY_MAX",
    "HIGHEST": "PRIORITY_MAX",
    "LOW": "PRIORITY_MIN",
    "LOWEST": "PRIORITY_MIN",
    "NORMAL": "PRIORITY_DEFAULT",
}

FIELD_SYNONYMS: Final = {
    "datatype": "data_type",
    "dtype": "data_type",
    "type": "data_type",
    "shape": "dims",
    "dim": "dims",
    "inputs": "input",
    "outputs": "output",
    "instance_groups": "instance_group",
    "instances": "instance_group",
    "parameter": "parameters",
    "batch_size": "max_batch_size",
    "max_batch": "max_batch_size",
    "model_name": "name",
    "model_filename": "default_model_filename",
    "filename": "default_model_filename",
    "dynamic_batch": "dynamic_batching",
    "max_queue_delay": "max_queue_delay_microseconds",
    "preferred_batch_sizes": "preferred_batch_size",
    "gpu": "gpus",
    "warmup": "model_warmup",
    "ensemble": "ensemble_scheduling",
    "steps": "step",
    "value_string": "string_value",
}
"""Wrong field names that are too far from the right one to be found by likeness."""

TRUE_WORDS: Final = frozenset({"yes", "on", "y", "true", "enable", "enabled"})
FALSE_WORDS: Final = frozenset({"no", "off", "n", "false", "disable", "disabled"})


def type_suggestion(word: str) -> str:
    """The TYPE_* meant by FP32, float32, TYPE_BYTES, torch.int64, ...; empty when unclear."""
    bare = word.strip("\"'").rpartition(".")[2].upper().removeprefix("TYPE_")
    if bare in CONFIG_NAME:
        return CONFIG_NAME[bare]
    if bare == "STRING":
        return "TYPE_STRING"
    return _TYPE_SYNONYMS.get(bare, "")


def enum_hint(word: str, enum_name: str, known: list[str]) -> str:
    """What to write for a word that is no value of an enum; never empty."""
    bare = word.strip("\"'")
    if bare in known:
        return f"enum values stand without quotes: {bare}"
    if enum_name == "DataType":
        suggestion = type_suggestion(bare)
        if suggestion:
            extra = " (BYTES is its name on the wire)" if suggestion == "TYPE_STRING" else ""
            return f"did you mean {suggestion}?{extra}"
    prefix = known[0].split("_")[0] + "_"
    if (prefix + bare).upper() in known:
        return f"did you mean {(prefix + bare).upper()}?"
    synonym = _ENUM_SYNONYMS.get(bare.upper().removeprefix(prefix), "")
    if synonym in known:
        return f"did you mean {synonym}?"
    return did_you_mean(bare, known).replace('"', "") or f"write one of {', '.join(known)}"
