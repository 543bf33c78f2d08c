"""pb_utils.ModelConfig: what auto_complete_config edits, and look-ups in a config's JSON.

What the operator wrote wins: adding a tensor again completes it, to contradict it is a ValueError.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

Json = dict[str, Any]

_REQUIRED: Final = ("name", "data_type", "dims")
_INPUT_KEYS: Final = (*_REQUIRED, "optional")
_SCHEDULERS: Final = ("sequence_batching", "ensemble_scheduling")


class ModelConfig:
    """A config being completed by a model's own code."""

    def __init__(self, model_config: Json) -> None:
        self._config = model_config

    def as_dict(self) -> Json:
        """The config's JSON; changes to it are changes to the config."""
        return self._config

    def set_max_batch_size(self, max_batch_size: int) -> None:
        """Raises ValueError when the operator configured a larger one."""
        configured = self._config.get("max_batch_size", 0)
        if configured > max_batch_size:
            raise ValueError(
                f"configuration specified max_batch_size {configured}, but in auto-complete-config "
                f"function for model '{self._name()}' specified max_batch_size {max_batch_size}"
            )
        self._config["max_batch_size"] = max_batch_size

    def set_dynamic_batching(self) -> None:
        """Use the dynamic batcher. Raises ValueError when another scheduler is configured."""
        for scheduler in _SCHEDULERS:
            if scheduler in self._config:
                raise ValueError(
                    f"configuration specified scheduling_choice as '{scheduler}', but in "
                    f"auto-complete-config function for model '{self._name()}' tries to set "
                    "scheduling_choice as 'dynamic_batching'"
                )
        self._config.setdefault("dynamic_batching", {})

    def add_input(self, input: Mapping[str, Any]) -> None:
        """Add or complete an input: name, data_type ("TYPE_FP32"), dims and optional."""
        self._add("input", input, _INPUT_KEYS)

    def add_output(self, output: Mapping[str, Any]) -> None:
        """Add or complete an output: name, data_type ("TYPE_FP32") and dims."""
        self._add("output", output, _REQUIRED)

    def set_model_transaction_policy(self, transaction_policy_dict: Mapping[str, Any]) -> None:
        """{"decoupled": bool}. Raises ValueError when the config says the opposite."""
        unknown = [key for key in transaction_policy_dict if key != "decoupled"]
        if unknown:
            raise ValueError(
                f"model transaction property in auto-complete-config function for model "
                f"'{self._name()}' contains property other than 'decoupled': {unknown}"
            )
        if "decoupled" not in transaction_policy_dict:
            return
        decoupled = transaction_policy_dict["decoupled"]
        policy = self._config.setdefault("model_transaction_policy", {"decoupled": decoupled})
        if policy.get("decoupled", False) != decoupled:
            raise ValueError(
                f"trying to change decoupled property in auto-complete-config function for model "
                f"'{self._name()}', which is already set to '{policy.get('decoupled', False)}'"
            )

    def _name(self) -> str:
        return str(self._config.get("name", ""))

    def _add(self, side: str, given: Mapping[str, Any], keys: Sequence[str]) -> None:
        where = f"in auto-complete-config function for model '{self._name()}'"
        unknown = [key for key in given if key not in keys]
        if unknown:
            raise ValueError(
                f"{side} {where} contains property other than {', '.join(map(repr, keys))}: "
                f"{unknown}"
            )
        missing = [key for key in _REQUIRED if key not in given]
        if missing:
            raise ValueError(f"{side} {where} is missing '{missing[0]}' property: {dict(given)}")
        entries: list[Json] = self._config.setdefault(side, [])
        for entry in entries:
            if entry.get("name") == given["name"]:
                _merge(side, entry, given, where)
                return
        entries.append({**given, "dims": list(given["dims"])})


def _merge(side: str, entry: Json, given: Mapping[str, Any], where: str) -> None:
    wanted = {**given, "dims": list(given["dims"])}
    for key, value in wanted.items():
        configured = entry.get(key)
        if configured in (None, [], "TYPE_INVALID"):
            entry[key] = value
        elif configured != value:
            raise ValueError(
                f"unable to load model, configuration expects {key} {configured} for {side} "
                f"'{given['name']}', but {where} it is {value}"
            )


def get_input_config_by_name(model_config: Mapping[str, Any], name: str) -> Any:
    """The properties of an input in a config's JSON, or None."""
    return _entry_by_name(model_config.get("input", ()), name)


def get_output_config_by_name(model_config: Mapping[str, Any], name: str) -> Any:
    """The properties of an output in a config's JSON, or None."""
    return _entry_by_name(model_config.get("output", ()), name)


def using_decoupled_model_transaction_policy(model_config: Mapping[str, Any]) -> bool:
    """Whether the model answers a request with any number of responses."""
    return bool((model_config.get("model_transaction_policy") or {}).get("decoupled", False))


def _entry_by_name(entries: Sequence[Mapping[str, Any]], name: str) -> Mapping[str, Any] | None:
    return next((entry for entry in entries if entry.get("name") == name), None)
