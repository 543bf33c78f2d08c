"""The Python backend: model.py files as Triton's users write them."""

import json
import logging
import re
import sys
import textwrap
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from naiad.protocol.errors import Code, ModelError, RequestError
from naiad.worker.backends.python import PythonBackend
from support.backend_requests import Served, instance

ROOT = Path(__file__).resolve().parents[3]
IO = {
    "max_batch_size": 4,
    "input": [{"name": "IN", "data_type": "TYPE_FP32", "dims": [2]}],
    "output": [{"name": "OUT", "data_type": "TYPE_FP32", "dims": [2]}],
}
ECHO = """
    def execute(self, requests):
        return [
            pb_utils.InferenceResponse([pb_utils.Tensor("OUT", request.inputs()[0].as_numpy())])
            for request in requests
        ]
"""


@pytest.fixture(autouse=True)
def interpreter_as_before() -> Iterator[None]:
    """A worker serves one model and exits; here many follow each other in one process."""
    path, modules = list(sys.path), set(sys.modules)
    log = logging.getLogger("naiad.model")
    yield
    sys.path[:] = path
    for name in set(sys.modules) - modules:
        del sys.modules[name]
    for handler in list(log.handlers):
        log.removeHandler(handler)
    log.setLevel(logging.NOTSET)
    log.propagate = True


class Writer:
    """Writes the class of a model.py into version 1 of a model."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def write(self, *parts: str, head: str = "", name: str = "model.py") -> Path:
        version = self.directory / "1"
        version.mkdir(parents=True, exist_ok=True)
        text = "import triton_python_backend_utils as pb_utils\n" + textwrap.dedent(head)
        body = "\n".join(textwrap.dedent(part) for part in parts)
        indented = textwrap.indent(body, "    ")
        (version / name).write_text(f"{text}\nclass TritonPythonModel:\n{indented}\n")
        return version / name

    def serve(self, *parts: str, config: dict[str, Any] | None = None, **more: Any) -> Served:
        self.write(*parts, **more)
        return Served(PythonBackend(), instance(self.directory, IO if config is None else config))

    def load_fails(self, config: dict[str, Any] | None = None) -> ModelError | RequestError:
        with pytest.raises((ModelError, RequestError)) as caught:
            PythonBackend().load(instance(self.directory, config or IO))
        error = caught.value
        assert isinstance(error, ModelError | RequestError)
        return error


@pytest.fixture
def model(tmp_path: Path) -> Writer:
    return Writer(tmp_path / "m")


def rows(*values: float) -> Any:
    return np.array([values], np.float32)


# ---- loading ----


def test_initialize_gets_texts_only(model: Writer) -> None:
    served = model.serve(
        """
        def initialize(self, args):
            self.args = args
        """,
        ECHO,
    )
    args = served.backend._model.args  # type: ignore[attr-defined]
    config = json.loads(args.pop("model_config"))
    assert config["max_batch_size"] == 4
    assert config["input"][0]["name"] == "IN"
    assert args == {
        "model_instance_kind": "CPU",
        "model_instance_name": "m_0",
        "model_instance_device_id": "0",
        "model_repository": str(model.directory),
        "model_version": "1",
        "model_name": "m",
    }


def test_modules_beside_the_model_can_be_imported(model: Writer) -> None:
    model.write(ECHO)
    (model.directory / "1" / "beside_version.py").write_text("NUMBER = 3\n")
    (model.directory / "beside_model.py").write_text("NUMBER = 4\n")
    head = "import numpy as np\nimport beside_version\nimport beside_model\n"
    body = """
        def execute(self, requests):
            product = beside_version.NUMBER * beside_model.NUMBER
            array = np.full((1, 2), product, np.float32)
            return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", array)]) for _ in requests]
    """
    served = model.serve(body, head=head)
    assert served.ask({"IN": rows(0, 0)})["OUT"].tolist() == [[12, 12]]
    assert sys.path[-2:] == [str(model.directory / "1"), str(model.directory)]


def test_the_file_may_have_another_name(model: Writer) -> None:
    config = {**IO, "default_model_filename": "other.py"}
    served = model.serve(ECHO, config=config, name="other.py")
    assert served.ask({"IN": rows(1, 2)})["OUT"].tolist() == [[1, 2]]


def test_a_missing_file_and_a_missing_class_are_load_errors(model: Writer) -> None:
    path = model.write(ECHO, name="main.py")
    assert "there: main.py" in model.load_fails().message
    for text in ("x = 1\n", "class TritonPythonModel:\n    pass\n"):
        (path.parent / "model.py").write_text(text)
        error = model.load_fails()
        assert error.code == Code.LOAD_FAILED
        assert "class TritonPythonModel with a method execute" in error.message


def test_what_the_models_import_raises_comes_through(model: Writer) -> None:
    model.write(ECHO, head="import a_package_nobody_has\n")
    before = sys.modules.get("model")
    with pytest.raises(ModuleNotFoundError, match="a_package_nobody_has") as caught:
        PythonBackend().load(instance(model.directory, IO))
    assert str(caught.traceback[-1].path).endswith("/1/model.py")
    assert sys.modules.get("model") is before


def test_an_import_that_aborts_at_exit_does_not_fail_the_model(model: Writer) -> None:
    served = model.serve(ECHO, head="import atexit, os\natexit.register(os.abort)\n")
    import atexit
    import os

    atexit.unregister(os.abort)
    assert served.ask({"IN": rows(1, 2)})["OUT"].tolist() == [[1, 2]]
    served.backend.unload()


def test_a_config_is_completed_before_initialize(model: Writer) -> None:
    served = model.serve(
        """
        @staticmethod
        def auto_complete_config(config):
            config.set_max_batch_size(2)
            config.set_dynamic_batching()
            config.add_input({"name": "IN", "data_type": "TYPE_FP32", "dims": [2]})
            config.add_output({"name": "OUT", "data_type": "TYPE_FP32", "dims": [2]})
            return config

        def initialize(self, args):
            import json

            self.seen = json.loads(args["model_config"])
        """,
        ECHO,
        config={},
    )
    assert served.config.max_batch_size == 2
    assert served.config.dynamic_batching is not None
    assert served.config.inputs[0].dims == (2,)
    seen = served.backend._model.seen  # type: ignore[attr-defined]
    assert seen == served.config.raw
    assert seen["dynamic_batching"]["preferred_batch_size"] == [2]
    assert seen["input"][0]["format"] == "FORMAT_NONE"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ('["input"] = [{"name": "IN", "data_type": "TYPE_FP32", "dims": [0]}]', "expected 1 or"),
        ('["input"] = [{"name": "IN", "data_type": "TYPE_FP3", "dims": [1]}]', "TYPE_FP3"),
        ('["dynamic_batching"] = {"preferred_batch_size": [8]}', "preferred_batch_size[0]"),
    ],
)
def test_a_completion_is_judged_as_a_written_config(model: Writer, change: str, said: str) -> None:
    model.write(
        f"""
        @staticmethod
        def auto_complete_config(config):
            config.as_dict(){change}
            return config
        """,
        ECHO,
    )
    with pytest.raises((ModelError, RequestError), match=re.escape(said)):
        PythonBackend().load(instance(model.directory, IO))


def test_a_model_completes_nothing_where_that_is_switched_off(model: Writer) -> None:
    model.write("@staticmethod\ndef auto_complete_config(config): raise KeyError('asked')", ECHO)
    given = replace(instance(model.directory, IO), auto_complete=False)
    backend = PythonBackend()
    assert backend.load(given) is given.config
    backend.unload()


def test_a_completion_that_returns_nothing_or_contradicts_is_a_load_error(model: Writer) -> None:
    model.write("@staticmethod\ndef auto_complete_config(config): pass", ECHO)
    assert "must return the ModelConfig" in model.load_fails().message
    body = "@staticmethod\ndef auto_complete_config(config): config.set_max_batch_size(1)"
    model.write(body, ECHO)
    with pytest.raises(ValueError, match="max_batch_size 4"):
        PythonBackend().load(instance(model.directory, IO))


def test_a_model_that_turns_out_to_be_decoupled_is_refused_by_name(model: Writer) -> None:
    model.write(
        """
        @staticmethod
        def auto_complete_config(config):
            config.set_model_transaction_policy({"decoupled": True})
            return config
        """,
        ECHO,
    )
    error = model.load_fails()
    assert error.code == Code.UNSUPPORTED
    assert "not in this release" in error.message


# ---- executing ----


def test_requests_come_with_the_batch_dimension_and_are_not_joined(model: Writer) -> None:
    served = model.serve(
        """
        def execute(self, requests):
            self.shapes = [request.inputs()[0].shape() for request in requests]
            return self.echo(requests)
        """,
        ECHO.replace("execute", "echo"),
    )
    requests = [served.request({"IN": np.zeros((n, 2), np.float32)}) for n in (1, 3)]
    assert [answer["OUT"].shape for answer in served.answers(*requests)] == [(1, 2), (3, 2)]
    assert served.backend._model.shapes == [[1, 2], [3, 2]]  # type: ignore[attr-defined]


def test_inputs_may_be_changed_in_place(model: Writer) -> None:
    body = """
        def execute(self, requests):
            responses = []
            for request in requests:
                array = request.inputs()[0].as_numpy()
                array *= 2
                responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", array)]))
            return responses
    """
    served = model.serve(body)
    request = served.request({"IN": rows(1, 2)})
    for _ in range(2):
        assert served.answers(request)[0]["OUT"].tolist() == [[2, 4]]
    views = {**IO, "parameters": {"READ_ONLY_INPUTS": {"string_value": "yes"}}}
    served = model.serve(body, config=views)
    with pytest.raises(ValueError, match="read-only"):
        served.ask({"IN": rows(1, 2)})


def test_a_coroutine_is_run_to_its_end(model: Writer) -> None:
    served = model.serve(
        """
        async def execute(self, requests):
            import asyncio

            async def one(request):
                await asyncio.sleep(0)
                array = request.inputs()[0].as_numpy()
                return pb_utils.InferenceResponse([pb_utils.Tensor("OUT", array)])

            return list(await asyncio.gather(*[one(request) for request in requests]))

        async def finalize(self):
            self.finalized = True
        """
    )
    requests = [served.request({"IN": rows(n, n)}) for n in (1, 2)]
    for _ in range(2):
        found = [answer["OUT"].tolist() for answer in served.answers(*requests)]
        assert found == [[[1, 1]], [[2, 2]]]
    user_model = served.backend._model  # type: ignore[attr-defined]
    served.backend.unload()
    assert user_model.finalized


@pytest.mark.parametrize(
    ("returned", "text"),
    [
        ("None", "Expected a list in the execute return, found type '<class 'NoneType'>'."),
        ("tuple(requests)", "found type '<class 'tuple'>'."),
        ("[]", "InferenceRequest(s) size is:2, and InferenceResponse(s) size is:0"),
    ],
)
def test_a_wrong_return_fails_with_tritons_text(model: Writer, returned: str, text: str) -> None:
    served = model.serve(f"def execute(self, requests):\n    return {returned}\n")
    requests = [served.request({"IN": rows(1, 2)}) for _ in range(2)]
    with pytest.raises(ModelError) as caught:
        served.answers(*requests)
    assert text in caught.value.message
    assert caught.value.code == Code.MODEL_OUTPUT_INVALID


def test_a_wrong_response_and_an_error_fail_their_request_alone(model: Writer) -> None:
    served = model.serve(
        """
        def execute(self, requests):
            error = pb_utils.TritonError("no such row", pb_utils.TritonError.NOT_FOUND)
            array = requests[2].inputs()[0].as_numpy()
            return [
                None,
                pb_utils.InferenceResponse(error=error),
                pb_utils.InferenceResponse([pb_utils.Tensor("OUT", array)]),
            ]
        """
    )
    requests = [served.request({"IN": rows(n, n)}) for n in range(3)]
    first, second, third = served.answers(*requests)
    assert "Expected an 'InferenceResponse' object" in first.message
    assert (second.code, second.message) == (Code.NOT_FOUND, "no such row")
    assert third["OUT"].tolist() == [[2, 2]]


def test_some_answers_may_be_sent_and_others_returned_but_none_both(model: Writer) -> None:
    served = model.serve(
        """
        def execute(self, requests):
            responses = [
                pb_utils.InferenceResponse([pb_utils.Tensor("OUT", one.inputs()[0].as_numpy())])
                for one in requests
            ]
            for index in (0, 2):
                sender = requests[index].get_response_sender()
                sender.send(responses[index], flags=1)
            requests[1].get_response_sender()
            return [None, responses[1], responses[2]]
        """
    )
    requests = [served.request({"IN": rows(n, n)}) for n in range(3)]
    first, second, third = served.answers(*requests)
    assert [one["OUT"].tolist() for one in (first, second)] == [[[0, 0]], [[1, 1]]]
    assert "sent a response and returned another one" in third.message


def test_returning_none_needs_a_sender_for_every_request(model: Writer) -> None:
    served = model.serve(
        """
        def execute(self, requests):
            self.sender = requests[0].get_response_sender()
            array = requests[0].inputs()[0].as_numpy()
            output = pb_utils.Tensor("OUT", array)
            self.sender.send(pb_utils.InferenceResponse([output]), flags=1)
        """
    )
    (answer,) = served.answers(served.request({"IN": rows(1, 2)}))
    assert answer["OUT"].tolist() == [[1, 2]]
    with pytest.raises(ModelError, match="Expected a list in the execute return"):
        served.answers(*[served.request({"IN": rows(1, 2)}) for _ in range(2)])


def test_a_sender_that_outlives_a_failed_execute_is_closed(model: Writer) -> None:
    served = model.serve(
        """
        def execute(self, requests):
            self.sender = requests[0].get_response_sender()
            raise KeyError("row")
        """
    )
    with pytest.raises(KeyError):
        served.answers(served.request({"IN": rows(1, 2)}))
    with pytest.raises(Exception, match="Response sender has been closed"):
        served.backend._model.sender.send(flags=1)  # type: ignore[attr-defined]


def test_an_exception_comes_through_with_the_models_own_line(model: Writer) -> None:
    served = model.serve("def execute(self, requests):\n    raise KeyError('row')\n")
    with pytest.raises(KeyError, match="row") as caught:
        served.ask({"IN": rows(1, 2)})
    last = caught.traceback[-1]
    assert last.path == model.directory / "1" / "model.py"
    assert "raise KeyError" in str(last.statement)


def test_is_ready_asks_the_model(model: Writer) -> None:
    served = model.serve(
        """
        def initialize(self, args):
            self.ready = False

        async def is_ready(self):
            return self.ready
        """,
        ECHO,
    )
    backend: Any = served.backend
    assert not backend.is_ready()
    backend._model.ready = True
    assert backend.is_ready()
    backend.unload()
    assert model.serve(ECHO).backend.is_ready()  # type: ignore[attr-defined]


def test_a_failing_finalize_still_lets_the_model_go(model: Writer) -> None:
    served = model.serve("def finalize(self):\n    raise OSError('busy')\n", ECHO)
    with pytest.raises(OSError, match="busy"):
        served.backend.unload()
    assert served.backend._model is None  # type: ignore[attr-defined]


def test_the_logger_writes_to_stderr(model: Writer, capfd: pytest.CaptureFixture[str]) -> None:
    model.serve(
        """
        def initialize(self, args):
            pb_utils.Logger.log_info("weights are there")
            pb_utils.Logger.log_verbose("not shown")
        """,
        ECHO,
    )
    assert capfd.readouterr().err == "INFO weights are there\n"


def test_the_examples_of_the_repository() -> None:
    config = {
        "max_batch_size": 8,
        "input": [
            {"name": name, "data_type": "TYPE_FP32", "dims": [16]} for name in ("INPUT0", "INPUT1")
        ],
        "output": [
            {"name": name, "data_type": "TYPE_FP32", "dims": [16]}
            for name in ("OUTPUT0", "OUTPUT1")
        ],
    }
    served = Served(PythonBackend(), instance(ROOT / "model_repository" / "add_sub", config))
    first = np.arange(16, dtype=np.float32).reshape(1, 16)
    answer = served.ask({"INPUT0": first, "INPUT1": 2 * first})
    assert np.array_equal(answer["OUTPUT0"], 3 * first)
    assert np.array_equal(answer["OUTPUT1"], -first)
