"""An inference request that was filled into a template, until its answer: the shortest way.

Is what the client library calls back, and what the connection cancels.
"""

from __future__ import annotations

from typing import Final

from naiad.client.requests import Prepared
from naiad.client.results import InferResult
from naiad.gateway.calls import ANY_VERSION, AnswerOutput, InferAnswer, InferCall
from naiad.gateway.http_answer import answer_body
from naiad.gateway.http_connection import HttpConnection
from naiad.gateway.http_message import Response, error_response
from naiad.gateway.http_status import from_fault
from naiad.gateway.http_template import Template
from naiad.gateway.json_tensors import to_json
from naiad.gateway.plane import Plane
from naiad.protocol.errors import NaiadError

_OK: Final = 200


class QuickCall:
    """`start` it once."""

    __slots__ = ("_connection", "_id", "_is_over", "_label", "_plane", "_template")

    def __init__(
        self, plane: Plane, connection: HttpConnection, template: Template, label: str
    ) -> None:
        self._plane = plane
        self._connection = connection
        self._template = template
        self._label = label
        self._is_over = False
        self._id = 0

    def start(self, parts: Prepared) -> None:
        """Raises NaiadError when it is refused at once."""
        self._id = self._plane.submit(parts, self)

    def cancel(self) -> None:
        if not self._is_over:
            self._end()
            self._plane.client.abandon(self._id)

    def _end(self) -> None:
        self._is_over = True
        self._plane.ended()

    def done(self) -> bool:
        return self._is_over

    def set_result(self, result: InferResult, /) -> None:
        self._end()
        try:
            response = self._response(result)
        except NaiadError as fault:
            response = error_response(from_fault(fault))
        self._connection.reply(response)

    def set_exception(self, fault: NaiadError, /) -> None:
        self._end()
        self._connection.reply(error_response(from_fault(fault)))

    def _response(self, result: InferResult) -> Response:
        rows = result.raw()
        if result.parameters or not all(row[3] for row in rows):
            return self._unusual(result)
        text = self._template.answered(result.version, rows, self._label)
        if len(rows) == 1:
            return Response(_OK, [text, rows[0][3] or b""], len(text))
        return Response(_OK, [text, *[row[3] or b"" for row in rows]], len(text))

    def _unusual(self, result: InferResult) -> Response:
        """Empty outputs, and parameters of the model's own."""
        call = InferCall(
            self._template.model, ANY_VERSION, self._label, (), is_binary_by_default=True
        )
        outputs = tuple([AnswerOutput._make(row) for row in result.raw()])
        answer = InferAnswer(call.model, result.version, call.id, outputs, result.parameters)
        body = answer_body(call, answer, to_json)
        return Response(_OK, body.parts, body.json_length)
