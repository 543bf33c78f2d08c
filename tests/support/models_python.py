"""Sources of small model.py files: right ones, slow ones, and wrong ones of every kind."""

from __future__ import annotations

import textwrap


def python_model(execute: str, *, head: str = "", more: str = "") -> str:
    """A TritonPythonModel whose execute has this body; `requests` is its argument.

    `head` goes above the class, `more` into it (further methods).
    """
    body = textwrap.indent(textwrap.dedent(execute).strip("\n"), " " * 8)
    methods = textwrap.indent(textwrap.dedent(more).strip("\n"), " " * 4)
    return (
        "import os, signal, time\n"
        "import numpy as np\n"
        "import triton_python_backend_utils as pb_utils\n"
        f"{textwrap.dedent(head)}\n\n"
        "def output(array, name='OUTPUT0'):\n"
        "    return pb_utils.InferenceResponse([pb_utils.Tensor(name, array)])\n\n\n"
        "def array_of(request, name='INPUT0'):\n"
        "    return pb_utils.get_input_tensor_by_name(request, name).as_numpy()\n\n\n"
        "class TritonPythonModel:\n"
        f"    def execute(self, requests):\n{body}\n\n{methods}\n"
    )


ECHO = python_model("return [output(array_of(request)) for request in requests]")

ADD_SUB = python_model(
    """
    responses = []
    for request in requests:
        a, b = array_of(request), array_of(request, "INPUT1")
        responses.append(pb_utils.InferenceResponse([
            pb_utils.Tensor("OUTPUT0", a + b), pb_utils.Tensor("OUTPUT1", a - b),
        ]))
    return responses
    """
)

RAISES_ON_NEGATIVE = python_model(
    """
    for request in requests:
        if (array_of(request) < 0).any():
            raise ValueError("a negative number")
    return [output(array_of(request)) for request in requests]
    """
)
"""One bad request makes the whole call fail."""

ABORTS_AT_EXIT = python_model(
    "return [output(array_of(request)) for request in requests]",
    head="""
    import atexit
    atexit.register(os.abort)
    """,
)
"""As libraries do whose threads outlive the interpreter."""

HANGS_IN_INITIALIZE = python_model(
    "return [output(array_of(request)) for request in requests]",
    more="""
    def initialize(self, args):
        while os.path.exists(args["model_repository"] + ".hang"):
            time.sleep(0.01)
    """,
)
"""For as long as there is a file `<model>.hang` beside the model's directory."""

HOLDS = python_model(
    """
    while os.path.exists(self.hold):
        time.sleep(0.005)
    return [output(array_of(request)) for request in requests]
    """,
    more="""
    def initialize(self, args):
        self.hold = args["model_repository"] + ".hold"
    """,
)
"""Executes for as long as there is a file `<model>.hold` beside the model's directory."""

HANGS_IN_FINALIZE = python_model(
    "return [output(array_of(request)) for request in requests]",
    more="""
    def initialize(self, args):
        self.directory = args["model_repository"]

    def finalize(self):
        open(os.path.join(self.directory, f"finalizing.{os.getpid()}"), "w").close()
        while True:
            time.sleep(0.01)
    """,
)
"""After it said so by a file `finalizing.<pid>` in the model's directory."""

TAKES_ITS_TIME_TO_FINALIZE = python_model(
    "return [output(array_of(request)) for request in requests]",
    more="""
    def initialize(self, args):
        self.directory = args["model_repository"]

    def finalize(self):
        time.sleep(0.6)
        open(self.directory + ".finalized", "a").write("x")
    """,
)
"""And then adds a letter to the file `<model>.finalized` beside the model's directory."""

CONTRADICTS_ITS_CONFIG = python_model(
    "return [output(array_of(request)) for request in requests]",
    more="""
    @staticmethod
    def auto_complete_config(config):
        config.add_input({"name": "INPUT0", "data_type": "TYPE_INT64", "dims": [3]})
        return config
    """,
)
