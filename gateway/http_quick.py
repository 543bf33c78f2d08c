"""Inference requests that are filled into templates, until their answers: the shortest way.

Owns the templates of a process. A QuickCall is what the client library calls back, and what the
connection cancels.
"""

from __future__ import annotations

from typing import Final

from naiad.client.requests import Prepared
from naiad.client.results import InferResult
from naiad.gateway.calls import ANY_VERSION, AnswerOutput, InferAnswer, InferCall
from naiad.gateway.client_form import prepared
from naiad.gateway.error_text import over_budget
from naiad.gateway.http_answer import JSON_TYPE, answer_body
from naiad.gateway.http_connection import HttpConnection
from naiad.gateway.http_message import HttpRequest, Response, error_response
from naiad.gateway.http_request import uses_regions
from naiad.gateway.http_status import from_fault
from naiad.gateway.http_template import (
    BODY_BYTES_MAX,
    TEMPLATES_MAX,
    TEXT_BYTES_MAX,
    Template,
    split_label,
    template_of,
)
from naiad.gateway.json_tensors import to_json
from naiad.gateway.pending import SERVER_FULL
from naiad.gateway.plane import Plane
from naiad.gateway.users import User
from naiad.protocol.errors import NaiadError

TEMPLATE_BYTES_MAX: Final = TEXT_BYTES_MAX + BODY_BYTES_MAX

_OK: Final = 200
_make: Final = tuple.__new__


class QuickCalls:
    """`begin` each request whose head says where its JSON ends; `learn` from those it leaves."""

    def __init__(self, plane: Plane) -> None:
        self._plane = plane
        self._templates: dict[tuple[bytes, bytes], Template] = {}

    def begin(
        self, request: HttpRequest, json_bytes: int, user: User, connection: HttpConnection
    ) -> QuickCall | None:
        """None when there is no template of its text. Raises NaiadError when it is refused."""
        body = request.body
        if type(body) is not bytes or not json_bytes <= len(body) <= TEMPLATE_BYTES_MAX:
            return None
        label, text = split_label(body[:json_bytes])
        template = self._templates.get((request.head.path, text))
        if template is None or template.data_bytes != len(body) - json_bytes:
            return None
        quick = QuickCall(self._plane, connection, template, label)
        quick.start(template.filled(body, json_bytes, label, user))
        return quick

    def learn(self, request: HttpRequest, json_bytes: int, call: InferCall) -> None:
        """Make a template of this request's text for those that follow, if that is possible."""
        body = request.body
        if type(body) is not bytes or not json_bytes <= len(body) <= TEMPLATE_BYTES_MAX:
            return
        label, text = split_label(body[:json_bytes])
        if len(text) > TEXT_BYTES_MAX or call.id != label or uses_regions(call):
            return
        template = template_of(call._replace(id=""), prepared(self._plane.client, call, {}))
        if template is not None:
            if len(self._templates) >= TEMPLATES_MAX:
                self._templates.clear()
            self._templates[(request.head.path, text)] = template


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
        """Raises NaiadError when it is refused at once: it cannot be sent, or there is no room."""
        plane = self._plane
        plane.calls.check_room()
        self._id = plane.client.submit(parts, self)
        if not self._id:
            raise over_budget(SERVER_FULL)
        plane.calls.begun()

    def cancel(self) -> None:
        if not self._is_over:
            self._end()
            self._plane.client.abandon(self._id)

    def _end(self) -> None:
        self._is_over = True
        self._plane.calls.ended()

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
        answer = result.answer
        if answer[6] or not all(row[3] for row in rows):
            return self._unusual(result)
        text = self._template.answered(answer[2], rows, self._label)
        parts = [text, *[row[3] or b"" for row in rows]]
        return _make(Response, (_OK, parts, len(text), JSON_TYPE, ()))

    def _unusual(self, result: InferResult) -> Response:
        """Empty outputs, and parameters of the model's own."""
        call = InferCall(
            self._template.model, ANY_VERSION, self._label, (), is_binary_by_default=True
        )
        outputs = tuple([AnswerOutput._make(row) for row in result.raw()])
        answer = InferAnswer(call.model, result.version, call.id, outputs, result.parameters)
        body = answer_body(call, answer, to_json)
        return Response(_OK, body.parts, body.json_length)
