"""The methods of GRPCInferenceService over the plane: bytes of a request to bytes of its response.

Knows no transport: a server gives it messages and who sent them. Holds no rules of models; what
is refused here is what this release does not have, and what may not be asked from where.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Final, NamedTuple

from google.protobuf.message import DecodeError

from naiad.client.requests import Buffer
from naiad.gateway.calls import InferCall, region_names
from naiad.gateway.grpc_codec import documents
from naiad.gateway.grpc_codec.answers import encoded_answer
from naiad.gateway.grpc_codec.large import parts_in_steps, request_in_steps
from naiad.gateway.grpc_codec.loads import load_request
from naiad.gateway.grpc_codec.requests import decoded_request, version_number
from naiad.gateway.grpc_codec.wire import Parts, is_light
from naiad.gateway.long_work import LongWork, Steps
from naiad.gateway.phase import Phase
from naiad.gateway.plane import SETTINGS_MAX, Plane, client_shm_disabled, too_many_settings
from naiad.gateway.proto import inference_pb2 as pb
from naiad.gateway.uploads import PREFIX
from naiad.gateway.users import NOBODY, User
from naiad.protocol.checks import TIMEOUT_US_MAX
from naiad.protocol.errors import Code, InternalError, RequestError
from naiad.protocol.messages import Parameters

LOG: Final = logging.getLogger("naiad.gateway")
EMPTY: Final = b""
"""Every message without fields."""


class Caller(NamedTuple):
    """Who sent a request, and what it may have."""

    may_share_memory: bool
    may_manage: bool
    seconds_left: float | None = None
    """Until the caller's deadline."""
    forwarded: Parameters | None = None
    """Headers that become parameters of the request."""
    user: User = NOBODY


Method = Callable[[Buffer, Caller], Awaitable[bytes | Parts]]


class Service:
    """All methods but ModelStreamInfer; `methods` has them by name."""

    def __init__(self, plane: Plane, phase: Phase) -> None:
        self._plane = plane
        self._phase = phase
        self.methods: dict[str, Method] = {
            "ServerLive": self.server_live,
            "ServerReady": self.server_ready,
            "ModelReady": self.model_ready,
            "ServerMetadata": self.server_metadata,
            "ModelMetadata": self.model_metadata,
            "ModelInfer": self.model_infer,
            "ModelConfig": self.model_config,
            "ModelStatistics": self.model_statistics,
            "RepositoryIndex": self.repository_index,
            "RepositoryModelLoad": self.repository_model_load,
            "RepositoryModelUnload": self.repository_model_unload,
            "SystemSharedMemoryStatus": self.system_shared_memory_status,
            "SystemSharedMemoryRegister": self.system_shared_memory_register,
            "SystemSharedMemoryUnregister": self.system_shared_memory_unregister,
            "CudaSharedMemoryStatus": self.cuda_shared_memory_status,
            "CudaSharedMemoryRegister": self.cuda_shared_memory_register,
            "CudaSharedMemoryUnregister": self.cuda_shared_memory_unregister,
            "TraceSetting": self.trace_setting,
            "LogSettings": self.log_settings,
        }

    # --- inference -------------------------------------------------------------------------------

    async def model_infer(self, data: Buffer, caller: Caller) -> Parts:
        """ModelInferRequest to ModelInferResponse. Cancelling cancels the request everywhere."""
        call = await any_call_of(data, caller, self._plane.long_work)
        return encoded_answer(await self._plane.infer(call))

    # --- health and metadata ---------------------------------------------------------------------

    async def server_live(self, data: Buffer, caller: Caller) -> bytes:
        return _serialised(pb.ServerLiveResponse(live=await self._plane.is_live()))

    async def server_ready(self, data: Buffer, caller: Caller) -> bytes:
        is_ready = self._phase.is_serving and await self._plane.is_ready()
        return _serialised(pb.ServerReadyResponse(ready=is_ready))

    async def model_ready(self, data: Buffer, caller: Caller) -> bytes:
        """An unknown model is not ready; clients raise for an error."""
        name, version = _named(pb.ModelReadyRequest, data)
        is_ready = self._phase.is_serving and await self._plane.is_model_ready(name, version)
        return _serialised(pb.ModelReadyResponse(ready=is_ready))

    async def server_metadata(self, data: Buffer, caller: Caller) -> bytes:
        async def answer() -> bytes:
            return documents.server_metadata(await self._plane.client.metadata())

        return await self._plane.shared.get(documents.server_metadata, answer)

    async def model_metadata(self, data: Buffer, caller: Caller) -> bytes:
        name, version = _named(pb.ModelMetadataRequest, data)
        _check_model_name(name)
        ask = partial(self._plane.client.metadata, name, version)
        return await self._shared(documents.model_metadata, ask, name, version)

    async def model_config(self, data: Buffer, caller: Caller) -> bytes:
        name, version = _named(pb.ModelConfigRequest, data)
        _check_model_name(name)
        ask = partial(self._plane.client.config, name, version)
        return await self._shared(documents.model_config, ask, name, version)

    async def model_statistics(self, data: Buffer, caller: Caller) -> bytes:
        """Of all models without a name."""
        name, version = _named(pb.ModelStatisticsRequest, data)
        ask = partial(self._plane.statistics, name, version)
        return await self._shared(documents.statistics, ask, name, version)

    async def _shared(
        self, write: Callable[[Any], Steps[bytes]], ask: Callable[[], Awaitable[Any]], *about: Any
    ) -> bytes:
        """A document, which may be of hundreds of inputs or models, for all who ask for it now."""

        async def answer() -> bytes:
            return await self._plane.long_work.run(0, write(await ask()))

        return await self._plane.shared.get((write, *about), answer)

    # --- the repository --------------------------------------------------------------------------

    async def repository_index(self, data: Buffer, caller: Caller) -> bytes:
        request = _parsed(pb.RepositoryIndexRequest, data)
        _check_repository(request)
        ask = partial(self._plane.client.index, ready=request.ready)
        return await self._shared(documents.index, ask, request.ready)

    async def repository_model_load(self, data: Buffer, caller: Caller) -> bytes:
        """Answers when the model serves, or cannot."""
        _check_management(caller, "RepositoryModelLoad")
        request, files = load_request(data)
        _check_repository(request)
        parameters = _load_parameters(request.parameters, files)
        await self._plane.load(request.model_name, parameters)
        return EMPTY

    async def repository_model_unload(self, data: Buffer, caller: Caller) -> bytes:
        """Answers when nothing new is accepted; unknown models succeed."""
        _check_management(caller, "RepositoryModelUnload")
        request = _parsed(pb.RepositoryModelUnloadRequest, data)
        _check_repository(request)
        dependents = False
        for name, value in request.parameters.items():
            if name != "unload_dependents":
                raise RequestError(
                    f"unrecognized unload parameter '{name:.80}'; expected 'unload_dependents'"
                )
            dependents = _chosen(name, value, "bool_param")
        await self._plane.client.unload(request.model_name, unload_dependents=dependents)
        return EMPTY

    # --- shared memory ---------------------------------------------------------------------------

    async def system_shared_memory_status(self, data: Buffer, caller: Caller) -> bytes:
        _check_regions(caller)
        request = _parsed(pb.SystemSharedMemoryStatusRequest, data)
        rows = await self._plane.region_status(request.name, "system")
        return await self._plane.long_work.run(0, documents.system_regions(rows))

    async def system_shared_memory_register(self, data: Buffer, caller: Caller) -> bytes:
        _check_regions(caller)
        request = _parsed(pb.SystemSharedMemoryRegisterRequest, data)
        await self._plane.register_region(
            request.name, request.key, request.offset, request.byte_size
        )
        return EMPTY

    async def system_shared_memory_unregister(self, data: Buffer, caller: Caller) -> bytes:
        _check_regions(caller)
        request = _parsed(pb.SystemSharedMemoryUnregisterRequest, data)
        await self._plane.unregister_region(request.name, "system")
        return EMPTY

    async def cuda_shared_memory_status(self, data: Buffer, caller: Caller) -> bytes:
        _check_regions(caller)
        request = _parsed(pb.CudaSharedMemoryStatusRequest, data)
        rows = await self._plane.region_status(request.name, "cuda")
        return await self._plane.long_work.run(0, documents.cuda_regions(rows))

    async def cuda_shared_memory_register(self, data: Buffer, caller: Caller) -> bytes:
        _check_regions(caller)
        request = _parsed(pb.CudaSharedMemoryRegisterRequest, data)
        await self._plane.register_cuda_region(
            request.name, request.raw_handle, request.device_id, request.byte_size
        )
        return EMPTY

    async def cuda_shared_memory_unregister(self, data: Buffer, caller: Caller) -> bytes:
        _check_regions(caller)
        request = _parsed(pb.CudaSharedMemoryUnregisterRequest, data)
        await self._plane.unregister_region(request.name, "cuda")
        return EMPTY

    # --- settings --------------------------------------------------------------------------------

    async def trace_setting(self, data: Buffer, caller: Caller) -> bytes:
        _check_management(caller, "TraceSetting")
        raise _not_yet("TraceSetting", "tracing")

    async def log_settings(self, data: Buffer, caller: Caller) -> bytes:
        """The settings, after the changes in the request."""
        _check_management(caller, "LogSettings")
        request = _parsed(pb.LogSettingsRequest, data)
        if len(request.settings) > SETTINGS_MAX:
            raise too_many_settings(len(request.settings))
        changes: dict[str, Any] = {}
        for name, value in request.settings.items():
            chosen = value.WhichOneof("parameter_choice")
            if chosen is not None:
                changes[name] = getattr(value, chosen)
        return documents.log_settings(await self._plane.log_settings(changes))


def call_of(data: Buffer, caller: Caller) -> InferCall:
    """The call in a ModelInferRequest, no longer than its caller waits.

    Raises RequestError: no such message, or shared memory that this caller may not use.
    """
    return _with_caller(decoded_request(data, caller.forwarded), caller)


async def any_call_of(data: Buffer, caller: Caller, long_work: LongWork) -> InferCall:
    """The same of a large message, which others need not wait for."""
    if is_light(data):
        return call_of(data, caller)
    parts = await long_work.run(0, parts_in_steps(data))
    steps = request_in_steps(parts, caller.forwarded)
    return _with_caller(await long_work.run(parts.size, steps), caller)


def _with_caller(call: InferCall, caller: Caller) -> InferCall:
    if not caller.may_share_memory and region_names(call):
        _check_regions(caller)
    if caller.user is not NOBODY:
        call = call._replace(user=caller.user)
    left = caller.seconds_left
    if left is not None:
        left_us = max(1, math.ceil(left * 1e6))
        if left_us <= TIMEOUT_US_MAX and (not call.timeout_us or left_us < call.timeout_us):
            call = call._replace(timeout_us=left_us)
    return call


def unexpected(what: str) -> InternalError:
    """For a fault of our own: what happened is in the log, not in an answer."""
    LOG.exception("%s failed", what)
    return InternalError(f"{what} failed inside the gateway; see its log")


def _check_regions(caller: Caller) -> None:
    if not caller.may_share_memory:
        raise client_shm_disabled()


def _check_management(caller: Caller, method: str) -> None:
    if not caller.may_manage:
        raise RequestError(
            f"{method} is allowed from the server's own machine only; see --allow-management",
            code=Code.PERMISSION_DENIED,
        )


def _check_repository(request: Any) -> None:
    if request.repository_name:
        raise RequestError(
            "'repository_name' specification is not supported", code=Code.UNSUPPORTED
        )


def _check_model_name(name: str) -> None:
    if not name:
        raise RequestError("Request for unknown model: '' is not found", code=Code.NOT_FOUND)


def _load_parameters(given: Any, files: dict[str, Buffer]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in given.items():
        is_file = name.startswith(PREFIX)
        found[name] = _chosen(name, value, "bytes_param" if is_file else "string_param")
    for name, content in files.items():
        if not name.startswith(PREFIX):
            raise _wrong_choice(name, "string_param", "bytes_param")
        found[name] = content
    return found


def _chosen(name: str, parameter: Any, expected: str) -> Any:
    chosen = parameter.WhichOneof("parameter_choice")
    if chosen != expected:
        raise _wrong_choice(name, expected, chosen)
    return getattr(parameter, expected)


def _wrong_choice(name: str, expected: str, chosen: str | None) -> RequestError:
    return RequestError(
        f"invalid value type for '{name:.80}' parameter, expected {expected},"
        f" got {chosen or 'no value'}"
    )


def _named(kind: Any, data: Buffer) -> tuple[str, int]:
    """(model, version) of a request that has `name` and `version`."""
    request = _parsed(kind, data)
    return request.name, version_number(request.version)


def _parsed(kind: Any, data: Buffer) -> Any:
    try:
        return kind.FromString(bytes(data))
    except DecodeError as fault:
        raise RequestError(
            f"the request is not a {kind.DESCRIPTOR.name}: its bytes cannot be decoded"
        ) from fault


def _serialised(message: Any) -> bytes:
    serialised: bytes = message.SerializeToString()
    return serialised


def _not_yet(method: str, feature: str) -> RequestError:
    return RequestError(f"{method}: {feature} is not in this release", code=Code.UNSUPPORTED)
