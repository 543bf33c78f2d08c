"""What each user of a session has in flight: requests, and bytes of their tensors.

A user is an accounting key, which its client answers for; requests without one have no user. Owns
the counts while something is in flight: who has nothing leaves nothing behind. Keys are told to
nobody and written nowhere.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from naiad.protocol.errors import Code, NaiadError, Unavailable

if TYPE_CHECKING:
    from naiad.broker.core.job import Job
    from naiad.protocol.messages import InferRequest


class Account:
    """One user of one session."""

    __slots__ = ("bytes", "key", "requests")

    def __init__(self, key: str) -> None:
        self.key = key
        self.requests = 0
        self.bytes = 0


class Accounts:
    """All users of one session that have something in flight."""

    __slots__ = ("_by_key",)

    def __init__(self) -> None:
        self._by_key: dict[str, Account] = {}

    def __len__(self) -> int:
        return len(self._by_key)

    def fault(self, request: InferRequest, requests_max: int, bytes_max: int) -> NaiadError | None:
        """Why its user may not have this request in flight as well, or None; 0 means no limit."""
        account = self._by_key.get(request.accounting_key)
        requests = 0 if account is None else account.requests
        if requests_max and requests >= requests_max:
            return Unavailable(
                f"user budget: {requests} requests of this accounting key are in flight, at most"
                f" {requests_max} (--user-requests-max); wait for answers",
                code=Code.BUDGET_EXCEEDED,
            )
        if not bytes_max:
            return None
        size = described_bytes(request)
        if size > bytes_max:
            return Unavailable(
                f"user budget: this request has {size} bytes of tensors, at most {bytes_max} of one"
                " accounting key may be in flight (--user-bytes-max); send smaller ones",
                code=Code.BUDGET_EXCEEDED,
                retryable=False,
            )
        held = 0 if account is None else account.bytes
        if held + size > bytes_max:
            return Unavailable(
                f"user budget: {held} bytes of this accounting key are in flight, {size} more are"
                f" over the limit of {bytes_max} (--user-bytes-max); wait for answers",
                code=Code.BUDGET_EXCEEDED,
            )
        return None

    def charge(self, job: Job) -> None:
        """It is in flight from now on."""
        request = job.request
        key = request.accounting_key
        account = self._by_key.get(key)
        if account is None:
            account = self._by_key[key] = Account(key)
        account.requests += 1
        account.bytes += described_bytes(request)
        job.account = account

    def give_back(self, job: Job) -> None:
        """It is in flight no more."""
        account = job.account
        if account is None:
            return
        job.account = None
        account.requests -= 1
        account.bytes -= described_bytes(job.request)
        if not account.requests:
            del self._by_key[account.key]

    def check_invariants(self, jobs: list[Job]) -> None:
        keyed = [job for job in jobs if job.request.accounting_key]
        assert sum(one.requests for one in self._by_key.values()) == len(keyed)
        for key, account in self._by_key.items():
            own = [job for job in keyed if job.request.accounting_key == key]
            assert own, key
            assert all(job.account is account for job in own), key
            assert account.requests == len(own), (account.requests, len(own))
            assert account.bytes == sum(described_bytes(job.request) for job in own), key


def described_bytes(request: InferRequest) -> int:
    """Of its inputs, inline or in shared memory, and of the places it names for outputs."""
    size = 0
    for tensor in request.inputs:
        size += tensor[6]
    for output in request.outputs:
        size += output[4]
    return size
