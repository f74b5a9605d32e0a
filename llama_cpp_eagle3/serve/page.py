"""The page at /, one document that loads nothing from elsewhere, and the HTML of its answers' Markdown."""

from __future__ import annotations

import base64
import hashlib
import re
from functools import cache
from pathlib import Path
from typing import Any

from markdown_it import MarkdownIt
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from .api_errors import invalid, no_such_path
from .server import Server

_PAGE = Path(__file__).with_name("page.html")

# raw HTML is shown as the text that it is, links lead to nothing that runs, and images, which would show other
# servers that the answer is read, are links; the nesting of this preset bounds what a text without sense costs
_MARKDOWN = MarkdownIt("commonmark", {"html": False}).enable(["table", "strikethrough"]).disable("image")


@cache
def _page() -> tuple[str, str]:
    """Return the page and its content security policy: only its own script runs, and reaches this server alone."""
    text = _PAGE.read_text(encoding="utf-8")
    # a line that is the name of a style or a script stands for that file; all scripts are one, in the page's order
    text = re.sub(r"/\* (\w+\.(?:css|js)) \*/\n", lambda m: _PAGE.with_name(m[1]).read_text(encoding="utf-8"), text)
    script = text.partition("<script>")[2].partition("</script>")[0]
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = (
        f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'; connect-src 'self'; "
        "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    return text, policy


def _check(server: Server, path: str) -> None:
    if not server.options.ui:
        raise no_such_path(path)


async def page(server: Server, request: Request) -> Response:
    """GET /."""
    _check(server, request.url.path)
    text, policy = _page()
    headers = {"Content-Security-Policy": policy, "X-Content-Type-Options": "nosniff", "Cache-Control": "no-cache"}
    return HTMLResponse(text, headers=headers)


def markdown(server: Server, body: dict[str, Any]) -> dict[str, Any]:
    """POST /markdown: HTML of an answer, for the page."""
    _check(server, "/markdown")
    text = body.get("markdown")
    if not isinstance(text, str):
        raise invalid("Field 'markdown': expected a string")
    return {"html": _MARKDOWN.render(text)}
