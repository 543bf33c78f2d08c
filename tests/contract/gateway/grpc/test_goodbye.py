"""How connections end when the server does: frame by frame, with a client that takes its time."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Iterator

import hpack
import pytest

from naiad.gateway.grpc_connection import PARTING_SECONDS
from naiad.gateway.http2 import frames as f
from naiad.gateway.http2.sending import PARTING
from naiad.gateway.proto import inference_pb2 as pb
from naiad.testing.server import Server
from support.grpc_listener import Listener
from support.hostile_frames import enveloped, head
from support.waiting import wait_until

PATIENCE_S = 15.0
Frame = tuple[int, int, int, bytes]


class Client:
    """A connection that answers nothing by itself."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), PATIENCE_S)
        self.socket.sendall(f.PREFACE + f.settings({}))
        self._buffer = b""
        self._decoder = hpack.Decoder()

    def ask(self, stream: int) -> None:
        self.socket.sendall(
            f.frame(f.HEADERS, f.END_HEADERS, stream, head("ServerReady"))
            + f.frame(f.DATA, f.END_STREAM, stream, enveloped(b""))
        )

    def infer(self, stream: int, values: int) -> None:
        """An echo of so many numbers, in pieces of at most a frame."""
        tensor = pb.ModelInferRequest.InferInputTensor(
            name="INPUT0", datatype="FP32", shape=[values]
        )
        raw = bytes(4 * values)
        message = pb.ModelInferRequest(
            model_name="echo_fp32", inputs=[tensor], raw_input_contents=[raw]
        )
        content = enveloped(message.SerializeToString())
        self.socket.sendall(f.frame(f.HEADERS, f.END_HEADERS, stream, head("ModelInfer")))
        for start in range(0, len(content), f.FRAME_BYTES_MAX):
            piece = content[start : start + f.FRAME_BYTES_MAX]
            flags = f.END_STREAM if start + len(piece) == len(content) else 0
            self.socket.sendall(f.frame(f.DATA, flags, stream, piece))

    def takes(self, stream: int, size: int) -> None:
        """May be sent so much more."""
        for one in (0, stream):
            self.socket.sendall(f.window_update(one, size))

    def data(self, size: int) -> bytes:
        """So much of what is answered."""
        found = b""
        while len(found) < size:
            found += self.until(f.DATA)[3]
        return found

    def knows(self) -> None:
        self.socket.sendall(f.frame(f.PING, f.ACK, 0, PARTING))

    def frame(self) -> Frame | None:
        """The next frame; None at the end of the connection."""
        while True:
            buffer = self._buffer
            size = f.HEAD_BYTES + int.from_bytes(buffer[:3], "big")
            if len(buffer) >= max(size, f.HEAD_BYTES):
                self._buffer = buffer[size:]
                stream = int.from_bytes(buffer[5:9], "big")
                return buffer[3], buffer[4], stream, buffer[f.HEAD_BYTES : size]
            piece = self.socket.recv(1 << 16)
            if not piece:
                assert not buffer
                return None
            self._buffer += piece

    def until(self, kind: int) -> Frame:
        while (frame := self.frame()) is not None:
            if frame[0] == kind:
                return frame
        raise AssertionError(f"the connection ended without a frame of kind {kind}")

    def status(self, stream: int) -> tuple[str, str]:
        """How this call ended."""
        while True:
            _, flags, of, content = self.until(f.HEADERS)
            fields: dict[bytes, bytes] = dict(self._decoder.decode(content, raw=True))
            if of == stream and flags & f.END_STREAM:
                return fields[b"grpc-status"].decode(), fields.get(b"grpc-message", b"").decode()

    def goodbye(self) -> int:
        """The last stream that a GOAWAY names."""
        return int.from_bytes(self.until(f.GOAWAY)[3][:4], "big")


@pytest.fixture
def listener(server: Server) -> Iterator[Listener]:
    with Listener(server.run_dir) as one:
        yield one


@pytest.fixture
def client(listener: Listener) -> Iterator[Client]:
    one = Client(listener.port)
    yield one
    one.socket.close()


def test_calls_of_a_client_that_does_not_know_yet_are_refused_by_name(
    listener: Listener, client: Client
) -> None:
    client.ask(1)
    assert client.status(1)[0] == "0"
    ended: list[bool] = []

    def end() -> None:
        ended.append(listener.call(listener.end(0.0, PATIENCE_S), PATIENCE_S))

    ending = threading.Thread(target=end)
    ending.start()
    assert client.goodbye() == f.STREAM_MAX  # what is on its way is taken
    assert client.until(f.PING)[3] == PARTING
    for stream in (3, 5):
        client.ask(stream)
        assert client.status(stream) == ("14", "Server exiting")
    client.knows()
    assert client.goodbye() == 5
    assert client.frame() is None
    ending.join(PATIENCE_S)
    assert ended == [True]


def test_a_client_that_never_answers_is_waited_for_a_moment(
    listener: Listener, client: Client
) -> None:
    client.ask(1)
    client.status(1)
    begun = time.monotonic()
    assert listener.call(listener.end(0.0, PATIENCE_S), PATIENCE_S)
    assert PARTING_SECONDS <= time.monotonic() - begun < PATIENCE_S / 2
    assert client.goodbye() == f.STREAM_MAX
    client.until(f.PING)
    assert client.frame() is None


def test_a_client_that_has_said_nothing_is_not_waited_for(listener: Listener) -> None:
    with socket.create_connection(("127.0.0.1", listener.port), PATIENCE_S) as client:
        wait_until(lambda: len(listener.server.connections) == 1, "the connection")

        async def end() -> None:
            await asyncio.wait_for(listener.end(0.0, PATIENCE_S), PARTING_SECONDS / 2)

        listener.call(end())
        while client.recv(1 << 16):
            pass


def test_what_runs_is_answered_after_the_goodbye(listener: Listener, client: Client) -> None:
    """Its last answer, then the end: the client knew already."""
    client.socket.sendall(f.frame(f.HEADERS, f.END_HEADERS, 1, head("ServerReady")))
    wait_until(lambda: any(one.calls for one in listener.server.connections), "the call")
    ending = threading.Thread(target=lambda: listener.call(listener.end(0.0, PATIENCE_S)))
    ending.start()
    assert client.goodbye() == f.STREAM_MAX
    client.knows()
    assert client.goodbye() == 1
    client.socket.sendall(f.frame(f.DATA, f.END_STREAM, 1, enveloped(b"")))
    assert client.status(1)[0] == "14"
    assert client.frame() is None
    ending.join(PATIENCE_S)


def test_an_answer_that_its_client_takes_slowly_is_taken_whole(
    listener: Listener, client: Client
) -> None:
    """Its call is over, and most of it waits for the client's window when the server ends."""
    values = 50_000
    client.infer(1, values)
    begun = client.data(f.WINDOW_AT_FIRST)
    wait_until(lambda: not any(one.calls for one in listener.server.connections), "no call left")
    ended: list[bool] = []
    ending = threading.Thread(
        target=lambda: ended.append(listener.call(listener.end(0.0, PATIENCE_S), PATIENCE_S))
    )
    ending.start()
    assert client.goodbye() == f.STREAM_MAX
    client.knows()
    client.goodbye()
    client.takes(1, 4 * values)
    size = int.from_bytes(begun[1:5], "big")
    client.data(5 + size - len(begun))
    assert client.status(1)[0] == "0"
    assert client.frame() is None
    ending.join(PATIENCE_S)
    assert ended == [True]


def test_what_is_to_be_sent_goes_out_before_the_end(listener: Listener, client: Client) -> None:
    """A connection may be closed in the very turn of the event loop in which a call has ended."""
    client.ask(1)
    client.status(1)

    async def say_and_close() -> None:
        (connection,) = listener.server.connections
        connection.http2.ping()
        connection.close()

    listener.call(say_and_close())
    client.until(f.PING)
    assert client.frame() is None
