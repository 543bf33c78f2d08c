"""Every public call of the four stock clients, by the clients' own list of them.

A client that gains a call fails here until the call has a test.
"""

from __future__ import annotations

import asyncio
import base64
import inspect
import json
import queue
import secrets
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any, Final

import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.grpc.aio
import tritonclient.http
import tritonclient.http.aio
from tritonclient.utils import InferenceServerException, shared_memory

from support.stock_server import Stock

CLIENTS: Final[dict[str, Any]] = {
    "http": tritonclient.http,
    "http.aio": tritonclient.http.aio,
    "grpc": tritonclient.grpc,
    "grpc.aio": tritonclient.grpc.aio,
}
PATIENCE_S: Final = 20
ONES: Final = np.ones((1, 16), np.float32)


def public_calls(client: str) -> list[str]:
    return [name for name in dir(CLIENTS[client].InferenceServerClient) if name[0] != "_"]


class Caller:
    """A stock client of any kind; calls block, and answers of gRPC are JSON where HTTP's are."""

    def __init__(self, kind: str, stock: Stock) -> None:
        self.kind = kind
        self.stock = stock
        self.module = CLIENTS[kind]
        self.is_grpc = kind.startswith("grpc")
        self._runner = asyncio.Runner() if kind.endswith("aio") else None
        self.client = self.wait(self._made())

    async def _made(self) -> Any:
        # The asyncio clients want a running loop.
        return self.made()

    def made(self) -> Any:
        return self.module.InferenceServerClient(
            self.stock.grpc if self.is_grpc else self.stock.http
        )

    def wait(self, answer: Any) -> Any:
        if inspect.iscoroutine(answer):
            if self._runner is None:
                return asyncio.run(answer)
            return self._runner.run(answer)
        return answer

    def __getattr__(self, name: str) -> Callable[..., Any]:
        call = getattr(self.client, name)
        as_json = self.is_grpc and "as_json" in inspect.signature(call).parameters

        def ask(*given: Any, **options: Any) -> Any:
            if as_json:
                options["as_json"] = True
            return self.wait(call(*given, **options))

        return ask

    def inputs(self, array: Any = ONES, datatype: str = "FP32") -> list[Any]:
        one = self.module.InferInput("INPUT0", list(array.shape), datatype)
        one.set_data_from_numpy(array)
        return [one]

    def refused(self, text: str, call: str, *given: Any, **options: Any) -> None:
        with pytest.raises(InferenceServerException, match=text):
            getattr(self, call)(*given, **options)

    def close(self) -> None:
        self.wait(self.client.close())
        if self._runner is not None:
            self._runner.close()


# --- what each call is asked ---------------------------------------------------------------------


def is_server_live(asked: Caller) -> None:
    assert asked.is_server_live() is True


def is_server_ready(asked: Caller) -> None:
    # A Triton is not ready any more once a load has failed.
    assert asked.is_server_ready() is True or asked.stock.is_triton


def is_model_ready(asked: Caller) -> None:
    assert asked.is_model_ready("tuned") is True
    assert asked.is_model_ready("tuned", "3") is True
    assert asked.is_model_ready("tuned", "2") is False
    assert asked.is_model_ready("nobody") is False


def get_server_metadata(asked: Caller) -> None:
    found = asked.get_server_metadata()
    assert {"name", "version", "extensions"} == set(found)
    assert {"classification", "statistics", "binary_tensor_data"} <= set(found["extensions"])


def get_model_metadata(asked: Caller) -> None:
    found = asked.get_model_metadata("tuned")
    shape: list[Any] = ["-1", "4"] if asked.is_grpc else [-1, 4]
    assert found == {
        "name": "tuned",
        "versions": ["1", "3"],
        "platform": "python",
        "inputs": [{"name": "INPUT0", "datatype": "FP32", "shape": shape}],
        "outputs": [{"name": "OUTPUT0", "datatype": "FP32", "shape": shape}],
    }
    assert asked.get_model_metadata("tuned", "3")["versions"] == ["3"]
    asked.refused("'nobody' is not found", "get_model_metadata", "nobody")


def get_model_config(asked: Caller) -> None:
    found = asked.get_model_config("tuned")
    config = found["config"] if asked.is_grpc else found
    assert config["max_batch_size"] == 8
    batching = config["dynamic_batching"]
    assert batching["preferred_batch_size"] == [2, 4]
    assert int(batching["max_queue_delay_microseconds"]) == 100
    asked.refused("version 2 is not found", "get_model_config", "tuned", "2")


def get_model_repository_index(asked: Caller) -> None:
    found = asked.get_model_repository_index()
    rows = found["models"] if asked.is_grpc else found
    states = {row["version"]: row["state"] for row in rows if row["name"] == "tuned"}
    assert states["1"] == states["3"] == "READY"
    assert [row for row in rows if row["name"] == "refuses"] == [{"name": "refuses"}]


def get_inference_statistics(asked: Caller) -> None:
    asked.infer("echo_fp32", asked.inputs(ONES[0]))
    (found,) = asked.get_inference_statistics("echo_fp32")["model_stats"]
    assert int(found["inference_stats"]["success"]["count"]) > 0
    assert int(found["execution_count"]) > 0
    assert len(asked.get_inference_statistics()["model_stats"]) > 10
    asked.refused("'nobody' is not available", "get_inference_statistics", "nobody")


def load_model(asked: Caller) -> None:
    found = asked.get_model_config("echo_int64")
    config = found["config"] if asked.is_grpc else found
    config["parameters"] = {"mine": {"string_value": "given"}}
    asked.load_model("echo_int64", config=json.dumps(config))
    found = asked.get_model_config("echo_int64")
    config = found["config"] if asked.is_grpc else found
    assert config["parameters"]["mine"] == {"string_value": "given"}
    asked.load_model("echo_int64")
    found = asked.get_model_config("echo_int64")
    config = found["config"] if asked.is_grpc else found
    # Triton 2.51 keeps the configuration that was given; newer releases read the file again.
    assert ("mine" in config.get("parameters", {})) is asked.stock.is_triton
    asked.refused("failed to load 'nobody'", "load_model", "nobody")


def unload_model(asked: Caller) -> None:
    asked.load_model("spare")
    assert asked.is_model_ready("spare") is True
    asked.unload_model("spare", unload_dependents=True)
    assert asked.is_model_ready("spare") is False
    asked.unload_model("nobody")


def system_shared_memory(asked: Caller) -> None:
    name = f"r{secrets.token_hex(4)}"
    region = shared_memory.create_shared_memory_region(name, f"/{name}", 128)
    try:
        shared_memory.set_shared_memory_region(region, [ONES * 3])
        asked.register_system_shared_memory(name, f"/{name}", 128)
        found = asked.get_system_shared_memory_status()
        names = found["regions"] if asked.is_grpc else {row["name"] for row in found}
        assert name in names
        one = asked.module.InferInput("INPUT0", [1, 16], "FP32")
        one.set_shared_memory(name, 64)
        output = asked.module.InferRequestedOutput("OUTPUT0")
        output.set_shared_memory(name, 64, offset=64)
        asked.infer("identity", [one], outputs=[output])
        back = shared_memory.get_contents_as_numpy(region, np.float32, [1, 16], offset=64)
        assert (back == 3).all()
        asked.refused("already in manager", "register_system_shared_memory", name, f"/{name}", 128)
        asked.unregister_system_shared_memory(name)
        asked.refused("Unable to find", "get_system_shared_memory_status", name)
        asked.unregister_system_shared_memory()
    finally:
        shared_memory.destroy_shared_memory_region(region)


def cuda_shared_memory(asked: Caller) -> None:
    assert not asked.get_cuda_shared_memory_status().get("regions") if asked.is_grpc else True
    handle = base64.b64encode(bytes(64))
    asked.refused("failed to register", "register_cuda_shared_memory", "c", handle, 0, 64)
    asked.refused("Unable to find cuda", "get_cuda_shared_memory_status", "c")
    asked.unregister_cuda_shared_memory("c")
    asked.unregister_cuda_shared_memory()


def trace_settings(asked: Caller) -> None:
    if asked.stock.is_triton:
        assert asked.get_trace_settings()
        assert asked.update_trace_settings(settings={"trace_rate": "1000"})
        return
    asked.refused("not in this release", "get_trace_settings")
    asked.refused("not in this release", "update_trace_settings", settings={"trace_rate": "1000"})


def log_settings(asked: Caller) -> None:
    before = asked.get_log_settings()
    changed = asked.update_log_settings({"log_verbose_level": 1})
    try:
        assert changed != before
        assert asked.get_log_settings() == changed
    finally:
        assert asked.update_log_settings({"log_verbose_level": 0}) == before


def infer(asked: Caller) -> None:
    result = asked.infer("identity", asked.inputs(ONES * 7), request_id="mine", model_version="1")
    assert (result.as_numpy("OUTPUT0") == 7).all()
    response = result.get_response()
    ident = response.id if asked.is_grpc else response["id"]
    assert ident == "mine"
    output = asked.module.InferRequestedOutput("OUTPUT0", class_count=2)
    array = np.array([[0.1, 0.7, 0.2, 0.5]], np.float32)
    result = asked.infer("labelled", asked.inputs(array), outputs=[output])
    assert result.as_numpy("OUTPUT0").tolist() == [[b"0.700000:1:one", b"0.500000:3"]]
    texts = np.array([["grün"], [""]], object)
    result = asked.infer("text", asked.inputs(texts, "BYTES"))
    assert [one.decode() for one in result.as_numpy("OUTPUT0")[:, 0]] == ["grün", ""]
    asked.refused("'nobody' is not found", "infer", "nobody", asked.inputs())


def async_infer(asked: Caller) -> None:
    """HTTP gives an object to ask later, gRPC calls back."""
    if not asked.is_grpc:
        later = [asked.client.async_infer("identity", asked.inputs(ONES * n)) for n in range(8)]
        for number, one in enumerate(later):
            assert (one.get_result().as_numpy("OUTPUT0") == number).all()
        return
    answers: queue.Queue[tuple[Any, Any]] = queue.Queue()
    asked.client.async_infer(
        "identity", asked.inputs(), callback=lambda result, error: answers.put((result, error))
    )
    result, error = answers.get(timeout=PATIENCE_S)
    assert error is None
    assert (result.as_numpy("OUTPUT0") == 1).all()


def stream(asked: Caller) -> None:
    answers: queue.Queue[tuple[Any, Any]] = queue.Queue()
    asked.start_stream(lambda result, error: answers.put((result, error)))
    asked.async_stream_infer("identity", asked.inputs(ONES * 2), request_id="s")
    result, error = answers.get(timeout=PATIENCE_S)
    assert error is None
    response = result.get_response()
    assert response.id == "s"
    assert response.parameters["triton_final_response"].bool_param is True
    assert (result.as_numpy("OUTPUT0") == 2).all()
    asked.stop_stream()


def stream_infer(asked: Caller) -> None:
    async def requests() -> AsyncIterator[dict[str, Any]]:
        for name in ("identity", "nobody"):
            yield {"model_name": name, "inputs": asked.inputs()}

    async def collected() -> list[str]:
        return [
            str(error) if error else "good"
            async for _, error in asked.client.stream_infer(requests())
        ]

    found = asked.wait(collected())
    assert found[0] == "good"
    assert "'nobody' is not found" in found[1]


def generate_request_body(asked: Caller) -> None:
    """What it makes, the server takes as it is; and `parse_response_body` reads its answer."""
    import urllib.request

    kind = asked.module.InferenceServerClient
    body, length = asked.wait(kind.generate_request_body(asked.inputs(ONES * 4)))
    request = urllib.request.Request(
        f"http://{asked.stock.http}/v2/models/identity/infer",
        bytes(body),
        {"Inference-Header-Content-Length": str(length)},
    )
    with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:
        header = answer.headers.get("Inference-Header-Content-Length")
        found = answer.read()
    result = asked.wait(
        kind.parse_response_body(found, header_length=int(header) if header else None)
    )
    assert (result.as_numpy("OUTPUT0") == 4).all()


def plugin(asked: Caller) -> None:
    """A plugin adds headers to every request."""
    import tritonclient.grpc
    import tritonclient.http

    base = tritonclient.grpc if asked.is_grpc else tritonclient.http

    class Tag(base.InferenceServerClientPlugin):  # type: ignore[misc,name-defined]
        def __call__(self, request: Any) -> None:
            request.headers["x-tag"] = "conformance"

    asked.client.register_plugin(Tag())
    assert isinstance(asked.client.plugin(), Tag)
    assert asked.is_server_live()
    asked.client.unregister_plugin()
    assert asked.client.plugin() is None


def close(asked: Caller) -> None:
    """A closed client leaves the server to others."""

    async def used() -> None:
        client = asked.made()
        live = client.is_server_live()
        assert (await live) if inspect.iscoroutine(live) else live
        closed = client.close()
        if inspect.iscoroutine(closed):
            await closed

    asked.wait(used())
    assert asked.is_server_live()


CALLS: Final[dict[str, Callable[[Caller], None]]] = {
    **{
        one.__name__: one
        for one in (
            is_server_live, is_server_ready, is_model_ready, get_server_metadata,
            get_model_metadata, get_model_config, get_model_repository_index,
            get_inference_statistics, load_model, unload_model, infer, async_infer, stream_infer,
            generate_request_body, plugin, close,
        )
    },
    **dict.fromkeys(("get_trace_settings", "update_trace_settings"), trace_settings),
    **dict.fromkeys(("get_log_settings", "update_log_settings"), log_settings),
    **dict.fromkeys(("start_stream", "async_stream_infer", "stop_stream"), stream),
    **dict.fromkeys(("register_plugin", "unregister_plugin"), plugin),
    "parse_response_body": generate_request_body,
    **{
        call: test
        for kind, test in (("system", system_shared_memory), ("cuda", cuda_shared_memory))
        for call in (
            f"register_{kind}_shared_memory",
            f"unregister_{kind}_shared_memory",
            f"get_{kind}_shared_memory_status",
        )
    },
}  # fmt: skip


@pytest.fixture(scope="module")
def callers(stock: Stock) -> Iterator[dict[str, Caller]]:
    made = {kind: Caller(kind, stock) for kind in CLIENTS}
    yield made
    for one in made.values():
        one.close()


@pytest.mark.parametrize(
    ("kind", "call"), [(kind, call) for kind in CLIENTS for call in public_calls(kind)]
)
def test_call(callers: dict[str, Caller], kind: str, call: str) -> None:
    assert call in CALLS, f"tritonclient.{kind} has a call without a test: {call}"
    CALLS[call](callers[kind])


def test_no_test_is_of_a_call_that_is_gone() -> None:
    assert set(CALLS) == {call for kind in CLIENTS for call in public_calls(kind)}
