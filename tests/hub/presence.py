"""What the tests of subscriptions share: where they are, a token that may see all, and their documents."""

from __future__ import annotations

from typing import Any, Final

from tests.asgi import PATH, current_token

BELOW: Final = PATH + "/subscriptions"
EVERYTHING: Final = current_token(publish=["*"], subscribe=["*"])
_UNRESERVED: Final = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~")


def encoded(text: str) -> str:
    """RFC 6570's simple expansion, byte by byte."""
    return "".join(chr(byte) if byte in _UNRESERVED else f"%{byte:02X}" for byte in text.encode("utf-8"))


def document(type: str, pattern: str, subscriber: str, **more: Any) -> dict[str, Any]:
    """That of a subscription of the current dialect (N124)."""
    return {
        "id": f"{BELOW}/{type}/{encoded(pattern)}/{encoded(subscriber)}",
        "type": "subscription",
        "match_type": type,
        "match": pattern,
        "subscriber": subscriber,
        "active": True,
        **more,
    }
