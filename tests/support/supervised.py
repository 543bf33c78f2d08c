"""Runs the real supervisor over the fake broker and workers: `python -m support.supervised DIR`."""

from __future__ import annotations

import sys

from naiad.cli.exit_codes import ExitCode
from naiad.cli.log import LogWriter
from naiad.cli.plan import Plan
from naiad.cli.startup import Status
from naiad.cli.supervisor import Supervisor


def main() -> ExitCode:
    run_dir, drain_seconds, *log_file = sys.argv[1:]
    log = LogWriter(log_file[0] if log_file else None)
    log.start()

    def settled(status: Status) -> None:
        log.show(f"settled with {len(status['models'])} models")

    plan = Plan(
        run_dir=run_dir,
        broker_arguments=["--run-dir", run_dir],
        drain_seconds=float(drain_seconds),
        broker_module="support.fake_broker",
        worker_module="support.fake_worker",
    )
    supervisor = Supervisor(plan, log, settled)
    code = supervisor.run()
    log.close()
    return code


if __name__ == "__main__":
    sys.exit(main())
