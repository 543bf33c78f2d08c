"""docs/openapi.yaml describes every route, with its verbs, and no other."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from naiad.gateway import http_routes
from naiad.gateway.http_routes import find

ROOT = Path(__file__).resolve().parents[3]
DESCRIPTION: dict[str, Any] = yaml.safe_load((ROOT / "docs/openapi.yaml").read_text())
VERBS = {"get", "put", "post", "delete", "options", "head", "patch", "trace"}
IN_PLACE = {"model": "m", "version": "1", "region": "r", "repository": "x"}


@pytest.mark.parametrize("path", DESCRIPTION["paths"])
def test_what_is_described_is_served_by_these_verbs(path: str) -> None:
    described = {verb.upper() for verb in DESCRIPTION["paths"][path] if verb in VERBS}
    assert described == set(find(path.format(**IN_PLACE).encode()).verbs)


def test_what_is_served_is_described() -> None:
    """Every route that has a name, and those of models in both forms."""
    paths = list(DESCRIPTION["paths"])
    routes = [find(path.format(**IN_PLACE).encode()) for path in paths]
    assert {route.name for route in routes} == set(http_routes.VERBS)
    fixed = {"/" + "/".join(parts) for parts in http_routes._OF_SERVER}
    assert fixed <= set(paths)
    for parts in http_routes._OF_MODEL:
        for model in ("/v2/models/{model}", "/v2/models/{model}/versions/{version}"):
            assert "/".join((model, *parts)) in paths
    for what in ("shm_status", "shm_register", "shm_unregister"):
        for kind in ("system", "cuda"):
            assert any(route.name == what and route.kind == kind for route in routes)


def test_names_of_operations_are_different_and_references_lead_somewhere() -> None:
    operations = [
        one["operationId"]
        for item in DESCRIPTION["paths"].values()
        for verb, one in item.items()
        if verb in VERBS
    ]
    assert len(set(operations)) == len(operations)
    for reference in references(DESCRIPTION):
        _, *parts = reference.split("/")
        found: Any = DESCRIPTION
        for part in parts:
            found = found[part]
        assert found


def references(found: Any) -> list[str]:
    if isinstance(found, dict):
        own = [found["$ref"]] if "$ref" in found else []
        return own + [one for value in found.values() for one in references(value)]
    if isinstance(found, list):
        return [one for value in found for one in references(value)]
    return []
