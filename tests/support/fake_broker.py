"""A broker that only keeps a supervisor busy: `python -m support.fake_broker --run-dir DIR ...`.

Wants as many cpu slots as the file `want` in the run directory says, answers status calls with no
models, ends at SIGTERM. The file `broker` may hold: `refuse` (exit 3 at once), `crash` (SIGKILL
itself at once), `hang` (ignore SIGTERM).
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import zmq

from naiad.protocol import messages as m
from naiad.protocol.codec import decode, encode
from naiad.protocol.endpoints import Endpoints

POLL_MS = 20
STATUS = b'{"server": {"phase": "serving"}, "models": [], "instances": []}'


def main() -> int:
    run_dir = Path(sys.argv[sys.argv.index("--run-dir") + 1])
    behaviour = read(run_dir / "broker")
    if behaviour == "refuse":
        print("the repository is upside down", file=sys.stderr)
        return 3
    if behaviour == "crash":
        os.kill(os.getpid(), signal.SIGKILL)
    stopping: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: stopping.append(number))
    context = zmq.Context()
    endpoints = Endpoints(str(run_dir))
    workers, clients = context.socket(zmq.ROUTER), context.socket(zmq.ROUTER)
    for socket, address in ((workers, endpoints.workers), (clients, endpoints.clients)):
        socket.linger = 0
        socket.bind(address)
    print("fake broker up")
    supervisor, wanted = b"", -1
    while not stopping or behaviour == "hang":
        while workers.poll(POLL_MS):
            peer, header, *_ = workers.recv_multipart()
            message = decode(header)
            with (run_dir / "heard").open("a") as heard:
                heard.write(f"{type(message).__name__} {tuple(message)}\n")
            if isinstance(message, m.SupervisorHello):
                supervisor, wanted = peer, -1
        while clients.poll(0):
            peer, header, *_ = clients.recv_multipart()
            asked = decode(header)
            if isinstance(asked, m.Control):
                reply = encode(m.Reply(asked.call, None))
                clients.send_multipart([peer, reply, STATUS])
        want = int(read(run_dir / "want") or 0)
        if supervisor and want != wanted:
            workers.send_multipart([supervisor, encode(m.Want("cpu", want, ()))])
            wanted = want
    context.destroy(linger=0)
    return 0


def read(path: Path) -> str:
    return path.read_text().strip() if path.exists() else ""


if __name__ == "__main__":
    sys.exit(main())
