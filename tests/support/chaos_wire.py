"""One process of clients over HTTP and gRPC that keep a ledger.

`python -m support.chaos_wire HTTP_URL GRPC_TARGET INDEX VANISH`; with VANISH 1 some of them vanish
in the middle of their requests. Says "ready" after its first answers, goes on until its stdin ends,
and prints a `Ledger` as a line of JSON. Every request carries a token that no other has, and its
answer must carry the same one.
"""

from __future__ import annotations

import http.client
import json
import random
import socket
import sys
import threading
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Final
from urllib.parse import urlsplit

import numpy as np
import tritonclient.grpc as triton
from numpy.typing import NDArray
from tritonclient.utils import InferenceServerException

MODEL: Final = "echo"
PATIENCE_S: Final = 60.0
ERRORS_KEPT_MAX: Final = 20
VALUES: Final = 16

Token = NDArray[np.float32]


@dataclass
class Ledger:
    """Every request is in one of: right, wrong, failed (with an answer), broken (the connection,
    without one), vanished (the client itself)."""

    sent: int = 0
    right: int = 0
    wrong: int = 0
    failed: int = 0
    broken: int = 0
    vanished: int = 0
    errors: list[str] = field(default_factory=list)


class Broken(Exception):
    """The connection ended before an answer."""


class Failed(Exception):
    """An answer that says no."""


class Clients:
    """Threads that share a ledger."""

    def __init__(self, http_url: str, grpc_target: str, index: int) -> None:
        place = urlsplit(http_url)
        self.ledger = Ledger()
        self._place = (str(place.hostname), place.port or 80)
        self._target = grpc_target
        self._index = index
        self._lock = threading.Lock()
        self._is_over = threading.Event()

    def run(self, *, vanish: bool) -> None:
        works = [self._http, self._http, self._grpc, self._grpc]
        if vanish:
            works.append(self._vanish)
        threads = [threading.Thread(target=work) for work in works]
        for thread in threads:
            thread.start()
        sys.stdin.read()
        self._is_over.set()
        for thread in threads:
            thread.join()

    def _token(self) -> Token:
        with self._lock:
            self.ledger.sent += 1
            token = np.full((1, VALUES), self.ledger.sent, np.float32)
        token[0, 0] = self._index
        return token

    def _ask(self, ask: Callable[[Token], Token]) -> None:
        token = self._token()
        ledger = self.ledger
        try:
            is_right = np.array_equal(ask(token), token)
        except Broken:
            with self._lock:
                ledger.broken += 1
            return
        except Failed as fault:
            with self._lock:
                ledger.failed += 1
                if len(ledger.errors) < ERRORS_KEPT_MAX:
                    ledger.errors.append(str(fault))
            return
        with self._lock:
            ledger.right += is_right
            ledger.wrong += not is_right
            if ledger.right == 1:
                print("ready", flush=True)

    def _http(self) -> None:
        connection = http.client.HTTPConnection(*self._place, timeout=PATIENCE_S)

        def ask(token: Token) -> Token:
            text = _json(token)
            try:
                connection.request("POST", f"/v2/models/{MODEL}/infer", text)
                answer = connection.getresponse()
                found = answer.read()
            except (OSError, http.client.HTTPException) as fault:
                connection.close()
                raise Broken from fault
            if answer.status != 200:
                raise Failed(f"HTTP {answer.status} {found!r}")
            return np.array([json.loads(found)["outputs"][0]["data"]], np.float32)

        while not self._is_over.is_set():
            self._ask(ask)
        connection.close()

    def _grpc(self) -> None:
        with triton.InferenceServerClient(self._target) as client:

            def ask(token: Token) -> Token:
                tensor = triton.InferInput("INPUT0", list(token.shape), "FP32")
                tensor.set_data_from_numpy(token)
                try:
                    found: Token = client.infer(MODEL, [tensor]).as_numpy("OUTPUT0")
                except InferenceServerException as fault:
                    # The server's own answers have its code in them; the library's have not.
                    if "naiad-code" in str(fault.debug_details()):
                        raise Failed(f"gRPC {fault}") from fault
                    raise Broken from fault
                return found

            while not self._is_over.is_set():
                self._ask(ask)

    def _vanish(self) -> None:
        chance = random.Random(self._index)
        while not self._is_over.wait(0.02):
            text = _json(self._token())
            head = f"POST /v2/models/{MODEL}/infer HTTP/1.1\r\nHost: h\r\n"
            head += f"Content-Length: {len(text)}\r\n\r\n"
            data = head.encode() + text
            try:
                with socket.create_connection(self._place, PATIENCE_S) as one:
                    one.sendall(data[: chance.choice((len(data), len(data) // 2))])
            except OSError:
                continue
            finally:
                with self._lock:
                    self.ledger.vanished += 1


def _json(token: Token) -> bytes:
    tensor = {
        "name": "INPUT0", "shape": list(token.shape), "datatype": "FP32", "data": token.tolist(),
    }  # fmt: skip
    return json.dumps({"inputs": [tensor]}).encode()


def main() -> None:
    http_url, grpc_target, index, vanish = sys.argv[1:]
    clients = Clients(http_url, grpc_target, int(index))
    clients.run(vanish=vanish == "1")
    print(json.dumps(asdict(clients.ledger)), flush=True)


if __name__ == "__main__":
    main()
