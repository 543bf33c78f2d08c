"""Which GPUs there are, asked of the driver by a process of its own, which may hang and is ended.

`python -m naiad.config.gpu_listing` is that process: it prints the GPUs as JSON. Whoever starts a
server starts it once, and only where a driver shows itself: without one there are no GPUs, and
nothing is said.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from typing import Final, NamedTuple

from naiad.config.gpus import (
    ALL,
    AUTO,
    NONE,
    VISIBLE_VARIABLE,
    Gpu,
    GpuFault,
    chosen_uuids,
    described,
    device_of,
    visible,
)
from naiad.config.nvml import Nvml, NvmlFault

LISTING_SECONDS_MAX: Final = 20.0
"""A driver that nobody has used since the start of the machine takes a second or two per GPU."""
KILLED_SECONDS_MAX: Final = 1.0
ANSWER_BYTES_MAX: Final = 64 * 1024
DRIVER_FILES: Final = ("/dev/nvidiactl", "/dev/dxg", "/dev/nvmap")
"""Of the driver, of its WSL edition, and of Jetson boards."""


class FoundGpus(NamedTuple):
    """`note` is for the operator; empty where there is nothing to say."""

    uuids: tuple[str, ...]
    note: str

    @property
    def devices(self) -> tuple[str, ...]:
        """Those of the server's slots."""
        return ("cpu", *map(device_of, self.uuids))

    @property
    def choice(self) -> str:
        """What chooses the same without asking anybody."""
        return ",".join(self.uuids) or NONE


def found_gpus(choice: str, environment: Mapping[str, str]) -> FoundGpus:
    """The GPUs for a server by its --gpus. Raises GpuFault where that says there must be some.

    Named UUIDs are believed, `auto` and `all` ask the driver; `auto` is content with none.
    """
    uuids = chosen_uuids(choice)
    if uuids is not None:
        return FoundGpus(uuids, "")
    shown = environment.get(VISIBLE_VARIABLE)
    if choice == AUTO and (shown == "" or not any(map(os.path.exists, DRIVER_FILES))):
        return FoundGpus((), "")
    try:
        gpus = visible(asked_gpus(), shown)
    except NvmlFault as fault:
        text = f"GPUs cannot be listed ({fault})"
        if choice == ALL:
            raise GpuFault(f"--gpus={ALL}: {text}; name them: --gpus=UUID,...") from fault
        return FoundGpus((), f"{text} and are not used; name them with --gpus=UUID,...")
    if not gpus and choice == ALL:
        limited = "" if shown is None else f" of {VISIBLE_VARIABLE}={shown!r}"
        raise GpuFault(f"--gpus={ALL}: the driver shows no GPU{limited}; look at `nvidia-smi -L`")
    note = f"GPUs: {described(gpus)}" if gpus else ""
    return FoundGpus(tuple(gpu.uuid for gpu in gpus), note)


def asked_gpus(seconds_max: float = LISTING_SECONDS_MAX) -> list[Gpu]:
    """What the driver lists. Raises NvmlFault, also when it takes longer than that."""
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "naiad.config.gpu_listing"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    try:
        answer, complaint = process.communicate(timeout=seconds_max)
    except subprocess.TimeoutExpired as expired:
        process.kill()
        for stream in (process.stdout, process.stderr):
            if stream is not None:
                stream.close()
        with suppress(subprocess.TimeoutExpired):  # in the driver it ends when the driver lets it
            process.wait(KILLED_SECONDS_MAX)
        raise NvmlFault(f"NVML did not answer within {seconds_max:g} s") from expired
    if process.returncode != 0:
        last = complaint.decode(errors="replace").strip().splitlines()[-1:]
        raise NvmlFault("".join(last) or f"the listing ended with exit code {process.returncode}")
    try:
        gpus = [Gpu(*row) for row in json.loads(answer[:ANSWER_BYTES_MAX])]
        if gpus:
            chosen_uuids(",".join(gpu.uuid for gpu in gpus))
    except (ValueError, TypeError, GpuFault) as fault:
        raise NvmlFault(f"the listing is none: {fault}") from fault
    return gpus


def main() -> int:
    """List them on stdout; what is wrong is one line on stderr."""
    try:
        with Nvml() as nvml:
            print(json.dumps(nvml.gpus()))
    except NvmlFault as fault:
        print(fault, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
