"""Every path of TRITON's HTTP interface, and what is none."""

from __future__ import annotations

import pytest

from naiad.gateway.http_routes import LOCAL_ONLY, LOCAL_SHM, Route, find
from naiad.gateway.http_status import HttpError


@pytest.mark.parametrize(
    ("path", "route"),
    [
        ("/v2", Route("server_metadata")),
        ("/v2/health/live", Route("live")),
        ("/v2/health/ready", Route("ready")),
        ("/v2/models/stats", Route("statistics")),
        ("/v2/models/m", Route("model_metadata", "m")),
        ("/v2/models/m/ready", Route("model_ready", "m")),
        ("/v2/models/m/config", Route("model_config", "m")),
        ("/v2/models/m/stats", Route("statistics", "m")),
        ("/v2/models/m/infer", Route("infer", "m")),
        ("/v2/models/m/versions/3", Route("model_metadata", "m", 3)),
        ("/v2/models/m/versions/0/infer", Route("infer", "m", 0)),
        ("/v2/models/a%20b.%C3%BC/versions/3/ready", Route("model_ready", "a b.ü", 3)),
        ("/v2/models/%2525/infer", Route("infer", "%25")),
        ("/v2/models/m/generate_stream", Route("generate", "m")),
        ("/v2/models/m/trace/setting", Route("trace", "m")),
        ("/v2/trace/setting", Route("trace")),
        ("/v2/logging", Route("logging")),
        ("/v2/health/startup", Route("startup")),
        ("/v2/repository/index", Route("index")),
        ("/v2/repository/anything/index", Route("index")),
        ("/v2/repository/models/m/load", Route("load", "m")),
        ("/v2/repository/models/m/unload", Route("unload", "m")),
        ("/v2/systemsharedmemory/status", Route("shm_status", kind="system")),
        (
            "/v2/systemsharedmemory/region/a%2Fb/register",
            Route("shm_register", region="a/b", kind="system"),
        ),
        ("/v2/cudasharedmemory/unregister", Route("shm_unregister", kind="cuda")),
    ],
)
def test_paths(path: str, route: Route) -> None:
    assert find(path.encode()) == route


@pytest.mark.parametrize(
    "path",
    [
        "",
        "//",
        "/status.json/",
        "/v2/",
        "v2",
        "/v1",
        "/v2/health",
        "/v2/models/",
        "/v2/models//infer",
        "/v2/models/m/",
        "/v2/models/m/versions",
        "/v2/models/m/versions/1/trace/setting",
        "/v2/models/m/versions/1/versions/1",
        "/v2/models/m/load",
        "/v2/repository/models/m",
        "/v2/systemsharedmemory/register",
        "/v2/systemsharedmemory/region//register",
        "/v2/../v2",
    ],
)
def test_unknown_paths(path: str) -> None:
    with pytest.raises(HttpError) as raised:
        find(path.encode())
    assert (raised.value.status, raised.value.message) == (404, "Not Found")


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/v2/models/%2e%2e/infer", 400),
        ("/v2/models/a%2Fb/infer", 400),
        ("/v2/models/%ff/infer", 400),
        ("/v2/models/%00/infer", 400),
        ("/v2/models/m/versions/99999999999999999999/infer", 400),
        ("/v2/models/m/versions/x/infer", 400),
        ("/v2/models/m/versions/-1/infer", 400),
        ("/v2/models/m/versions//infer", 400),
        ("/v2/repository/mine/models/m/load", 501),
        ("/v2/systemsharedmemory/region/" + "a" * 2000 + "/register", 400),
    ],
)
def test_names_that_cannot_be(path: str, status: int) -> None:
    with pytest.raises(HttpError) as raised:
        find(path.encode())
    assert raised.value.status == status


def test_verbs() -> None:
    assert find(b"/v2/repository/index").verbs == ("POST",)
    assert find(b"/v2/models/m/infer").verbs == ("POST",)
    assert find(b"/v2/health/live").verbs == ("GET",)


def test_what_is_for_this_machine_alone_exists() -> None:
    for name in LOCAL_ONLY | LOCAL_SHM:
        assert Route(name).verbs
