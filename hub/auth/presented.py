"""Where in a request a token is, and whether a page may send it from there (N58–N63, V40–V44)."""

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


@dataclass(frozen=True, slots=True)
class Presented:
    """A token, and what brought it: a cookie could be sent by a page of another origin, by way of a browser."""

    token: str = field(repr=False)  # a secret
    by: Literal["header", "query", "cookie"]


def find_token(headers: Headers, query_tokens: Sequence[str], settings: Settings) -> Presented | None:
    """The token of a request: in the header, else in the query, else in a cookie (N58–N61, V40).

    `query_tokens` are the values of the parameter `authorization`, which is read for classic tokens alone (V42).
    """
    given = header_values(headers, b"authorization")
    if len(given) > 1:
        raise InvalidPresentation(f"{len(given)} Authorization headers; there may be one")
    if given:
        scheme, _, token = given[0].strip().partition(b" ")
        token = token.strip()
        if scheme.lower() != b"bearer" or not token or b" " in token or not token.isascii():
            raise InvalidPresentation('the Authorization header must be "Bearer", a space and a token')
        return Presented(token.decode("ascii"), "header")
    if settings.classic and query_tokens:
        if len(query_tokens) > 1 or not query_tokens[0]:
            raise InvalidPresentation("the authorization parameter must be there once, with a token")
        return Presented(query_tokens[0], "query")
    cookies = dict(reversed(list(parse_cookies(headers))))  # the first of a name is the one nearest to this path
    for name in (settings.cookie, *([CLASSIC_COOKIE] if settings.classic else [])):  # V44, V86
        if value := cookies.get(name):
            return Presented(value, "cookie")
    return None


def require_same_site(headers: Headers, own: Collection[str], allowed: Collection[str]) -> None:
    """Raise InvalidPresentation unless a page that may publishes with the cookie (N63, V43).

    Its origin is one of `own`, or one that the patterns of `allowed` let in.
    """
    origin = next(iter(header_values(headers, b"origin")), None)
    if origin is None:
        referer = next(iter(header_values(headers, b"referer")), b"").decode("latin-1")
        try:
            parts = urlsplit(referer)
        except ValueError:
            parts = urlsplit("")
        origin = f"{parts.scheme}://{parts.netloc}".encode("latin-1") if parts.netloc else None
    if origin is None:
        raise InvalidPresentation("publishing with a cookie needs an Origin or Referer header")
    text = origin.decode("latin-1")
    if text.lower() not in map(str.lower, own) and not allows_origin(allowed, text):
        raise InvalidPresentation(f"the origin {shown(text)} may not publish with a cookie")
