"""A full /dev/shm: inline with one warning, never SIGBUS, and room again afterwards.

Runs in a mount namespace of its own with a /dev/shm of 8 MiB, so that nobody else is bothered.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from support.shm_process import PYTHON_PATH

_NAMESPACE = ["unshare", "--mount", "--propagation", "private"]
_ROOTLESS = ["unshare", "--user", "--map-root-user", "--mount", "--propagation", "private"]
_SCRIPT = """
import itertools, json, logging, os
from naiad.shm.objects import free_bytes, total_bytes
from naiad.shm.pool import Pool
from naiad.shm.segment import Segment, SharedMemoryFull

MIB = 1 << 20
warnings = []
handler = logging.Handler()
handler.emit = lambda record: warnings.append(record.getMessage())
logging.getLogger("naiad.shm.pool").addHandler(handler)
out = {"total": total_bytes(), "free": free_bytes()}

with Pool("full", "client", itertools.count(1).__next__) as pool:
    held = []
    while (loan := pool.allocate(600_000)) is not None:
        loan.view[:] = b"x" * loan.size
        held.append(loan)
    out["loans"] = len(held)
    out["intact"] = all(bytes(loan.view) == b"x" * 600_000 for loan in held)
    out["refused"] = [pool.allocate(600_000) is None for _ in range(3)]
    out["free when full"] = free_bytes()
    held.pop().release()
    out["reused"] = pool.allocate(600_000) is not None
    del loan
    held.clear()
out["free after close"] = free_bytes()

filler = os.open("/dev/shm/filler", os.O_CREAT | os.O_RDWR)
os.posix_fallocate(filler, 0, free_bytes())
ids = itertools.count(1).__next__
with Pool("full", "client", ids) as patient, Pool("full", "client", ids, retry_ns=0) as eager:
    out["inline when filled"] = [pool.allocate(10) is None for pool in (patient, eager)]
    os.unlink("/dev/shm/filler")
    os.close(filler)
    out["inline afterwards"] = [pool.allocate(10) is None for pool in (patient, eager)]

try:
    Segment.create("/naiad.full.client.1.0123456789abcdef", 16 * MIB)
except SharedMemoryFull as full:
    out["error"] = full.message
out["left"] = os.listdir("/dev/shm")
out["warnings"] = warnings
print(json.dumps(out))
"""


def _namespace() -> list[str]:
    for command in (_NAMESPACE, _ROOTLESS):
        try:
            tried = subprocess.run(
                [*command, "mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", "/dev/shm"],
                capture_output=True,
                check=False,
            )
        except FileNotFoundError:
            break
        if tried.returncode == 0:
            return command
    pytest.skip("no private mount namespace: unshare is missing or not permitted here")


@pytest.fixture(scope="module")
def seen() -> dict[str, object]:
    """What the script saw in its own /dev/shm."""
    mount = 'mount -t tmpfs -o size=8m tmpfs /dev/shm && exec "$@"'
    done = subprocess.run(
        [*_namespace(), "sh", "-c", mount, "sh", sys.executable, "-c", _SCRIPT],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": PYTHON_PATH},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, object] = json.loads(done.stdout)
    return found


def test_what_fits_is_lent_and_intact(seen: dict[str, object]) -> None:
    assert seen["total"] == seen["free"] == 8 << 20
    assert seen["intact"]
    assert isinstance(seen["loans"], int)
    assert seen["loans"] >= 10


def test_the_rest_goes_inline_with_one_warning(seen: dict[str, object]) -> None:
    assert seen["refused"] == [True, True, True]
    warnings = seen["warnings"]
    assert isinstance(warnings, list)
    assert len(warnings) == 3, "one for each of the three pools"
    assert all(warning.startswith("no room in shared memory") for warning in warnings)


def test_released_bytes_are_lent_again_when_full(seen: dict[str, object]) -> None:
    assert seen["reused"]


def test_a_file_system_filled_by_others_is_looked_at_again_later(seen: dict[str, object]) -> None:
    assert seen["inline when filled"] == [True, True]
    assert seen["inline afterwards"] == [True, False], "the first waits a second before it looks"


def test_a_segment_that_does_not_fit_leaves_nothing(seen: dict[str, object]) -> None:
    error = seen["error"]
    assert isinstance(error, str)
    assert "no shared memory for 16777216 bytes" in error
    assert "--shm-size" in error
    assert seen["left"] == []
    assert seen["free after close"] == 8 << 20
