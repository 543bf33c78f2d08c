"""Label files: what the classes of an output are called, one name a line. Reads the disk."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Final

from naiad.config.faults import Fault
from naiad.config.model import ModelConfig
from naiad.config.names import inner_path_fault, printable

LABELS_BYTES_MAX: Final = 2**20
"""Of one file. ImageNet's 21,000 classes take half of it."""

Labels = Mapping[str, tuple[str, ...]]
"""By the output's name; an empty label is none."""


def read_labels(config: ModelConfig, directory: str) -> tuple[Labels, list[Fault]]:
    """The labels of every output that names a file in the model's directory, and what is wrong."""
    found: dict[str, tuple[str, ...]] = {}
    faults = []
    for index, output in enumerate(config.outputs):
        filename = output.label_filename
        if not filename or inner_path_fault(filename):
            continue
        where = f"output[{index}].label_filename"
        path = os.path.join(directory, filename)
        if not os.path.isfile(path):
            message = f'"{filename}" is not a file in {printable(directory)}'
            remedy = "add the file (one label per line), or remove label_filename"
            faults.append(Fault(where, message, remedy))
            continue
        with open(path, "rb") as file:
            content = file.read(LABELS_BYTES_MAX + 1)
        if len(content) > LABELS_BYTES_MAX:
            message = f'"{filename}" has more than {LABELS_BYTES_MAX} bytes'
            faults.append(Fault(where, message, "shorten the labels, or remove label_filename"))
            continue
        lines = content.decode(errors="replace").split("\n")
        found[output.name] = tuple(line.removesuffix("\r") for line in lines)
    return found, faults
