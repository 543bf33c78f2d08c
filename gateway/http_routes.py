"""Which route a path means, and which verbs it takes. Pure.

Paths are matched whole, as in Triton: no trailing slash, query strings do not matter, versions are
digits. Names are decoded once. What a route does is not known here.
"""

from __future__ import annotations

from typing import Final, NamedTuple
from urllib.parse import unquote_to_bytes

from naiad.config.names import model_name_fault
from naiad.gateway.calls import ANY_VERSION
from naiad.gateway.http_status import HttpError
from naiad.protocol.checks import NAME_BYTES_MAX

_VERSION_MAX: Final = 2**63 - 1
_DIGITS_MAX: Final = 19

_GET: Final = ("GET",)
_READ: Final = ("GET", "HEAD")
_POST: Final = ("POST",)
_BOTH: Final = ("GET", "POST")

VERBS: Final[dict[str, tuple[str, ...]]] = {
    "page": _READ,
    "page_state": _READ,
    "live": _GET,
    "ready": _GET,
    "startup": _GET,
    "server_metadata": _GET,
    "statistics": _GET,
    "model_ready": _GET,
    "model_metadata": _GET,
    "model_config": _GET,
    "infer": _POST,
    "generate": _POST,
    "index": _POST,
    "load": _POST,
    "unload": _POST,
    "shm_status": _GET,
    "shm_register": _POST,
    "shm_unregister": _POST,
    "logging": _BOTH,
    "trace": _BOTH,
}

CATEGORIES: Final[dict[str, tuple[str, ...]]] = {
    "page": (),
    "page_state": ("metadata", "statistics", "model-repository"),
    "live": ("health",),
    "ready": ("health",),
    "startup": ("health",),
    "model_ready": ("health",),
    "server_metadata": ("metadata",),
    "model_metadata": ("metadata",),
    "model_config": ("model-config",),
    "statistics": ("statistics",),
    "infer": ("inference",),
    "generate": ("inference",),
    "index": ("model-repository",),
    "load": ("model-repository",),
    "unload": ("model-repository",),
    "shm_status": ("shared-memory",),
    "shm_register": ("shared-memory",),
    "shm_unregister": ("shared-memory",),
    "logging": ("logging",),
    "trace": ("trace",),
}
"""Of routes, as far as they can be restricted to who knows a secret: Triton's groups. What the page
shows is told by three of them."""

_OF_MODEL: Final = {
    (): "model_metadata",
    ("ready",): "model_ready",
    ("config",): "model_config",
    ("stats",): "statistics",
    ("infer",): "infer",
    ("generate",): "generate",
    ("generate_stream",): "generate",
}
_OF_SERVER: Final = {
    ("",): "page",
    ("status.json",): "page_state",
    ("v2",): "server_metadata",
    ("v2", "health", "live"): "live",
    ("v2", "health", "ready"): "ready",
    ("v2", "health", "startup"): "startup",
    ("v2", "models", "stats"): "statistics",
    ("v2", "logging"): "logging",
    ("v2", "trace", "setting"): "trace",
}

LOCAL_ONLY: Final = frozenset({"load", "unload", "logging", "trace"})
"""Routes that change the server: open to this machine alone, unless said otherwise."""
LOCAL_SHM: Final = frozenset({"shm_register", "shm_unregister", "shm_status"})


class Route(NamedTuple):
    """What a path means. Names are "" and the version ANY_VERSION where it has none."""

    name: str
    model: str = ""
    version: int = ANY_VERSION
    region: str = ""
    kind: str = ""
    """Of shared memory: "system" or "cuda"."""

    @property
    def verbs(self) -> tuple[str, ...]:
        return VERBS[self.name]


def find(path: bytes) -> Route:
    """The route of a path without its query.

    Raises HttpError: 404 for a path that is none, 400 for a name that nothing can have.
    """
    if not path.startswith(b"/"):
        raise not_found()
    parts = tuple(path[1:].decode("latin-1").split("/"))
    fixed = _OF_SERVER.get(parts)
    if fixed is not None:
        return Route(fixed)
    match parts:
        case ("v2", "models", model, *rest) if model:
            return _of_model(model, tuple(rest))
        case ("v2", "repository", *rest):
            return _of_repository(tuple(rest))
        case ("v2", "systemsharedmemory" | "cudasharedmemory" as what, *rest):
            return _of_memory(what.removesuffix("sharedmemory"), tuple(rest))
    raise not_found()


def not_found() -> HttpError:
    return HttpError(404, "Not Found")


def _of_model(quoted: str, rest: tuple[str, ...]) -> Route:
    version = ANY_VERSION
    if rest == ("trace", "setting"):
        return Route("trace", _model(quoted))
    if len(rest) >= 2 and rest[0] == "versions":
        version = _version(rest[1])
        rest = rest[2:]
    name = _OF_MODEL.get(rest)
    if name is None:
        raise not_found()
    return Route(name, _model(quoted), version)


def _of_repository(rest: tuple[str, ...]) -> Route:
    if rest and rest[0] not in ("index", "models"):
        repository, rest = rest[0], rest[1:]
        if rest[:1] == ("models",) and repository:
            raise HttpError(501, "'repository_name' specification is not supported")
    match rest:
        case ("index",):
            return Route("index")
        case ("models", model, "load" | "unload" as action) if model:
            return Route(action, _model(model))
    raise not_found()


def _of_memory(kind: str, rest: tuple[str, ...]) -> Route:
    match rest:
        case ("status",) | ("unregister",):
            return Route(f"shm_{rest[0]}", kind=kind)
        case ("region", region, "status" | "register" | "unregister" as action) if region:
            name = _decoded(region)
            if len(name) > NAME_BYTES_MAX:
                raise HttpError(400, f"region name: expected at most {NAME_BYTES_MAX} characters")
            return Route(f"shm_{action}", region=name, kind=kind)
    raise not_found()


def _decoded(quoted: str) -> str:
    try:
        return unquote_to_bytes(quoted.encode("latin-1")).decode()
    except UnicodeDecodeError:
        raise HttpError(400, "a name in the path is not UTF-8") from None


def _model(quoted: str) -> str:
    name = _decoded(quoted)
    fault = model_name_fault(name)
    if fault is not None:
        raise HttpError(400, fault)
    return name


def _version(text: str) -> int:
    if not (text.isascii() and text.isdigit()):
        raise HttpError(400, f"model version '{_decoded(text):.40}' is not a number")
    version = int(text) if len(text) <= _DIGITS_MAX else _VERSION_MAX + 1
    if version > _VERSION_MAX:
        raise HttpError(400, f"model version {text[:40]} is out of range")
    return version
