"""A worker that does nothing: `python -m support.fake_worker --run-dir DIR --slot NAME ...`.

The file `worker` in the run directory may hold: `die` (exit 1 at once), `flood` (print without end
until SIGTERM), `hang` (ignore SIGTERM), `child` (start a process that would outlive it).
"""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

from support.fake_broker import read


def main() -> int:
    run_dir = Path(sys.argv[sys.argv.index("--run-dir") + 1])
    slot = sys.argv[sys.argv.index("--slot") + 1]
    behaviour = read(run_dir / "worker")
    if behaviour == "die":
        print(f"{slot} has no luck", file=sys.stderr)
        return 1
    stopping: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: stopping.append(number))
    print(f"{slot} up", flush=True)
    if behaviour == "child":
        child = subprocess.Popen(["sleep", "600"])
        (run_dir / "grandchild").write_text(str(child.pid))
    while behaviour == "flood" and not stopping:
        print("and another line", flush=True)
    while not stopping or behaviour == "hang":
        signal.sigtimedwait((), 0.05)
    return 0


if __name__ == "__main__":
    sys.exit(main())
