"""A config that a backend, or a model's own code, completed: as if the operator had written it.

What may be completed is what Triton takes: the batch size, inputs, outputs, a scheduler where none
is chosen, the transaction policy. The rest has been acted upon by then and stays as it was. Loads
protobuf, and so is imported only where something was completed. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from naiad.config.model import Json, ModelConfig
from naiad.config.normalise import normalise_scheduling
from naiad.config.proto_json import json_to_message, message_to_json
from naiad.config.refusals import request_refusals
from naiad.config.validate import SCHEDULERS, validate
from naiad.protocol.errors import RequestError

ALWAYS_TAKEN: Final = ("max_batch_size", "input", "output")
TRANSACTIONS: Final = "model_transaction_policy"


def completed(given: ModelConfig, edited: Mapping[str, Any]) -> ModelConfig:
    """`given` with what was added in `edited`, in the form of a config query, normalised.

    Raises RequestError for a field that is unknown or has a value of a wrong type.
    """
    raw = given.raw
    taken: Json = {key: edited.get(key) for key in ALWAYS_TAKEN}
    if not any(scheduler in raw for scheduler in SCHEDULERS):
        taken |= {key: edited[key] for key in SCHEDULERS if key in edited}
    if TRANSACTIONS in edited:
        taken[TRANSACTIONS] = edited[TRANSACTIONS]
    if all(raw.get(key) == value for key, value in taken.items()):
        return given
    message = json_to_message(taken, prefix="the completed configuration: ")
    shown, faults = message_to_json(message)
    if faults:
        raise RequestError("; ".join(str(fault) for fault in faults))
    whole = {**raw, **{key: shown[key] for key in taken if key in shown}}
    return ModelConfig.from_json(normalise_scheduling(whole))


def completion_faults(config: ModelConfig) -> list[str]:
    """Why a completed config cannot be served, as for one that was written like this."""
    return [*map(str, validate(config, is_complete=True)), *request_refusals(config)]
