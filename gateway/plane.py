"""The one data plane below both skins: calls in, answers out, over one session with the broker.

Owns the client, the budgets of this process, and the ids of regions that are registered by name.
Knows no transport and holds no rules of models: those are the broker's.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final, Literal, NamedTuple

from naiad.client import control
from naiad.client.aio import AsyncClient
from naiad.client.requests import Buffer
from naiad.config.names import model_name_fault
from naiad.gateway.budget import Budget, InFlight
from naiad.gateway.calls import InferAnswer, InferCall
from naiad.gateway.limits import Limits
from naiad.gateway.long_work import LongWork
from naiad.gateway.lookups import Lookups
from naiad.gateway.pending import Done, Order, Outcome, Pending
from naiad.gateway.shared_answers import SharedAnswers
from naiad.gateway.turns import Turns
from naiad.gateway.uploads import PREFIX, checked_files, written
from naiad.protocol.checks import INT64_MAX
from naiad.protocol.errors import Code, NaiadError, RequestError, Unavailable
from naiad.shm.cuda.key import HANDLE_BYTES

RegionKind = Literal["system", "cuda"]
_SHOWN: Final[dict[RegionKind, tuple[str, ...]]] = {
    "system": ("name", "key", "offset", "byte_size"),
    "cuda": ("name", "device_id", "byte_size"),
}

SETTINGS_MAX: Final = 64
SETTING_CHARS_MAX: Final = 256

Json = dict[str, Any]


class Readiness(NamedTuple):
    """What probes are told. `is_started`: every model of the start is ready or has failed."""

    is_ready: bool
    is_started: bool
    state: str
    """loading, recovering, ready, failed, draining; unknown when the broker does not answer."""
    text: str


class Plane:
    """Calls of both skins go through here; everything runs in one event loop."""

    def __init__(self, client: AsyncClient, limits: Limits, run_dir: str = "") -> None:
        self.client = client
        self._run_dir = run_dir
        self.limits = limits
        self.budget = Budget(limits.bytes_in_flight_max)
        self.turns = Turns()
        self.long_work = LongWork()
        self.shared = SharedAnswers()
        self.calls = InFlight(limits.requests_in_flight_max)
        self._lookups = Lookups(client)

    def start(self, call: InferCall, done: Done, order: Order | None = None) -> Pending:
        """Begin a call, behind those of its order; `done` is told its outcome later.

        Raises NaiadError when it is refused at once: it cannot be sent, or a budget is used up.
        """
        self.calls.check_room()
        ended = self.calls.ended
        pending = Pending(self.client, self._lookups, self.long_work, call, done, ended)
        pending.start(order)
        self.calls.begun()
        return pending

    async def infer(self, call: InferCall, order: Order | None = None) -> InferAnswer:
        """Begin a call and await its answer; cancelling cancels it everywhere."""
        future: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()

        def done(outcome: Outcome) -> None:
            if not future.done():
                future.set_result(outcome)

        pending = self.start(call, done, order)
        try:
            outcome = await future
        finally:
            pending.cancel()
        if isinstance(outcome, NaiadError):
            try:
                raise outcome
            finally:
                # Else the error, its traceback and this frame hold each other, and the request's
                # body with them, until the garbage collector comes along: minutes.
                del outcome, pending, future
        return outcome

    # --- what is asked of the server itself ------------------------------------------------------

    async def is_live(self) -> bool:
        """Whether the broker answers in time; a restart of it is waited for."""
        try:
            async with asyncio.timeout(self.limits.live_seconds):
                return await self.client.live()
        except (TimeoutError, NaiadError):
            return False

    async def is_ready(self) -> bool:
        """Whether every model that should be loaded serves."""
        try:
            async with asyncio.timeout(self.limits.live_seconds):
                return await self.client.ready()
        except (TimeoutError, NaiadError):
            return False

    async def readiness(self) -> Readiness:
        """Whether it is ready, and what it waits for if not."""
        try:
            async with asyncio.timeout(self.limits.live_seconds):
                found = await self.client.call(control.READY)
        except (TimeoutError, NaiadError):
            return Readiness(False, False, "unknown", "the broker does not answer")
        counts = found["models"]
        text = f"{found['state']}: {counts['ready']} of {counts['known']} models are ready"
        for what in ("loading", "failed"):
            if counts[what]:
                text += f", {counts[what]} {what}"
        return Readiness(found["ready"], found["started"], found["state"], text)

    async def is_model_ready(self, model: str, version: int) -> bool:
        """False, never an error, for a model that nobody knows."""
        try:
            return await self.client.model_ready(model, version)
        except RequestError:
            return False

    async def statistics(self, model: str, version: int) -> Json:
        """Triton's `model_stats`; of all models without a name."""
        return await self.client.statistics(model, version)

    async def load(self, model: str, parameters: Json) -> None:
        """Load with `parameters` as in Triton: `config` is JSON text, `file:PATH` are bytes."""
        files: dict[str, Buffer] = {}
        for key, value in parameters.items():
            if key.startswith(PREFIX):
                files[key] = value
            elif key != "config":
                raise RequestError(
                    f"unrecognized load parameter '{key:.80}'; expected 'config' or 'file:PATH'"
                )
        config = parameters.get("config")
        if "config" in parameters and type(config) is not str:
            raise RequestError("load parameter 'config': expected a string with JSON in it")
        if config is not None and len(config) > self.limits.load_config_bytes_max:
            raise RequestError(
                f"Invalid config override: {len(config)} bytes or more, expected at most"
                f" {self.limits.load_config_bytes_max}"
            )
        if not files:
            await self.client.load(model, config)
            return
        await self._load_files(model, config, files)

    async def _load_files(self, model: str, config: str | None, files: dict[str, Buffer]) -> None:
        if not (await self.client.call(control.READY))["file_override"]:
            raise RequestError(
                "files in a load are refused by this server; start it with --allow-file-override,"
                " or put the model into the model repository",
                code=Code.UNSUPPORTED,
            )
        if config is None:
            raise RequestError("Load parameter 'config' must be specified for model file override")
        fault = model_name_fault(model)
        if fault is not None:
            raise RequestError(fault)
        checked_files(files, self.limits)
        # From the call on they are the broker's, also when it refuses the load.
        upload = await asyncio.to_thread(written, self._run_dir, model, files)
        await self.client.call(control.load(model, config, upload))

    async def log_settings(self, changes: Json) -> Json:
        """Triton's log settings, after these changes. Raises RequestError for what is none."""
        if len(changes) > SETTINGS_MAX:
            raise too_many_settings(len(changes))
        for name, value in changes.items():
            if type(value) is int and not -(2**63) <= value < 2**63:
                raise RequestError(f"{name:.80}: expected an integer of 64 bits")
            if type(value) not in (bool, int, float, str):
                raise RequestError(f"{name:.80}: expected a boolean, a number or a text")
            if len(name) > SETTING_CHARS_MAX or (
                type(value) is str and len(value) > SETTING_CHARS_MAX
            ):
                raise RequestError(
                    f"{name:.80}: names and texts have at most {SETTING_CHARS_MAX} characters"
                )
        found = await self.client.call(control.log_settings(changes))
        settings: Json = found["settings"]
        return settings

    async def register_region(self, name: str, key: str, offset: int, byte_size: int) -> None:
        """Register a POSIX segment with the server, for every gateway. Raises RequestError."""
        self._lookups.forget((name,))
        what = f"failed to register shared memory region '{name:.200}'"
        _check_args(what, offset=offset, byte_size=byte_size)
        await self.client.region_register(name, key, byte_size, offset)

    async def register_cuda_region(
        self, name: str, raw_handle: bytes, device_id: int, byte_size: int
    ) -> None:
        """Register GPU memory with the server, for every gateway. Raises RequestError."""
        self._lookups.forget((name,))
        if len(raw_handle) != HANDLE_BYTES:
            raise RequestError(
                f"failed to register CUDA shared memory region: '{name:.200}', expected"
                f" 'raw_handle' as a cudaIpcMemHandle_t of {HANDLE_BYTES} bytes, got"
                f" {len(raw_handle)}"
            )
        what = f"failed to register CUDA shared memory region '{name:.200}'"
        _check_args(what, device_id=device_id, byte_size=byte_size)
        await self.client.cuda_region_register(name, raw_handle, byte_size, device_id)

    async def region_status(self, name: str, kind: RegionKind) -> list[Json]:
        """Rows as Triton has them; raises RequestError (not_found) for an unknown name."""
        rows = await self.client.region_status(name, kind)
        return [{key: row[key] for key in _SHOWN[kind]} for row in rows]

    async def unregister_region(self, name: str, kind: RegionKind) -> None:
        """Forget one name, or all without one; an unknown name succeeds."""
        self._lookups.forget_all()
        await self.client.region_unregister(name, kind)

    async def close(self) -> None:
        await self.client.close()


def _check_args(what: str, **given: int) -> None:
    """Raises RequestError for a number that is out of range; behind Triton's text."""
    for name, value in given.items():
        if not 0 <= value <= INT64_MAX:
            raise RequestError(f"{what}: invalid args: {name} {value}, expected 0 to {INT64_MAX}")


def too_many_settings(count: int) -> RequestError:
    return RequestError(f"{count} log settings, expected at most {SETTINGS_MAX}")


def draining() -> Unavailable:
    """What is asked of a gateway that ends is answered with this."""
    return Unavailable("Server exiting", code=Code.DRAINING)


def client_shm_disabled() -> RequestError:
    """For a client that may not share memory with the server; Triton's text."""
    return RequestError(
        "Client shared memory is disabled. Start the server with '--allow-client-shm=true' to"
        " enable.",
        code=Code.UNSUPPORTED,
    )
