"""The page for people: what it may do, and what it is told."""

from __future__ import annotations

import base64
import hashlib
import re
from typing import Any

from naiad.gateway.page.document import document
from naiad.gateway.page.snapshot import snapshot

SERVER: dict[str, Any] = {
    "name": "here",
    "software": "1.2.3",
    "started": 1000.0,
    "phase": "serving",
    "ready": True,
    "pid": 4711,
    "run_dir": "/run/secret",
    "time_bounds_ns": (200_000, 1_000_000),
}
ROW: dict[str, Any] = {
    "name": "m",
    "version": 1,
    "ready": True,
    "success_count": 7,
    "failures": {"timeout": 2, "model_error": 1},
    "pending": 3,
    "executing": 1,
    "oldest_pending_ns": 500_000_000,
    "request_times": [4, 2, 1],
    "worker_deaths": {"killed (SIGSEGV) in /home/secret": 1},
    "instances": [
        {"serves": True, "restarts": 1, "busy_ns": 2 * 10**9, "executing_ns": 10**9, "pid": 4712}
    ],
}
INDEX = [
    {"name": "broken", "version": "", "state": "UNAVAILABLE", "reason": "no config"},
    {"name": "coming"},
    {"name": "m", "version": "1", "state": "READY", "reason": ""},
    {"name": "m", "version": "2", "state": "UNAVAILABLE", "reason": "unloaded"},
]


def told() -> dict[str, Any]:
    return snapshot(SERVER, [ROW], INDEX, time_s=12.3456, now_s=1060.0)


def test_every_model_of_the_index_is_told_with_the_counts_it_has() -> None:
    found = told()
    assert [(one["name"], one["version"], one["state"]) for one in found["models"]] == [
        ("broken", "", "UNAVAILABLE"),
        ("coming", "", "LOADING"),
        ("m", "1", "READY"),
        ("m", "2", "UNAVAILABLE"),
    ]
    assert ["request_times" in one for one in found["models"]] == [False, False, True, False]
    counted = found["models"][2]
    assert (counted["succeeded"], counted["failed"], counted["pending"]) == (7, 3, 3)
    assert counted["instances"] == [{"serves": True, "restarts": 1, "busy": 3.0}]
    assert (found["time"], found["server"]["up"]) == (12.346, 60.0)
    assert found["time_bounds"] == [0.0002, 0.001]


def test_nothing_is_told_of_processes_paths_and_deaths() -> None:
    text = str(told())
    for secret in ("4711", "4712", "secret", "SIGSEGV", "pid"):
        assert secret not in text


def test_the_page_is_one_file_that_may_only_ask_its_own_server() -> None:
    response = document()
    html = bytes(response.parts[0]).decode()
    policy = dict(response.headers)["Content-Security-Policy"]

    assert response.content_type == "text/html; charset=utf-8"
    assert policy.startswith("default-src 'none'; ")
    assert "unsafe" not in policy
    for tag, directive in (("style", "style-src"), ("script", "script-src")):
        ((content),) = re.findall(f"<{tag}[^>]*>(.*?)</{tag}>", html, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
        assert f"{directive} 'sha256-{digest}'" in policy
        assert len(content) > 1000
    assert set(re.findall(r"https?://[^'\" ]+", html)) == {"http://www.w3.org/2000/svg"}
    assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b", html)
    assert not re.search(r'\s(style|on\w+)="', html), "the policy would refuse it"
