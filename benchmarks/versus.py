"""naiad beside Triton and mosec on the same machine, workload by workload, round by round.

    PYTHONPATH=src python -m benchmarks.versus native-64 large --rounds 7 \\
        --triton-command "tritonserver --model-repository={repository} ..."

Every round runs each load once, one after the other, naiad first in even rounds and last in odd
ones; the figure of a round is naiad against the best of the peer's loads in that round, and a bar
is reached when the median of all rounds reaches it. Each load is a closed loop in a process of its
own and shares the machine with the server it loads, as on a small host. The servers run side by
side the whole time; what each uses while idle is printed first, so that it can be seen not to
matter. naiad serves the models of model_repository, the peer those of benchmarks/peers/repository,
which compute the same.

The peer is started by --triton-command ({repository} is replaced), or already runs with these
models at --triton-http and --triton-grpc.
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

from benchmarks import front_door, workloads
from benchmarks.closed_loop import Measured
from benchmarks.peer_servers import Triton
from benchmarks.processes import cpu_of, end_on_sigterm, family_of, wait_for_quiet
from benchmarks.report import Row, Verdict, append_rows, rounds_parser, spread
from benchmarks.workloads import Bar, Load

from naiad.testing.server import Server, serve

ARGUMENTS: Final = ("--spares", "0", "--http-port", "0", "--grpc-port", "0")
IDLE_SECONDS: Final = 2.0
QUIET_WAIT_SECONDS_MAX: Final = 20.0
WORKLOADS: Final = {**workloads.WORKLOADS, **front_door.WORKLOADS}


def main() -> int:
    options = _options()
    end_on_sigterm()
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="naiad-versus-")))
        context = workloads.context_of(options, folder, stack)
        triton = stack.enter_context(Triton(options, context.peer_repository))
        naiad = stack.enter_context(serve(context.repository, arguments=ARGUMENTS))
        context = context._replace(
            run_dir=str(naiad.run_dir),
            http=naiad.http_url.removeprefix("http://"),
            grpc=naiad.grpc_target,
        )
        _print_idle(naiad, triton)
        failed = 0
        for name in options.workloads:
            workload = WORKLOADS[name](context)
            rounds = [_round(workload.loads, index, options) for index in range(options.rounds)]
            verdicts = [_verdict(bar, rounds) for bar in workload.bars]
            failed += sum(not verdict.is_reached for verdict in verdicts)
            print("\n".join(_table(name, rounds, verdicts)), flush=True)
            if options.json:
                append_rows(options.json, _rows(name, rounds))
    return 1 if failed else 0


def _options() -> argparse.Namespace:
    parser = rounds_parser(__doc__)
    parser.add_argument("workloads", nargs="+", choices=sorted(WORKLOADS))
    parser.add_argument("--seconds", type=float, default=2.0, help="of each load in each round")
    parser.add_argument("--triton-command", default="")
    parser.add_argument("--triton-http", default="127.0.0.1:8000")
    parser.add_argument("--triton-grpc", default="127.0.0.1:8001")
    parser.add_argument("--perf-analyzer", default="perf_analyzer")
    parser.add_argument("--wrk", default="wrk")
    parser.add_argument(
        "--tritonclient-python", default=sys.executable, help="an interpreter with tritonclient"
    )
    parser.add_argument(
        "--mosec-python", default=sys.executable, help="an interpreter with mosec and onnxruntime"
    )
    parser.add_argument("--mosec-http", default="127.0.0.1:18010")
    parser.add_argument(
        "--vad-model", default="", help="silero_vad_16k_op15.onnx, or the wheel that holds it"
    )
    return parser.parse_args()


def _print_idle(naiad: Server, triton: Triton) -> None:
    families = {"naiad": family_of(naiad.process.pid)}
    if triton.pid:
        families["triton"] = family_of(triton.pid)
    before = {name: sum(cpu_of(pid).total for pid in pids) for name, pids in families.items()}
    time.sleep(IDLE_SECONDS)
    for name, pids in families.items():
        used = sum(cpu_of(pid).total for pid in pids) - before[name]
        print(f"{name}, idle: {used / IDLE_SECONDS:.3f} cores in {len(pids)} processes")


def _round(loads: list[Load], index: int, options: argparse.Namespace) -> dict[str, Measured]:
    wait_for_quiet(options.others_max, QUIET_WAIT_SECONDS_MAX)
    found = {}
    for load in loads if index % 2 == 0 else reversed(loads):
        found[load.name] = load.run(options.seconds)
        if found[load.name].errors:
            print(f"{load.name}: {found[load.name].errors} errors", file=sys.stderr)
    return found


def _verdict(bar: Bar, rounds: list[dict[str, Measured]]) -> Verdict:
    sign = "≤" if bar.is_latency else "≥"
    return Verdict(bar.title, sign, bar.limit, [bar.ratio(one) for one in rounds])


def _table(name: str, rounds: list[dict[str, Measured]], verdicts: list[Verdict]) -> list[str]:
    lines = [
        "",
        f"### {name}: {len(rounds)} rounds",
        "",
        "| load | req/s, median (min-max) | p50 ms | p99 ms |",
        "|---|---|---|---|",
    ]
    for load in rounds[0]:
        rates = [one[load].rate for one in rounds]
        p50 = statistics.median(one[load].p50_us for one in rounds) / 1e3
        p99 = statistics.median(one[load].p99_us for one in rounds) / 1e3
        lines.append(f"| {load} | {spread(rates)} | {p50:.2f} | {p99:.2f} |")
    return [*lines, "", *map(str, verdicts)]


def _rows(name: str, rounds: list[dict[str, Measured]]) -> list[Row]:
    return [
        {"benchmark": f"versus {name}", "round": index, "load": load, **found._asdict()}
        for index, one in enumerate(rounds)
        for load, found in one.items()
    ]


if __name__ == "__main__":
    sys.exit(main())
