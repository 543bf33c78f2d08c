"""What a simulated worker does with one request: read its input, echo it where the client asked.

Checks that the bytes are the request's own and that the memory belongs to it at this moment.
"""

from __future__ import annotations

from random import Random

from naiad.protocol import messages as m
from naiad.protocol.errors import Code
from support.simulated_arena import Arena
from support.simulated_ledger import Ledger, Violation, content, token_of

CANCELLED = (str(Code.CANCELLED), "cancelled before it was executed", False)
RAISED = (str(Code.MODEL_ERROR), "the model raised", False)
Key = tuple[int, int]
"""(session, request id)."""
Regions = dict[int, m.Region]
Received = tuple[m.Batch, list[bytes], Regions]


class Execution:
    """The model of one worker, `who` for people."""

    def __init__(self, ledger: Ledger, arena: Arena, random: Random, who: str) -> None:
        self._ledger = ledger
        self._arena = arena
        self._random = random
        self._who = who

    def result(
        self,
        request: m.BatchRequest,
        received: Received,
        answers: list[bytes],
        skipped: frozenset[Key],
    ) -> m.BatchResult:
        if (request.session, request.id) in skipped:
            return m.BatchResult(CANCELLED, ())
        _, frames, regions = received
        token = self.read(request, frames, regions)
        if self._ledger.records[token].raises:
            return m.BatchResult(RAISED, ())
        source = request.inputs[0]
        output = request.outputs[0] if request.outputs else m.OutputRequest("Y")
        place, where, offset = int(m.Place.INLINE), 0, 0
        if output.place == m.Place.REGION:
            place, where, offset = output.place, output.region, output.offset
            region = self._region(regions, where, token)
            self._ledger.write(region.key, offset, token, self._who)
        elif self._random.random() < 0.3:
            place, where, offset = (
                int(m.Place.LEASE),
                self._arena.region.id,
                self._arena.lend((request.session, request.id), token),
            )
        elif source.size <= 16_384:
            offset = len(answers[0])
            answers[0] += content(token, source.size)
        else:
            answers.append(content(token, source.size))
            where = len(answers) - 1
        tensor = m.Tensor("Y", source.datatype, source.shape, place, where, offset, source.size)
        return m.BatchResult(None, (tensor,))

    def _region(self, regions: Regions, ident: int, token: int) -> m.Region:
        found = regions.get(ident)
        if found is None:
            raise Violation(f"{self._who} was never told about region {ident}", token)
        return found

    def read(self, request: m.BatchRequest, frames: list[bytes], regions: Regions) -> int:
        """The token in the request's input, checked against what its label says it must be."""
        token = int(request.label)
        tensor = request.inputs[0]
        if tensor.place == m.Place.REGION:
            region = self._region(regions, tensor.region, token)
            self._ledger.read(region.key, tensor.offset, token, self._who)
            return token
        data = frames[tensor.region][tensor.offset : tensor.offset + tensor.size]
        if token_of(data, tensor.size) != token:
            raise Violation(f"{self._who} got other bytes than those of request {token}", token)
        return token
