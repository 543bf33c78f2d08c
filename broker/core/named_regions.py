"""Regions registered by name (KServe's system and CUDA shared memory): the server's own.

They share one space of names, live as long as nobody unregisters them, and survive the broker. A
segment is looked at by the shell before it is taken; GPU memory cannot be: the first worker that
opens it finds out.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Protocol

from naiad.broker.core.arguments import number_argument, text_argument
from naiad.broker.core.closings import Closings, Opened
from naiad.broker.core.events import Json, SaveState, SendReply, StatNamedRegion
from naiad.broker.core.sessions import Session
from naiad.broker.core.world import NAMED_REGION_BASE, NamedRegion, World
from naiad.config.faults import listed
from naiad.config.gpus import UUID_CHARS_MAX, uuid_of
from naiad.config.names import printable
from naiad.protocol import messages as m
from naiad.protocol.errors import Code, NaiadError, RequestError, Unavailable
from naiad.shm.cuda.key import HANDLE_BYTES, cuda_region, is_cuda

SYSTEM: Final = "system"
CUDA: Final = "cuda"
_WORDS: Final = {SYSTEM: "system shared memory", CUDA: "CUDA shared memory"}


class Withdraw(Protocol):
    """Takes regions from those who use them (Memory.withdraw)."""

    def __call__(self, sessions: list[Session], numbers: list[int]) -> set[Opened]: ...


class NamedRegions:
    """Registers and forgets them."""

    def __init__(self, world: World, withdraw: Withdraw, closings: Closings) -> None:
        self._world = world
        self._closings = closings
        self._withdraw = withdraw

    def register(self, session: Session, call: int, arguments: m.Parameters) -> None:
        """A POSIX segment, to be looked at first."""
        name = text_argument(arguments, "name")
        key = text_argument(arguments, "key")
        size = number_argument(arguments, "byte_size")
        offset = number_argument(arguments, "offset", 0)
        self._check_free(name)
        if size == 0:
            raise RequestError(
                f"failed to register shared memory region '{name}': invalid args: byte_size 0"
            )
        stat = StatNamedRegion(session.key, call, name, key, offset, size)
        self._world.actions.append(stat)

    def _check_free(self, name: str) -> None:
        if name in self._world.named_regions:
            raise RequestError(
                f"shared memory region '{name}' already in manager", code=Code.ALREADY_EXISTS
            )
        if len(self._world.named_regions) >= self._world.limits.named_regions_max:
            raise Unavailable(
                f"{self._world.limits.named_regions_max} regions are registered by name; unregister"
                " some",
                code=Code.BUDGET_EXCEEDED,
            )

    def stated(
        self,
        session_key: int,
        call: int,
        name: str,
        region: m.Region | None,
        fault: NaiadError | None,
        offset: int,
        size: int,
    ) -> None:
        """The shell looked at the segment of a registration."""
        world = self._world
        try:
            if fault is not None or region is None:
                raise fault or RequestError(f"Unable to open shared memory region: '{name}'")
            self._check_free(name)
            if offset + size > region.size:
                raise RequestError(
                    f"failed to register shared memory region '{name}': invalid args: offset"
                    f" {offset} + byte_size {size} > {region.size}, the size of the object"
                )
            found = self._named(name, region, offset, size)
            world.actions.append(SendReply(session_key, call, None, found))
        except Exception as raised:
            fault = world.blame(raised, "the call region_register")
            world.actions.append(SendReply(session_key, call, fault, None))

    def register_cuda(self, arguments: m.Parameters) -> Json:
        """GPU memory, by its IPC handle in hexadecimal."""
        name = text_argument(arguments, "name")
        handle = text_argument(arguments, "raw_handle")
        size = number_argument(arguments, "byte_size")
        device = number_argument(arguments, "device_id")
        gpus = len(self._world.gpus)
        if device >= gpus:
            raise no_gpus(name, device, gpus)
        self._check_free(name)
        try:
            memory = bytes.fromhex(handle)
        except ValueError:
            memory = b""
        if len(memory) != HANDLE_BYTES:
            raise RequestError(
                f"failed to register CUDA shared memory region '{name}': 'raw_handle' must be a"
                f" cudaIpcMemHandle_t of {HANDLE_BYTES} bytes"
            )
        if size == 0:
            raise RequestError(
                f"failed to register CUDA shared memory region '{name}': invalid args: byte_size 0"
            )
        return self._named(name, cuda_region(memory, size, device, name), 0, size)

    def _named(self, name: str, region: m.Region, offset: int, size: int) -> Json:
        world = self._world
        number = NAMED_REGION_BASE + world.number() % (NAMED_REGION_BASE // 2)
        world.name_region(NamedRegion(name, region._replace(id=number), offset, size))
        world.actions.append(SaveState())
        return {"id": number}

    def status(self, arguments: m.Parameters) -> list[Json]:
        """One region, or all; with `kind` of that kind only."""
        name = arguments.get("name", "")
        kind = _kind(arguments)
        named = self._world.named_regions
        if name:
            found = named.get(str(name))
            if found is None:
                raise RequestError(
                    f"Unable to find {kind or SYSTEM} shared memory region: '{name}'",
                    code=Code.NOT_FOUND,
                )
            own = kind_of(found)
            if kind not in ("", own):
                raise RequestError(
                    f"The region named '{name}' is registered as {_WORDS[own]}, not {_WORDS[kind]}",
                    code=Code.NOT_FOUND,
                )
            return [_row(found)]
        return [_row(one) for one in named.values() if kind in ("", kind_of(one))]

    def unregister(self, session: Session, call: int, arguments: m.Parameters) -> None:
        """Forget one name, or all without a name; an unknown name, and one of another kind than is
        said, succeed, as in Triton. Answered when workers have closed what is GPU memory."""
        name = arguments.get("name", "")
        kind = _kind(arguments)
        named = self._world.named_regions
        names = [str(name)] if name else list(named)
        if kind:
            names = [one for one in names if one in named and kind_of(named[one]) == kind]
        self._closings.reply(session.key, call, {}, self.forget(tuple(names)))

    def forget(self, names: tuple[str, ...]) -> set[Opened]:
        """Returns which of them workers have open, of GPU memory."""
        gone = [one for name in names if (one := self._world.named_regions.pop(name, None))]
        for one in gone:
            self._world.named_by_id.pop(one.region.id, None)
        if not gone:
            return set()
        sessions = list(self._world.sessions.values())
        opened = self._withdraw(sessions, [one.region.id for one in gone])
        self._world.actions.append(SaveState())
        on_gpus = {one.region.id for one in gone if is_cuda(one.region)}
        return {one for one in opened if one[1] in on_gpus}


def kind_of(named: NamedRegion) -> str:
    return CUDA if is_cuda(named.region) else SYSTEM


def no_gpus(name: str, device: int, gpus: int) -> RequestError:
    """For GPU memory of a GPU that this server has not; without any, Triton's text."""
    text = f"failed to register CUDA shared memory region: '{name}', "
    if not gpus:
        return RequestError(text + "GPUs not supported")
    return RequestError(text + f"there is no GPU {device}: expected a device_id of 0 to {gpus - 1}")


def number_of(gpus: Sequence[str], uuid: str) -> int | None:
    """Which of these devices has the UUID that a client told; they may be named by its beginning.

    None: none of them. What older drivers call MIG-GPU-<uuid>/1/0 is not found either.
    """
    for number, device in enumerate(gpus):
        own = uuid_of(device).partition("-")[2].lower()
        if own and uuid.lower().startswith(own):
            return number
    return None


def other_gpu(name: str, uuid: str, gpus: Sequence[str]) -> RequestError:
    """For memory that a client has on a GPU which this server does not use."""
    if not gpus:
        return no_gpus(name, 0, 0)
    own = listed([f"{number} {uuid_of(device)}" for number, device in enumerate(gpus)])
    return RequestError(
        f"failed to register CUDA shared memory region: '{name}', it is on the GPU with the UUID"
        f" {printable(uuid[:UUID_CHARS_MAX])}, which is none of this server's: {own}"
    )


def _kind(arguments: m.Parameters) -> str:
    kind = arguments.get("kind", "")
    if kind not in ("", SYSTEM, CUDA):
        raise RequestError(f"kind: expected {SYSTEM!r} or {CUDA!r}, got {kind!r:.80}")
    return str(kind)


def _row(one: NamedRegion) -> Json:
    row: Json = {"name": one.name, "kind": kind_of(one)}
    if is_cuda(one.region):
        row["device_id"] = one.region.device  # a handle is nobody's but its owner's
    else:
        row |= {"key": one.region.key, "offset": one.offset}
    return row | {"byte_size": one.size, "id": one.region.id}
