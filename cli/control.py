"""A connection for control calls only: status, load, unload. Needs no NumPy.

The supervisor and `naiad status` ask a handful of questions; naiad.client would bring arrays,
arenas and threads along, 20 MB and 0.1 s of them. Inference goes through naiad.client.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from types import TracebackType
from typing import Any, Final, Self

import zmq

from naiad import __version__
from naiad.cli.exit_codes import ExitCode
from naiad.cli.failure import CommandFailed
from naiad.protocol import messages as m
from naiad.protocol.codec import decode, encode
from naiad.protocol.endpoints import Endpoints, path_fault
from naiad.protocol.errors import NaiadError, RequestError, error_from_wire

ANSWER_SECONDS_MAX: Final = 5.0
FAREWELL_MS: Final = 100
"""How long closing may wait for a broker that does not read."""


class ControlLink:
    """Ask a server. `call` waits; `send` and `receive` do not, for a loop that has other work."""

    def __init__(self, run_dir: str, context: zmq.Context[zmq.Socket[bytes]] | None = None) -> None:
        self.run_dir = run_dir
        self._context = context or zmq.Context(io_threads=1)
        self._owns_context = context is None
        self._socket: zmq.Socket[bytes] | None = None
        self._calls = 0

    def start(self) -> None:
        """Connect and say hello; the broker may come later."""
        self._socket = self._context.socket(zmq.DEALER)
        self._socket.linger = 0
        self._socket.reconnect_ivl = 20
        self._socket.connect(Endpoints(self.run_dir).clients)
        secret = os.urandom(m.SECRET_BYTES)
        self._send([encode(m.Hello(secret, "cli", __version__, os.getpid(), 0))])

    @property
    def descriptor(self) -> int:
        """Edge-triggered: call `receive` whenever anything happened."""
        assert self._socket is not None
        return int(self._socket.getsockopt(zmq.FD))

    def send(self, operation: str, payload: bytes = b"", **arguments: str | int | bool) -> int:
        """Ask without waiting; the number of the call, as in the reply.

        Raises RequestError for an argument that no message can carry.
        """
        self._calls += 1
        try:
            header = encode(m.Control(self._calls, operation, dict(arguments)))
        except UnicodeEncodeError as fault:
            raise RequestError(f"{operation}: {fault.object!r} is not UTF-8") from fault
        self._send([header, payload] if payload else [header])
        return self._calls

    def receive(self) -> tuple[int, Any] | None:
        """The next reply as (call, result), or None when there is none now.

        Raises NaiadError when the server refused the call or the connection.
        """
        assert self._socket is not None
        while True:
            try:
                header, *payload = self._socket.recv_multipart(zmq.DONTWAIT)
            except zmq.Again:
                return None
            message = decode(header, [len(frame) for frame in payload])
            if isinstance(message, m.Refused):
                raise error_from_wire((message.code, message.message, False))
            if isinstance(message, m.Reply):
                if message.error is not None:
                    raise error_from_wire(message.error)
                return message.call, json.loads(payload[0]) if payload else None

    def call(
        self,
        operation: str,
        payload: bytes = b"",
        timeout_seconds: float = ANSWER_SECONDS_MAX,
        **arguments: str | int | bool,
    ) -> Any:
        """Ask and wait for the result.

        Raises NaiadError when the server refuses, CommandFailed (NO_SERVER) when none answers.
        """
        assert self._socket is not None
        number = self.send(operation, payload, **arguments)
        end = time.monotonic() + timeout_seconds
        while True:
            reply = self.receive()
            if reply is not None and reply[0] == number:
                return reply[1]
            left_ms = int((end - time.monotonic()) * 1000)
            if reply is None and (left_ms <= 0 or not self._socket.poll(left_ms)):
                raise CommandFailed(
                    f"the server on {self.run_dir} did not answer {operation} within "
                    f"{timeout_seconds:g} s",
                    ExitCode.NO_SERVER,
                )

    def close(self) -> None:
        if self._socket is not None:
            # Said and gone, or the broker would keep the session for a while, in case we return.
            with contextlib.suppress(zmq.Again):
                self._socket.send(encode(m.Bye()), zmq.DONTWAIT)
            self._socket.close(linger=FAREWELL_MS)
            self._socket = None
        if self._owns_context:
            self._context.term()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _send(self, frames: list[bytes]) -> None:
        assert self._socket is not None
        try:
            self._socket.send_multipart(frames, zmq.DONTWAIT)
        except zmq.Again as error:
            raise CommandFailed(
                f"the server on {self.run_dir} does not read", ExitCode.NO_SERVER
            ) from error


def require_server(run_dir: str) -> None:
    """Without waiting. Raises CommandFailed when nothing can be listening there (NO_SERVER) or it
    is another user's (RUN_DIR)."""
    fault = path_fault(run_dir)
    if fault is not None:
        raise CommandFailed(fault, ExitCode.RUN_DIR)
    try:
        os.stat(Endpoints(run_dir).clients_path)
    except PermissionError:
        raise CommandFailed(_not_ours(run_dir), ExitCode.RUN_DIR) from None
    except OSError as error:
        raise CommandFailed(
            f"no server runs in {run_dir}; start one with `naiad serve REPOSITORY`, or name its "
            "--run-dir (or --name)",
            ExitCode.NO_SERVER,
        ) from error
    if not os.access(Endpoints(run_dir).clients_path, os.W_OK):
        raise CommandFailed(_not_ours(run_dir), ExitCode.RUN_DIR)


def _not_ours(run_dir: str) -> str:
    uid = os.geteuid()
    try:
        owner = os.stat(run_dir).st_uid
    except OSError as error:
        return f"run directory {run_dir} cannot be entered by uid {uid}: {error.strerror}"
    return (
        f"run directory {run_dir} belongs to uid {owner}, this is uid {uid}: only its owner may "
        "talk to that server; run the command as that user, or name another --run-dir"
    )


def refused(fault: NaiadError) -> CommandFailed:
    """A server's refusal as a command shows it."""
    code = ExitCode.NOT_READY if fault.code == "not_ready" else ExitCode.FAILED
    return CommandFailed(fault.message, code)
