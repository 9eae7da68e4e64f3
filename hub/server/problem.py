"""Problem documents (RFC 9457): the bodies of refusals."""

from __future__ import annotations

import json
from typing import Final

PROBLEM: Final = "application/problem+json"
"""The media type of a problem document."""


def problem_document(status: int, title: str, detail: str) -> bytes:
    """Return a problem document as JSON; `status` is that of the response."""
    document = {"type": "about:blank", "title": title, "status": status, "detail": detail}
    return json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode("utf-8")
