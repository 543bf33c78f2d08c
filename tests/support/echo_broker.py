"""A broker without workers, to test clients with: `python -m support.echo_broker --run-dir DIR`.

Answers requests at once with their inputs. The model's name says what else may happen to them:

    echo      one answer, outputs named like the inputs
    silent    none, until the operation `answer`
    stubborn  answered with a lease when it is cancelled
    twice     two answers
    error     a model_error
    expire    a timeout error at once, RELEASED at the operation `release`
    lease     outputs in this process's own segment, as a worker would lend them
    hang_up   the connection breaks before the answer; sent again, it is answered

Control operations beyond `live`, `ready` and the queries of `naiad perf`: `seen` (what arrived, as
JSON), `answer`, `release`, `hang_up` (drop the next message and all connections), `restart` (the
same, with a new incarnation and no sessions), `mute` (no reply). With --refuse CODE every HELLO is
refused.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import sys
from collections.abc import Callable
from typing import Any

import posix_ipc
import zmq

from naiad.protocol import messages as m
from naiad.protocol.codec import decode, encode
from naiad.protocol.endpoints import Endpoints

PARTS = ("success", "queue", "compute_input", "compute_infer", "compute_output")
NO_TIME = {part: {"count": 0, "ns": 0} for part in PARTS}
QUERIES: dict[str, Callable[[str], Any]] = {
    "model_ready": lambda model: {"ready": model in ("echo", "error")},
    "index": lambda model: [
        {"name": "echo", "version": "1", "state": "READY", "reason": ""},
        {"name": "broken", "version": "1", "state": "UNAVAILABLE", "reason": "no file model.py"},
    ],
    "model_metadata": lambda model: {
        "name": model,
        "inputs": [
            {"name": "numbers", "datatype": "FP32", "shape": [-1, 16]},
            {"name": "words", "datatype": "BYTES", "shape": [-1, 2]},
        ],
    },
    "statistics": lambda model: {"model_stats": [{"inference_stats": NO_TIME}]},
}
SEGMENT_BYTES = 1 << 26
SIGNAL_MS = 100
"""A signal that comes just before a blocking receive is acted on when that times out."""


class Peer:
    """A session as the broker knows it."""

    def __init__(self) -> None:
        self.requests: dict[int, tuple[m.InferRequest, list[bytes]]] = {}
        self.zombies: list[int] = []
        self.regions: dict[int, str] = {}


class EchoBroker:
    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.context = zmq.Context()
        self.incarnation = random.getrandbits(63)
        self.peers: dict[bytes, Peer] = {}
        self.routes: dict[bytes, bytes] = {}
        self.seen: list[Any] = []
        self.segment: Segment | None = None
        self.is_stopped = False
        self.fate = ""
        """What happens when the next message arrives."""
        self.bind()

    def bind(self) -> None:
        self.socket = self.context.socket(zmq.ROUTER)
        self.socket.linger = 0
        self.socket.rcvtimeo = SIGNAL_MS
        self.socket.set_hwm(0)
        self.socket.bind(Endpoints(self.options.run_dir).clients)

    def run(self) -> None:
        print("ready", os.getpid(), flush=True)
        while not self.is_stopped:
            try:
                routing, header, *frames = self.socket.recv_multipart()
            except zmq.Again:
                continue
            if self.fate:
                self.hang_up()
                continue
            message = decode(header, [len(frame) for frame in frames])
            if isinstance(message, m.Hello):
                self.hello(routing, message)
                continue
            secret = self.routes.get(routing)
            if secret is None:
                self.seen.append(["stray", type(message).__name__])
                continue
            peer = self.peers[secret]
            if isinstance(message, m.Infer):
                self.infer(routing, peer, message, frames)
            elif isinstance(message, m.Control):
                self.control(routing, peer, message)
            elif isinstance(message, m.RegisterRegion | m.ForgetRegion):
                self.seen.append([type(message).__name__, list(message)])
                refused = ("permission_denied", "no regions here", False)
                error = refused if self.options.no_regions else None
                if isinstance(message, m.RegisterRegion) and error is None:
                    peer.regions[message.region.id] = message.region.key
                self.send(routing, m.Reply(message.call, error), [b"{}"])
            elif isinstance(message, m.Cancel):
                self.seen.append(["Cancel", list(message.ids)])
                for ident in message.ids:
                    held = peer.requests.pop(ident, None)
                    if held is not None and held[0].model == "stubborn":
                        self.lease(routing, *held)
                    elif held is not None:
                        error = ("cancelled", "request was cancelled", False)
                        self.answer(routing, [m.InferAnswer(ident, error, -1, ())], [])
                        self.send(routing, m.Released(self.incarnation, (ident,)))
            elif isinstance(message, m.Release):
                self.seen.append(["Release", [list(lease) for lease in message.leases]])
            elif isinstance(message, m.Bye):
                self.seen.append(["Bye"])
                del self.peers[secret], self.routes[routing]

    def send(self, routing: bytes, message: m.Message, frames: list[bytes] | None = None) -> None:
        self.socket.send_multipart([routing, encode(message), *(frames or [])])

    def answer(self, routing: bytes, answers: list[m.InferAnswer], frames: list[bytes]) -> None:
        self.send(routing, m.Answers(self.incarnation, tuple(answers)), frames)

    def hello(self, routing: bytes, hello: m.Hello) -> None:
        self.seen.append(["Hello", hello.incarnation == self.incarnation, list(hello.leases)])
        if self.options.refuse:
            self.send(routing, m.Refused(self.options.refuse, "this broker refuses everybody"))
            return
        if self.options.wire_version:
            header = bytearray(encode(m.Refused("version_mismatch", "another version")))
            header[1] = self.options.wire_version
            self.socket.send_multipart([routing, bytes(header)])
            return
        resumed = hello.secret in self.peers
        self.peers.setdefault(hello.secret, Peer())
        self.routes[routing] = hello.secret
        self.send(
            routing,
            m.Welcome(
                self.incarnation, "echo", "echo 1", self.options.requests_max,
                self.options.bytes_max, 64 << 20, resumed,
            ),
        )  # fmt: skip

    def infer(self, routing: bytes, peer: Peer, infer: m.Infer, frames: list[bytes]) -> None:
        answers: list[m.InferAnswer] = []
        for request in infer.requests:
            model = request.model
            is_shared = any(tensor.place != m.Place.INLINE for tensor in request.inputs)
            if (is_shared or request.outputs) and model in ("echo", "lease"):
                self.shared(routing, peer, request, frames)
                continue
            if model == "echo":
                answers.append(m.InferAnswer(request.id, None, 1, request.inputs))
                continue
            self.seen.append(["Infer", model, request.id, request.attempt, request.timeout_us])
            if model == "lease":
                self.lease(routing, request, frames)
                continue
            if model in ("silent", "stubborn"):
                peer.requests[request.id] = (request, frames)
                continue
            if model == "hang_up" and request.attempt == 1:
                self.hang_up()
                return
            if model == "error":
                error = ("model_error", "the model said no", False)
                answers.append(m.InferAnswer(request.id, error, 1, ()))
                continue
            if model == "expire" and request.id not in peer.zombies:
                error = ("timeout", "Request timeout expired", True)
                peer.zombies.append(request.id)
                answers.append(m.InferAnswer(request.id, error, 1, ()))
                continue
            if model != "expire":
                answers.append(m.InferAnswer(request.id, None, 1, request.inputs))
            if model == "twice":
                answers.append(answers[-1])
        if answers:
            self.answer(routing, answers, frames)

    def shared(
        self, routing: bytes, peer: Peer, request: m.InferRequest, frames: list[bytes]
    ) -> None:
        """Inputs out of the client's memory, outputs into it or into ours, as asked."""
        wanted = {output.name: output for output in request.outputs}
        regions = () if self.segment else (self.own_segment().region,)
        outputs, payload = [], []
        for tensor in request.inputs:
            if tensor.place == m.Place.INLINE:
                content = frames[tensor.region][tensor.offset : tensor.offset + tensor.size]
            elif tensor.region not in peer.regions:
                error = ("not_found", f"region {tensor.region} is not registered", False)
                self.answer(routing, [m.InferAnswer(request.id, error, 1, ())], [])
                return
            else:
                with open(f"/dev/shm{peer.regions[tensor.region]}", "rb") as segment:
                    content = os.pread(segment.fileno(), tensor.size, tensor.offset)
            output = wanted.get(tensor.name, m.OutputRequest(tensor.name))
            if request.model == "lease" or (output.place == m.Place.AUTO and tensor.size > 16384):
                where = (
                    m.Place.LEASE,
                    self.own_segment().region.id,
                    self.own_segment().put(content),
                )
            elif output.place == m.Place.REGION:
                with open(f"/dev/shm{peer.regions[output.region]}", "r+b") as segment:
                    os.pwrite(segment.fileno(), content, output.offset)
                where = (m.Place.REGION, output.region, output.offset)
            else:
                payload.append(content)
                where = (m.Place.INLINE, len(payload) - 1, 0)
            outputs.append(m.Tensor(*tensor[:3], *where, tensor.size))
        answer = m.InferAnswer(request.id, None, 1, tuple(outputs))
        self.send(routing, m.Answers(self.incarnation, (answer,), regions), payload)

    def own_segment(self) -> Segment:
        if self.segment is None:
            self.segment = Segment()
        return self.segment

    def lease(self, routing: bytes, request: m.InferRequest, frames: list[bytes]) -> None:
        regions = () if self.segment else (self.own_segment().region,)
        outputs = []
        for tensor in request.inputs:
            content = frames[tensor.region][tensor.offset : tensor.offset + tensor.size]
            lent = self.own_segment()
            place = (m.Place.LEASE, lent.region.id, lent.put(content))
            outputs.append(m.Tensor(*tensor[:3], *place, tensor.size))
        answer = m.InferAnswer(request.id, None, 1, tuple(outputs))
        self.send(routing, m.Answers(self.incarnation, (answer,), regions))

    def control(self, routing: bytes, peer: Peer, control: m.Control) -> None:
        result: Any = {}
        operation = control.operation
        if operation == "mute":
            return
        if operation == "live":
            result = {"live": True}
        elif operation == "ready":
            counts = {"known": 1, "ready": 1, "loading": 0, "failed": 0}
            result = {"ready": True, "started": True, "state": "ready", "models": counts}
        elif operation in QUERIES:
            result = QUERIES[operation](str(control.arguments.get("model", "")))
        elif operation == "seen":
            result = self.seen
        elif operation == "answer":
            for request, frames in peer.requests.values():
                self.answer(routing, [m.InferAnswer(request.id, None, 1, request.inputs)], frames)
            peer.requests.clear()
        elif operation == "release":
            self.send(routing, m.Released(self.incarnation, tuple(peer.zombies)))
            peer.zombies.clear()
        elif operation in ("hang_up", "restart"):
            self.fate = operation
        else:
            self.send(routing, m.Reply(control.call, ("unsupported", f"no {operation}", False)))
            return
        self.send(routing, m.Reply(control.call, None), [json.dumps(result).encode()])

    def hang_up(self) -> None:
        """Drop all connections, and whatever was just received."""
        if self.fate == "restart":
            self.incarnation = random.getrandbits(63)
            self.peers.clear()
        self.fate = ""
        self.socket.close(0)
        self.routes.clear()
        self.bind()


class Segment:
    """A worker's output arena, small and never reused."""

    def __init__(self) -> None:
        key = f"/naiad-echo.{os.getpid()}.{random.getrandbits(32):08x}"
        self.memory = posix_ipc.SharedMemory(key, posix_ipc.O_CREX, size=SEGMENT_BYTES)
        found = os.fstat(self.memory.fd)
        ident = 1 << 61 | random.getrandbits(61)
        self.region = m.Region(ident, key, found.st_dev, found.st_ino, SEGMENT_BYTES)
        self.used = 0

    def put(self, content: bytes) -> int:
        offset, self.used = self.used, self.used + -(-len(content) // 64) * 64
        assert self.used <= SEGMENT_BYTES
        os.pwrite(self.memory.fd, content, offset)
        return offset

    def unlink(self) -> None:
        posix_ipc.unlink_shared_memory(self.region.key)


def parsed(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--run-dir", required=True)
    parser.add_argument("--requests-max", type=int, default=4096)
    parser.add_argument("--bytes-max", type=int, default=64 << 20)
    parser.add_argument("--refuse", default="")
    parser.add_argument("--wire-version", type=int, default=0)
    parser.add_argument("--no-regions", action="store_true")
    return parser.parse_args(arguments)


def serve(arguments: list[str]) -> None:
    broker = EchoBroker(parsed(arguments))

    def stop(*_: object) -> None:
        # Not by an exception: raised inside a finalizer it would be lost.
        broker.is_stopped = True

    signal.signal(signal.SIGTERM, stop)
    try:
        broker.run()
    finally:
        if broker.segment is not None:
            broker.segment.unlink()
        broker.context.destroy(linger=0)


def nurse() -> None:
    """Fork a broker for each line of arguments (JSON) on stdin: faster than a new program."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for them
    for line in sys.stdin:
        if os.fork() == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            try:
                serve(json.loads(line))
            except SystemExit:
                pass
            except BaseException:
                sys.excepthook(*sys.exc_info())
            finally:
                os._exit(0)


if __name__ == "__main__":
    nurse() if sys.argv[1:] == ["--nurse"] else serve(sys.argv[1:])
