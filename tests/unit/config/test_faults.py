"""What clients see of the operator's places."""

from __future__ import annotations

import pytest

from naiad.config.faults import without_roots


@pytest.mark.parametrize(
    ("text", "roots", "expected"),
    [
        ("no file /srv/models/a/1/model.onnx", ["/srv/models"], "no file a/1/model.onnx"),
        ("no file /srv/models/a/1/x", ["/srv/models/", "/srv"], "no file a/1/x"),
        ("nothing in '/srv/models'; add 'a'", ["/srv/models"], "nothing in 'models'; add 'a'"),
        ("both in /a/m/x and /b/m/x", ["/a/m", "/b/m"], "both in x and x"),
        ("/models/x/1 and /elsewhere/x", ["/models"], "x/1 and /elsewhere/x"),
        ("relative/x", ["relative"], "relative/x"),
        ("/x/y", ["/", ""], "/x/y"),
    ],
)
def test_roots_are_left_out(text: str, roots: list[str], expected: str) -> None:
    assert without_roots(text, roots) == expected
