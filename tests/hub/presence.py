"""What the tests of subscriptions share: paths, a token, documents and random text."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from hypothesis import strategies as st

from hub.protocol.topics import FORBIDDEN
from tests.asgi import PATH, current_token

if TYPE_CHECKING:
    from hub.http.embedding import HubApplication

BELOW: Final = PATH + "/subscriptions"
EVERYTHING: Final = current_token(publish=["*"], subscribe=["*"])
_UNRESERVED: Final = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~")

TEXTS: Final = st.text(
    st.sampled_from("%+* /\\\"'{}?#[]&=:~é\u2028\U0001f600")
    | st.characters(codec="utf-8", exclude_characters="".join(FORBIDDEN))
)
"""Patterns and topics, with many characters that a path encodes."""


def subscribers(app: HubApplication) -> list[str]:
    """Return the ids of the subscribers that are live, oldest first."""
    return [seat.subscriber.id for seat in app.state.hub.delivery.audience]


def encoded(text: str) -> str:
    """Return the simple string expansion of RFC 6570, byte by byte."""
    return "".join(chr(byte) if byte in _UNRESERVED else f"%{byte:02X}" for byte in text.encode("utf-8"))


def document(type: str, pattern: str, subscriber: str, **more: Any) -> dict[str, Any]:
    """Return the document of a subscription of the current dialect (N124)."""
    return {
        "id": f"{BELOW}/{type}/{encoded(pattern)}/{encoded(subscriber)}",
        "type": "subscription",
        "match_type": type,
        "match": pattern,
        "subscriber": subscriber,
        "active": True,
        **more,
    }
