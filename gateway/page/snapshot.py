"""What the page is told, out of the broker's raw counters and its index. Pure.

Nothing that the open routes (metadata, index, statistics) do not tell as well: no process ids, no
paths, no reasons of deaths.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

Json = dict[str, Any]


def snapshot(
    server: Json, rows: Sequence[Json], index: Sequence[Json], *, time_s: float, now_s: float
) -> Json:
    """The state at one moment.

    Args:
        server, rows: the answers to the operation `counters`.
        index: every model and version, those that do not serve as well.
        time_s: of a clock that only goes forward; what grew is divided by its differences.
        now_s: seconds since 1970.
    """
    counted = {(row["name"], str(row["version"])): row for row in rows}
    return {
        "time": round(time_s, 3),
        "server": {
            "name": server["name"],
            "version": server["software"],
            "started": server["started"],
            "up": round(max(0.0, now_s - server["started"]), 1),
            "phase": server["phase"],
            "ready": server["ready"],
        },
        "time_bounds": [bound / 1e9 for bound in server["time_bounds_ns"]],
        "models": [_model(row, counted) for row in index],
    }


def _model(row: Json, counted: Mapping[tuple[str, str], Json]) -> Json:
    """One version. What has no state yet is being loaded for the first time."""
    version = row.get("version", "")
    told = {
        "name": row["name"],
        "version": version,
        "state": row.get("state") or "LOADING",
        "reason": row.get("reason", ""),
    }
    found = counted.get((row["name"], version))
    return told if found is None else told | _counts(found)


def _counts(row: Json) -> Json:
    instances = row["instances"]
    return {
        "ready": row["ready"],
        "succeeded": row["success_count"],
        "failed": sum(row["failures"].values()),
        "pending": row["pending"],
        "executing": row["executing"],
        "oldest_pending": row["oldest_pending_ns"] / 1e9,
        "request_times": row["request_times"],
        "instances": [
            {
                "serves": one["serves"],
                "restarts": one["restarts"],
                "busy": (one["busy_ns"] + one["executing_ns"]) / 1e9,
            }
            for one in instances
        ],
    }
