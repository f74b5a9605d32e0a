"""The page at /: one file, which asks nobody else for anything."""

from __future__ import annotations

from pathlib import Path

from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from .errors import not_found
from .server import Server

_PAGE = Path(__file__).with_name("page.html")
# what the page itself holds may run, and it may speak to this server alone
_POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'; img-src data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)


async def page(request: Request) -> Response:
    """GET /."""
    server: Server = request.app.state.server
    if not server.options.ui:
        raise not_found()
    headers = {"Content-Security-Policy": _POLICY, "X-Content-Type-Options": "nosniff", "Cache-Control": "no-cache"}
    return HTMLResponse(_PAGE.read_text(encoding="utf-8"), headers=headers)
