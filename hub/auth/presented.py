"""Finds the token in a request, and checks which pages may publish with a cookie.

Rules N58–N63 and V40–V44.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Literal
from urllib.parse import urlsplit

from hub.errors import InvalidPresentation
from hub.protocol.origins import allows_origin
from hub.protocol.requests import header_values, parse_cookies
from skipfilter.text import shown

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from hub.protocol.requests import Headers
    from hub.settings import Settings

CLASSIC_COOKIE: Final = "mercureAuthorization"
"""The name of the cookie in the classic dialect (V44)."""


@dataclass(frozen=True, slots=True)
class Presented:
    """A token, and the part of the request that it was in.

    The part matters because a browser also sends a cookie with requests that a page of
    another origin makes.
    """

    token: str = field(repr=False)  # a secret
    by: Literal["header", "query", "cookie"]


def find_token(headers: Headers, query_tokens: Sequence[str], settings: Settings) -> Presented | None:
    """Return the token of a request, or None if it has none (N58–N61, V40).

    The header takes precedence over the query, and the query over the cookies.
    `query_tokens` are the values of the parameter `authorization`.  They are ignored if
    the classic dialect is off (V42).

    Raises InvalidPresentation if the header or the parameter is malformed or repeated.
    """
    # 1. The header.
    given = header_values(headers, b"authorization")
    if len(given) > 1:
        raise InvalidPresentation(f"there are {len(given)} Authorization headers; only one is allowed")
    if given:
        scheme, _, token = given[0].strip().partition(b" ")
        if scheme.lower() == b"basic":
            raise InvalidPresentation(
                "the Authorization header is a user and a password (Basic), and the hub takes tokens only; if a proxy "
                "asks for the password, let it leave out the path of the hub"
            )
        token = token.strip()
        if scheme.lower() != b"bearer" or not token or b" " in token or not token.isascii():
            raise InvalidPresentation('the Authorization header must be "Bearer", a space and a token')
        return Presented(token.decode("ascii"), "header")
    # 2. The query, for classic tokens only.
    if settings.classic and query_tokens:
        if len(query_tokens) > 1 or not query_tokens[0]:
            raise InvalidPresentation("the authorization parameter must occur once, with a token")
        return Presented(query_tokens[0], "query")
    # 3. The cookies.  If several have the same name, the first one counts: its path is
    # the nearest.
    cookies = dict(reversed(list(parse_cookies(headers))))
    for name in (settings.cookie, *([CLASSIC_COOKIE] if settings.classic else [])):  # V44, V86
        if value := cookies.get(name):
            return Presented(value, "cookie")
    return None


def require_same_site(
    headers: Headers, own: Collection[str], allowed: Collection[str], how: str = "with a cookie"
) -> None:
    """Raise InvalidPresentation if a page must not publish with a cookie (N63, V43).

    The origin of the page must be in `own`, or match a pattern in `allowed`.  It is in
    the header Origin or, if that is missing, in the Referer.  `how` says in the message
    how it publishes.
    """
    # The origin of the page: from Origin, else from Referer.
    origin = next(iter(header_values(headers, b"origin")), None)
    if origin is None:
        referer = next(iter(header_values(headers, b"referer")), b"").decode("latin-1")
        try:
            parts = urlsplit(referer)
        except ValueError:
            parts = urlsplit("")
        origin = f"{parts.scheme}://{parts.netloc}".encode("latin-1") if parts.netloc else None
    if origin is None:
        raise InvalidPresentation(f"publishing {how} needs an Origin or Referer header")
    # Compare it; case does not matter.
    text = origin.decode("latin-1")
    if text.lower() not in map(str.lower, own) and not allows_origin(allowed, text):
        raise InvalidPresentation(f"pages of the origin {shown(text)} are not allowed to publish {how}")
