"""Listing: the answer of the subscription API (N130–N140, V63).

Belongs here: which subscriptions a request gets, in which dialect, and its headers.
Does not belong here: who is present (`hub.node.presence`).
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from starlette.responses import Response, StreamingResponse

from hub import turns
from hub.errors import NotFound
from hub.protocol.data import discovery_link, to_json
from hub.protocol.requests import header_values, parse_subscription_path
from hub.protocol.subscriptions import CONTEXT

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable, Iterator

    from hub.auth.grant import CompiledGrant
    from hub.http.request import Request
    from hub.node.presence import Presence
    from hub.protocol.requests import Headers, SubscriptionPath
    from hub.protocol.subscriptions import Present, Subscription
    from hub.settings import Settings

_ETAG_ESCAPED: Final = frozenset([*range(0x21), ord('"'), ord("%"), 0x7F])
"""Bytes that an entity tag cannot contain, and the percent sign that escapes them."""


async def listed(request: Request, grant: CompiledGrant, presence: Presence, settings: Settings) -> Response:
    """Return the subscriptions of all nodes, those of one matcher, or a single one.

    The response is 304 if the client has the current version.  Raises
    `InsufficientScope` if the grant does not cover the path, and `NotFound` if the path
    names a subscription that does not exist.
    """
    path = request.raw_path
    grant.require_read(path)  # still encoded, and without the query (N131, V64)
    asked = parse_subscription_path(path, settings)
    classic = _is_classic(request, grant, asked, settings)
    cursor, repeated, present = await presence.snapshot()
    single = None
    if asked.subscriber is not None:
        same_id = [subscriber for subscriber in present if subscriber.id == asked.subscriber]
        single = next(filter(None, _chosen(same_id, asked, settings.path, classic=classic)), None)
        if single is None:
            raise NotFound("there is no such subscription")

    # If two updates have the cursor's id, it does not identify a version.
    if _is_known(request.headers, cursor) and not repeated:
        response = Response(status_code=304)
    elif single is not None:
        document = single.document(json_ld=classic)
        response = Response(to_json(CONTEXT | document | {"lastEventID": cursor} if classic else document))
    else:
        opening = {"id": path, "type": "subscriptions"}
        if classic:
            uri = path + (f"?{query}" if (query := request.query.decode("latin-1")) else "")
            opening = CONTEXT | {"id": uri, "type": "Subscriptions", "lastEventID": cursor}
        chosen = _chosen(present, asked, settings.path, classic=classic)
        response = StreamingResponse(_collection(opening, chosen, json_ld=classic))
    response.headers["content-type"] = "application/ld+json" if classic else "application/json"
    response.raw_headers += _cursor_headers(cursor, settings.path, classic=classic)
    return response


def _is_classic(request: Request, grant: CompiledGrant, asked: SubscriptionPath, settings: Settings) -> bool:
    """Return whether the document is of the classic dialect.

    The path decides, except for HUB/subscriptions, which is the same in both dialects
    (V84).  For that path, the client gets the classic dialect if it accepts JSON-LD, or
    if its token is classic.  A classic token gets the current dialect if the client
    accepts only plain JSON, as the debugger does.
    """
    if asked.classic is not None:
        return asked.classic
    accepted = b",".join(header_values(request.headers, b"accept")).decode("latin-1").lower()
    asks_for_json = accepted.strip() == "application/json"
    return settings.classic and ("application/ld+json" in accepted or (grant.classic and not asks_for_json))


def _chosen(
    present: Iterable[Present], asked: SubscriptionPath, hub_path: str, *, classic: bool
) -> Iterator[Subscription | None]:
    """Yield each subscription of `present`, or None instead if it is not asked for.

    The Nones let the caller pause while it skips many subscriptions.
    """
    for subscriber in present:
        for subscription in subscriber.subscriptions(hub_path):
            # A classic collection has only the classic subscriptions.
            if asked.matcher is None:
                chosen = subscription.is_classic or not classic
            else:
                chosen = (subscription.match_type, subscription.match) == asked.matcher
            yield subscription if chosen else None


def _cursor_headers(cursor: str, hub_path: str, *, classic: bool) -> Headers:
    """Return the headers of a document with this cursor (N135, N136).

    A cursor may be any Unicode, and is sent as UTF-8 (R77).
    """
    attributes = "" if classic else '; type="mercure"'
    link = discovery_link(hub_path, cursor) + attributes
    link += f'; content-type="application/{"ld+json" if classic else "json"}"'
    return [
        (b"link", link.encode("utf-8")),
        (b"etag", _etag(cursor)),
        (b"cache-control", b"private, must-revalidate"),
        (b"vary", b"Accept, Authorization, Cookie"),
    ]


async def _collection(
    opening: dict[str, str], subscriptions: Iterable[Subscription | None], *, json_ld: bool
) -> AsyncIterator[str]:
    """Yield a JSON object in parts: `opening`, and then the array of `subscriptions`.

    Other tasks run in between, because there may be very many.
    """
    part = [to_json(opening)[:-1], ',"subscriptions":[']
    comma = ""
    async for portion in turns.in_turns(subscriptions, turns.LISTED_SUBSCRIPTIONS):
        for subscription in portion:
            if subscription is not None:
                part.append(comma + to_json(subscription.document(json_ld=json_ld)))
                comma = ","
        if len(portion) == turns.LISTED_SUBSCRIPTIONS:
            yield "".join(part)
            part = []
    yield "".join([*part, "]}"])


def _etag(cursor: str) -> bytes:
    """Return the entity tag of a document with this cursor."""
    escaped = "".join(f"%{byte:02X}" if byte in _ETAG_ESCAPED else chr(byte) for byte in cursor.encode("utf-8"))
    return b'"' + escaped.encode("latin-1") + b'"'


def _is_known(headers: Headers, cursor: str) -> bool:
    """Return whether If-None-Match names the document of this cursor.

    The tag may lack its quotes, as the 0.x hub wrote tags (V63).
    """
    tag = _etag(cursor)
    given = b",".join(header_values(headers, b"if-none-match")).strip()
    # Not split at commas, because a tag may contain them.
    return tag in re.findall(rb'"[^"]*"', given) or given in (tag[1:-1], b"*")
