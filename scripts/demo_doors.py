"""Every way to ask a running server, behind one call: naiad's own client, curl, Triton's clients.

A door's `ask(model, questions)` puts several questions to one model, each a dictionary of arrays,
and returns the outputs of each in the same order; how many of them are under way at once is the
door's own business. Nothing here knows what a question means.
"""

from __future__ import annotations

import asyncio
import json
import queue
import shlex
import shutil
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple, Protocol

import numpy as np
import tritonclient.grpc as triton_grpc
import tritonclient.grpc.aio as triton_grpc_aio
import tritonclient.http as triton_http
from numpy.typing import NDArray
from tritonclient.utils import np_to_triton_dtype, triton_to_np_dtype

from naiad.client import Client
from naiad.testing.server import Server

ANSWER_SECONDS_MAX = 60
CURL = ["curl", "--silent", "--show-error", "--max-time", str(ANSWER_SECONDS_MAX)]

Tensors = dict[str, NDArray[Any]]


class DoorFailed(Exception):
    """What came instead of an answer."""


class Ask(Protocol):
    def __call__(self, model: str, questions: Sequence[Tensors]) -> list[Tensors]: ...


class Door(NamedTuple):
    """A way in. `ask` may be called until the server ends."""

    name: str
    ask: Ask


@contextmanager
def doors(server: Server) -> Iterator[list[Door]]:
    """naiad's own client first; the others must answer as it does."""
    target = server.grpc_target
    with (
        triton_http.InferenceServerClient(server.http_url.removeprefix("http://")) as http,
        triton_grpc.InferenceServerClient(target) as grpc,
        triton_grpc.InferenceServerClient(target) as streaming,
        asyncio_door(target) as ask_asyncio,
    ):
        yield [
            Door("naiad.client", partial(ask_naiad, server.client())),
            Door(json_door_name(), partial(ask_json, server.http_url)),
            Door("tritonclient.http", partial(ask_triton, triton_http, http)),
            Door("tritonclient.grpc", partial(ask_triton, triton_grpc, grpc)),
            Door("tritonclient.grpc, asyncio", ask_asyncio),
            Door("tritonclient.grpc, stream", stream_door(streaming)),
        ]


def ask_naiad(client: Client, model: str, questions: Sequence[Tensors]) -> list[Tensors]:
    """All at once: pipelined."""
    futures = [client.submit(model, question) for question in questions]
    answers = [future.result() for future in futures]
    return [{name: answer[name] for name in answer.names} for answer in answers]


# --- JSON over HTTP ---


def json_door_name() -> str:
    return "curl" if shutil.which("curl") else "urllib (no curl here)"


def ask_json(url: str, model: str, questions: Sequence[Tensors]) -> list[Tensors]:
    """One after the other, as a person with curl would; Python's urllib sends the same without."""
    post = post_by_curl if shutil.which("curl") else post_by_urllib
    bodies = (json_question(question) for question in questions)
    return [json_answer(post(infer_url(url, model), body)) for body in bodies]


def infer_url(url: str, model: str) -> str:
    return f"{url}/v2/models/{model}/infer"


def curl_line(url: str, model: str, question: Tensors) -> str:
    """What a person would type."""
    return f"curl {infer_url(url, model)} -d {shlex.quote(json_question(question))}"


def json_question(question: Tensors) -> str:
    inputs = [
        {
            "name": name,
            "datatype": np_to_triton_dtype(array.dtype),
            "shape": array.shape,
            "data": array.ravel().tolist(),
        }
        for name, array in question.items()
    ]
    return json.dumps({"inputs": inputs}, separators=(",", ":"))


def json_answer(text: bytes) -> Tensors:
    answer = json.loads(text)
    if "outputs" not in answer:
        raise DoorFailed(answer.get("error", text.decode()))
    return {output["name"]: json_tensor(output) for output in answer["outputs"]}


def json_tensor(output: dict[str, Any]) -> NDArray[Any]:
    is_text = output["datatype"] == "BYTES"
    data = [item.encode() for item in output["data"]] if is_text else output["data"]
    return np.array(data, triton_to_np_dtype(output["datatype"])).reshape(output["shape"])


def post_by_curl(url: str, body: str) -> bytes:
    run = subprocess.run(
        [*CURL, url, "--data-binary", "@-"], input=body.encode(), capture_output=True, check=False
    )
    if run.returncode != 0:
        raise DoorFailed(run.stderr.decode(errors="replace").strip())
    return run.stdout


def post_by_urllib(url: str, body: str) -> bytes:
    try:
        with urllib.request.urlopen(url, body.encode(), ANSWER_SECONDS_MAX) as answer:
            return bytes(answer.read())
    except urllib.error.HTTPError as fault:
        return fault.read()


# --- Triton's clients: both have the same classes ---


def triton_inputs(triton: Any, question: Tensors) -> list[Any]:
    return [
        triton.InferInput(
            name, list(array.shape), np_to_triton_dtype(array.dtype)
        ).set_data_from_numpy(array)
        for name, array in question.items()
    ]


def triton_outputs(answer: Any) -> Tensors:
    response = answer.get_response()
    outputs = response["outputs"] if isinstance(response, dict) else response.outputs
    names = [output["name"] if isinstance(output, dict) else output.name for output in outputs]
    return {name: answer.as_numpy(name) for name in names}


def ask_triton(triton: Any, client: Any, model: str, questions: Sequence[Tensors]) -> list[Tensors]:
    """One after the other."""
    answers = (client.infer(model, triton_inputs(triton, question)) for question in questions)
    return [triton_outputs(answer) for answer in answers]


@contextmanager
def asyncio_door(target: str) -> Iterator[Ask]:
    """All at once, each a call of its own."""

    async def connect() -> Any:
        return triton_grpc_aio.InferenceServerClient(target)

    async def ask_all(model: str, questions: Sequence[Tensors]) -> list[Any]:
        calls = [client.infer(model, triton_inputs(triton_grpc, one)) for one in questions]
        return await asyncio.gather(*calls)

    def ask(model: str, questions: Sequence[Tensors]) -> list[Tensors]:
        return [triton_outputs(answer) for answer in runner.run(ask_all(model, questions))]

    with asyncio.Runner() as runner:
        client = runner.run(connect())
        try:
            yield ask
        finally:
            runner.run(client.close())


def stream_door(client: Any) -> Ask:
    """All at once in one stream; its answers come in the order of the questions."""
    arrived: queue.SimpleQueue[tuple[Any, Any]] = queue.SimpleQueue()
    client.start_stream(lambda result, error: arrived.put((result, error)))

    def ask(model: str, questions: Sequence[Tensors]) -> list[Tensors]:
        for question in questions:
            client.async_stream_infer(model, triton_inputs(triton_grpc, question))
        return [next_in_stream(arrived) for _ in questions]

    return ask


def next_in_stream(arrived: queue.SimpleQueue[tuple[Any, Any]]) -> Tensors:
    try:
        answer, fault = arrived.get(timeout=ANSWER_SECONDS_MAX)
    except queue.Empty:
        raise DoorFailed(f"the stream gave no answer within {ANSWER_SECONDS_MAX} s") from None
    if fault is not None:
        raise DoorFailed(str(fault))
    return triton_outputs(answer)
