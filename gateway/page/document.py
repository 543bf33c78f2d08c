"""The page itself: its three files as one response that loads nothing else.

Its Content-Security-Policy allows exactly its own style and script, by their hashes, and requests
to where it came from: a name that were taken for markup after all could do nothing.
"""

from __future__ import annotations

import base64
import hashlib
from functools import cache
from importlib.resources import files
from typing import Final

from naiad.gateway.http_message import Response

STYLE: Final = '<link rel="stylesheet" href="style.css">'
SCRIPT: Final = '<script src="live.js" defer></script>'
"""Lines of index.html in whose places the files themselves go."""


@cache
def document() -> Response:
    """The whole page. It is read once."""
    folder = files("naiad.gateway.page")
    html, style, script = (
        folder.joinpath(name).read_text(encoding="utf-8")
        for name in ("index.html", "style.css", "live.js")
    )
    html = html.replace(STYLE, f"<style>{style}</style>")
    html = html.replace(SCRIPT, f'<script type="module">{script}</script>')
    headers = (
        ("Content-Security-Policy", policy(style, script)),
        ("X-Content-Type-Options", "nosniff"),
        ("Referrer-Policy", "no-referrer"),
        ("Cache-Control", "no-cache"),
    )
    return Response(200, [html.encode()], None, "text/html; charset=utf-8", headers)


def policy(style: str, script: str) -> str:
    """What the page may do: nothing but this."""
    return "; ".join(
        [
            "default-src 'none'",
            f"style-src '{_hash(style)}'",
            f"script-src '{_hash(script)}'",
            "connect-src 'self'",
            "img-src data:",
            "base-uri 'none'",
            "form-action 'none'",
            "frame-ancestors 'none'",
        ]
    )


def _hash(text: str) -> str:
    digest = hashlib.sha256(text.encode()).digest()
    return f"sha256-{base64.b64encode(digest).decode()}"
