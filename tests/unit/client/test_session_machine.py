"""Any order of events: every request is answered exactly once, memory is held exactly as long."""

from __future__ import annotations

import weakref
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from naiad.client.fields import packed
from naiad.client.requests import REGION, InferInput, Prepared, checked
from naiad.client.session import Phase, Session
from naiad.protocol import messages as m
from naiad.protocol.codec import decode, encode
from naiad.protocol.errors import Unavailable


class Memory:
    """What a request keeps alive."""


def prepared(memory: Memory | None) -> Prepared:
    place = 0 if memory is None else REGION
    given = packed(InferInput("x", "UINT8", (4,), b"1234", place, 1, 0, 4))
    return checked(("m", -1, ""), (given,), memory=memory)


class Conversation(RuleBasedStateMachine):
    """The broker here knows requests by id, answers in any order, and may be replaced."""

    def __init__(self) -> None:
        super().__init__()
        self.session = Session(b"s" * 16, role="client", software="test", pid=1)
        self.incarnation = 1
        self.known: dict[int, int] = {}
        self.zombies: set[int] = set()
        self.is_known = False
        self.waiting: set[int] = set()
        self.finished: set[int] = set()
        self.count = 0
        self.memories: dict[int, weakref.ref[Memory]] = {}

    def completed(self, completions: list[Any]) -> None:
        for token, *_ in completions:
            assert token in self.waiting, "answered twice, or nobody waits"
            self.waiting.remove(token)
            self.finished.add(token)

    def deliver(self) -> None:
        for header, *frames in self.session.messages():
            message = decode(header, [len(frame) for frame in frames], m.CLIENT_HEADER_BYTES_MAX)
            if isinstance(message, m.Hello):
                self.is_known = True
            elif isinstance(message, m.Infer):
                for request in message.requests:
                    assert request.attempt > self.known.get(request.id, 0)
                    self.known[request.id] = request.attempt
            elif isinstance(message, m.Cancel):
                for ident in message.ids:
                    if ident in self.known and ident not in self.zombies:
                        self.hear_answer(ident, ("cancelled", "cancelled", False))

    def hear_answer(self, ident: int, error: Any) -> None:
        answer = m.InferAnswer(ident, error, 1, ())
        if error is not None and error[0] in ("timeout", "cancelled"):
            self.zombies.add(ident)
        else:
            del self.known[ident]
        self.completed(self.session.feed(encode(m.Answers(self.incarnation, (answer,))), ()))

    # --- the user ----------------------------------------------------------------------------

    @rule(shared=st.booleans())
    def submit(self, shared: bool) -> None:
        self.count += 1
        memory = Memory() if shared else None
        ident = self.session.submit(prepared(memory), self.count)
        if ident:
            self.waiting.add(self.count)
            if memory is not None:
                self.memories[ident] = weakref.ref(memory)

    @precondition(lambda self: self.waiting)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        token = data.draw(st.sampled_from(sorted(self.waiting)))
        for ident, request in list(self.session.requests.unanswered.items()):
            if request.token == token:
                assert self.session.cancel(ident)
        self.waiting.remove(token)

    # --- the connection ----------------------------------------------------------------------

    @precondition(lambda self: self.session.phase is Phase.OFFLINE)
    @rule(restarted=st.booleans())
    def connect(self, restarted: bool) -> None:
        if restarted:
            self.incarnation += 1
            self.known.clear()
            self.zombies.clear()
            self.is_known = False
        resumed = self.is_known
        self.session.connection_made()
        self.deliver()
        welcome = m.Welcome(self.incarnation, "s", "t", 20, 1 << 20, 1 << 20, resumed)
        self.completed(self.session.feed(encode(welcome), ()))
        self.deliver()

    @precondition(lambda self: self.session.phase is Phase.OPEN)
    @rule()
    def send(self) -> None:
        self.deliver()

    @precondition(lambda self: self.session.phase is Phase.OPEN)
    @rule()
    def lose(self) -> None:
        self.session.disconnected()

    @precondition(lambda self: self.session.phase is Phase.OFFLINE)
    @rule()
    def give_up(self) -> None:
        self.completed(self.session.fail_all(Unavailable("nobody there")))
        assert not self.waiting

    # --- the broker --------------------------------------------------------------------------

    @precondition(
        lambda self: self.session.phase is Phase.OPEN and self.known.keys() - self.zombies
    )
    @rule(data=st.data(), code=st.sampled_from([None, "model_error", "timeout"]))
    def answer(self, data: st.DataObject, code: str | None) -> None:
        ident = data.draw(st.sampled_from(sorted(self.known.keys() - self.zombies)))
        self.hear_answer(ident, None if code is None else (code, "text", False))

    @precondition(lambda self: self.session.phase is Phase.OPEN and self.zombies)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        ident = data.draw(st.sampled_from(sorted(self.zombies)))
        self.zombies.remove(ident)
        self.known.pop(ident, None)
        self.session.feed(encode(m.Released(self.incarnation, (ident,))), ())

    @precondition(lambda self: self.session.phase is Phase.OPEN)
    @rule(ident=st.integers(1, 30))
    def answer_twice(self, ident: int) -> None:
        if ident not in self.session.requests.unanswered:
            answer = m.InferAnswer(ident, None, 1, ())
            message = encode(m.Answers(self.incarnation, (answer,)))
            assert self.session.feed(message, ()) == []

    # --- always ------------------------------------------------------------------------------

    @invariant()
    def consistent(self) -> None:
        self.session.requests.check_invariants()
        tokens = {request.token for request in self.session.requests.unanswered.values()} - {None}
        assert tokens == self.waiting

    @invariant()
    def memory_lives_as_long_as_it_may_be_used(self) -> None:
        """Also what is answered with a timeout; and not a moment longer."""
        session = self.session
        kept = session.requests.unanswered.keys() | session.requests.held.keys()
        kept |= {request.id for request in session.requests.waiting}
        for ident, memory in self.memories.items():
            if ident in self.known:
                assert memory() is not None, "freed while a worker may use it"
            if ident not in kept:
                assert memory() is None, "leaked"


Conversation.TestCase.settings = settings(max_examples=60, stateful_step_count=40)
TestConversation = Conversation.TestCase
