"""Clients do not survive fork(): the child shares their sockets and none of libzmq's threads.

Owns the list of living clients, and tells each of them in the child, so that every later use there
raises one clear error instead of hanging or stealing the parent's answers.
"""

from __future__ import annotations

import os
import weakref
from typing import Final, Protocol

from naiad.protocol.errors import Code, RequestError


class Forkable(Protocol):
    def after_fork(self, fault: RequestError) -> None:
        """In the child: refuse every use from now on with this error; touch no socket."""


_living: Final[weakref.WeakSet[Forkable]] = weakref.WeakSet()


def remember(client: Forkable) -> None:
    _living.add(client)


def _in_child() -> None:
    for client in list(_living):
        fault = RequestError(
            "this client was made before fork() and cannot be used in the child process; "
            "make a new client here (or use the spawn start method)",
            code=Code.UNSUPPORTED,
        )
        client.after_fork(fault)
    _living.clear()


os.register_at_fork(after_in_child=_in_child)
