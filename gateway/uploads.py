"""Files that come with a load: written where the broker takes them over.

They lie in the server's run directory, which is this user's alone. The broker owns a folder from
the moment the load comes, and removes it; what a dead gateway left half-way it sweeps away.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from typing import Final

from naiad.client.requests import Buffer
from naiad.config.names import inner_path_fault
from naiad.gateway.limits import Limits
from naiad.protocol.endpoints import Endpoints
from naiad.protocol.errors import InternalError, RequestError

PREFIX: Final = "file:"
UPLOAD_BYTES: Final = 16
"""Of the random name of one load's folder."""


def checked_files(files: Mapping[str, Buffer], limits: Limits) -> None:
    """Raises RequestError for too many or too large ones, and for paths that lead elsewhere.

    `files` by their parameters' names: "file:1/model.onnx".
    """
    if len(files) > limits.load_files_max:
        raise RequestError(
            f"{len(files)} files in one load, expected at most {limits.load_files_max}"
        )
    size_bytes = sum(map(len, files.values()))
    if size_bytes > limits.load_files_bytes_max:
        raise RequestError(
            f"the files of this load have {size_bytes} bytes, expected at most"
            f" {limits.load_files_bytes_max}; put the model into the model repository"
        )
    for name in files:
        path = name.removeprefix(PREFIX)
        fault = inner_path_fault(path)
        if fault is None and (path.endswith("/") or len(path) > limits.load_path_chars_max):
            fault = f"is no file's, or longer than {limits.load_path_chars_max} characters"
        if fault is not None:
            raise RequestError(f"load parameter '{name:.80}': the path {fault}")


def written(run_dir: str, model: str, files: Mapping[str, Buffer]) -> str:
    """Write them below a fresh folder, in one of the model's name; the folder's name.

    `model` and `files` have been checked. Blocks. Raises RequestError, or InternalError when there
    is no room.
    """
    upload = os.urandom(UPLOAD_BYTES).hex()
    uploads = Endpoints(run_dir).uploads_dir
    try:
        os.makedirs(uploads, mode=0o700, exist_ok=True)
        os.mkdir(f"{uploads}/{upload}", 0o700)
        for name, content in files.items():
            path = f"{uploads}/{upload}/{model}/{name.removeprefix(PREFIX)}"
            os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
            with open(path, "xb") as file:
                file.write(content)
    except (FileExistsError, IsADirectoryError, NotADirectoryError) as fault:
        shutil.rmtree(f"{uploads}/{upload}", ignore_errors=True)
        raise RequestError(
            "load parameters 'file:...': two of the paths are the same, or one is in another"
        ) from fault
    except OSError as fault:
        shutil.rmtree(f"{uploads}/{upload}", ignore_errors=True)
        raise InternalError(f"the files of the load cannot be kept: {fault.strerror}") from fault
    return upload
