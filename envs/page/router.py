"""The playground at `/`: one static page that asks the routes of every client.

The file contains its style and script and loads nothing else; a content security policy with their hashes enforces
that.
"""

import base64
import hashlib
import re
from pathlib import Path

from fastapi import APIRouter, Response

PAGE = (Path(__file__).parent / "page.html").read_bytes()


def page_router() -> APIRouter:
    """The route of the page, not part of the OpenAPI document (the trainer's)."""
    router = APIRouter(include_in_schema=False)
    policy = {
        "default-src": "'none'",
        "style-src": _hashes("style"),
        "script-src": _hashes("script"),
        "connect-src": "'self'",
        "img-src": "data:",
        "base-uri": "'none'",
        "form-action": "'none'",
        "frame-ancestors": "'none'",
    }
    headers = {"Content-Security-Policy": "; ".join(f"{name} {value}" for name, value in policy.items())}

    @router.get("/")
    async def page() -> Response:
        """It holds no data: what it shows, it asks for with the token."""
        return Response(PAGE, media_type="text/html; charset=utf-8", headers=headers)

    return router


def _hashes(tag: str) -> str:
    """The CSP sources of every inline element of that tag."""
    elements = re.findall(rf"<{tag}>(.*?)</{tag}>".encode(), PAGE, re.DOTALL)
    return " ".join(f"'sha256-{base64.b64encode(hashlib.sha256(element).digest()).decode()}'" for element in elements)
