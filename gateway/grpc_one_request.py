"""gRPC calls with one message: of any method by a task, and inference without one.

Owns the message until its client has sent all; then the work begins. Never holds a client up: what
comes is taken at once, and a second message ends the call.
"""

from __future__ import annotations

from functools import partial

from naiad.client.requests import Buffer
from naiad.gateway.calls import InferAnswer, InferCall
from naiad.gateway.grpc_call import WorkingCall
from naiad.gateway.grpc_codec.answers import encoded_answer
from naiad.gateway.grpc_codec.messages import MessageFault
from naiad.gateway.grpc_codec.wire import is_light
from naiad.gateway.grpc_service import call_of
from naiad.gateway.pending import Outcome, Pending
from naiad.protocol.errors import NaiadError


class OneRequestCall(WorkingCall):
    """A call with one message. Its method's `one` is given it and sends what it likes."""

    _request: tuple[bool, Buffer] | None = None

    def feed(self, data: memoryview, *, is_ended: bool) -> None:
        self._door.http2.taken(self.stream, len(data))
        super().feed(data, is_ended=is_ended)

    def _message(self, is_compressed: bool, content: Buffer) -> None:
        if self._request is not None:
            raise MessageFault("a second message in a call that has one")
        self._request = (is_compressed, content)

    def _ended(self) -> None:
        if self._request is None:
            raise MessageFault("a call without a message")
        self._begin(*self._request)
        self._request = None

    def _begin(self, is_compressed: bool, content: Buffer) -> None:
        self.start(partial(self._work, is_compressed, content))

    async def _work(self, is_compressed: bool, content: Buffer) -> None:
        answer = self._method.one
        assert answer is not None, "a method of calls with one message"
        await answer(await self._plain(is_compressed, content), self)


class InferenceCall(OneRequestCall):
    """ModelInfer: without a task, which would cost as much as the rest of it."""

    _pending: Pending | None = None

    def _begin(self, is_compressed: bool, content: Buffer) -> None:
        try:
            if is_compressed or not is_light(content):
                self.start(partial(self._work, is_compressed, content))
                return
            self._door.phase.check_open()
            call: InferCall = call_of(content, self.caller)
            self._pending = self._door.plane.start(call, self._answered)
        except NaiadError as fault:
            self.fail(fault)

    def _answered(self, outcome: Outcome) -> None:
        if self.is_done:
            return
        if isinstance(outcome, InferAnswer):
            self.send(*encoded_answer(outcome))
            self.succeed()
        else:
            self.fail(outcome)

    def _stop(self) -> None:
        super()._stop()
        if self._pending is not None:
            self._pending.cancel()
            self._pending = None
