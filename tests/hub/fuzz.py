"""Send random requests to a hub and check that every response is a valid one.

Run it as `python -m tests.hub.fuzz`.

    Asker ──requests──▶ hub, in this process ──responses──▶ check: by route and method;
      seeded: valid       or behind a socket                  each update is in the
      requests, then                                          history and arrives at a
      mangled bytes                                           subscriber to everything

A failure shows the request; the same seed and number of requests reproduce it.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import contextlib
import hashlib
import hmac
import itertools
import json
import logging
import random
import time
import warnings
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, TypeVar
from urllib.parse import quote, quote_plus, unquote, unquote_to_bytes

from hub.auth.grant import DETAIL_TYPE
from hub.development import DEVELOPMENT_ISSUER, DEVELOPMENT_KEY
from tests.asgi import PATH, Answer, application, ask, current_token, follow

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from hub.history.base import Entry
    from hub.http.embedding import HubApplication

Headers = list[tuple[bytes, bytes]]
SMALL_PAGES: Final = ("/robots.txt", "/healthz", "/mercure/health/default/ready", PATH + "/health/live")
T = TypeVar("T")

DIALECTS: Final = [
    {"classic": classic, "subscriptions": subscriptions, "anonymous": anonymous}
    for classic, subscriptions, anonymous in itertools.product([True, False], repeat=3)
]
SMALL: Final[dict[str, Any]] = {
    "cors_origins": ("https://shop.example", "https://*.shop.example"),
    "publish_origins": ("https://desk.example",),
    "max_body": 20_000,
    "max_batch": 5,
    "max_topics": 5,
    "max_topic": 300,
    "max_matchers": 6,
    "max_classic_matchers": 8,
    "max_pattern": 300,
    "max_matchers_bytes": 1_000,
    "max_url_patterns": 50,
    "cached_topics": 50,
    "cached_topics_bytes": 2_000,
    "cached_tokens": 500,
    "history_updates": 500,
    "heartbeat": 0,
}
"""Small bounds, so that requests reach them."""
SLOW: Final = 5.0
"""The time limit of a request, in seconds."""


@dataclass(frozen=True)
class Request:
    method: str
    target: bytes
    headers: Headers = field(default_factory=list)
    body: bytes = b""


# -- requests

TEXTS: Final = [
    "", "*", " ", "a", "é", "漢", "😀", "\u202e", "\x00", "\n", "\r", "\r\n", "\u2028", "\x85", "\x7f", "\ufeff", "#", "#x", "earliest", "mercure", "exact",
    "https://example.com/books/1", "https://example.com/books/2", "https://example.com/books/{id}", "https://example.com/books/:id", "urn:a", "urn:b",
    "/books/1", "http:books", "//x", "https://[", "https://%zz/", PATH, PATH + "/x", "mercure", "mercure/x", f"https://x{PATH}", "/.well-known/me%72cure/y",
    PATH + "/subscriptions", PATH + "/subscriptions{/topic}{/subscriber}", PATH + "/subscriptions/:match_type/:match/:subscriber",
    "{", "}", "{}", "{a", "{a,b*}", "{?a}", "{+a}{b:3}", "{=a}", ":id", ":", "(", "(a+)+$", "([", "[^a]", "\\", "/:a?", "*?", "/*", "a.*.b", "a.#", "..", "a/+/b", "a/#", "#/a", "+",
    "%", "%41", "%FF", "&", "=", ";", "+5", "-1", "0", "1", "007", "1" * 30, "٣", "1.0", "true", "x" * 299, "é" * 200, "a/" * 60, "{a}" * 40, ":a/" * 30,
]  # fmt: skip
SOBER: Final = [
    "*",
    "a",
    "é",
    "urn:a",
    "urn:b",
    "a.b",
    "a/b",
    "https://example.com/books/1",
    "https://example.com/books/2",
]
MATCHERS: Final = [
    *["match", "match_exact", "match_urlpattern", "match_uritemplate", "match_amqp", "match_mqtt", "topic"] * 3,
    "Match", "matches", "match_", "match_regexp", "MATCH_exact", "Topic",
]  # fmt: skip
CURSORS: Final = ["last_event_id", "lastEventID", "lastEventId", "Last-Event-ID"]
METHODS: Final = ["GET", "HEAD", "QUERY", "POST", "OPTIONS", "PUT", "DELETE", "PATCH", "TRACE", "get", "X"]
TYPES: Final = [
    "application/x-www-form-urlencoded", "application/x-www-form-urlencoded; charset=utf-8", "Application/X-WWW-Form-Urlencoded",
    "application/x-ndjson", "application/json", "text/plain", "multipart/form-data; boundary=x", "", ";",
]  # fmt: skip
ORIGINS: Final = {
    "https://shop.example": True, "https://a.shop.example": True, "HTTPS://SHOP.EXAMPLE": True, "https://shop.example:8443": False,
    "https://evil.example": False, "https://desk.example": False, "https://hub.example": False, "https://shop.example.evil.example": False,
    "https://evil.example/.shop.example": False, "null": False, "": False, "*": False,
}  # fmt: skip
"""Each origin, and whether its pages may read responses."""
HOSTS: Final = [
    "hub.example",
    "HUB.example:443",
    "",
    "[::1]:80",
    'a"b',
    "a\\b",
    "é",
    "x@y",
    "a b",
    "evil.example",
    "x" * 300,
]
JUNK: Final = [
    b"\x00", b"\xff", b"\xc3\xa9", b"\xed\xa0\x80", b"\r\n", b"\n", b"&", b"=", b";", b"%", b"%00", b"%ff", b"%0a", b"%2F", b"+", b"?", b"#", b"/", b"//", b"..", b"/../",
    b".", b",", b'"', b"\\", b"{", b"}", b"[", b"]", b"null", b"1e999", b"\\ud800", b"match=*", b"topic=urn:a", b"private", b" ", b"\t", b"a" * 2_000,
]  # fmt: skip
VALUES: Final[list[Any]] = [
    None, True, False, 0, 1, -1, 0.5, 1e300, 2**64, 10**400, float("nan"), float("inf"), "", "*", "urn:a", "\ud800", "publish", "subscribe", "exact", "urlpattern", "(",
    [], {}, [[]], [None], ["*"], [{"match": "*"}], [{"match": "urn:a", "match_type": "nope"}], {"match": "*"}, {"a": {"b": [1, "é"]}}, DETAIL_TYPE, ["x"] * 1_001,
]  # fmt: skip


ODD_NUMBERS: Final = [
    "٣",
    "５",
    "²",
    "+5",
    "-1",
    " 5",
    "5 ",
    "5.0",
    "0x5",
    "1_0",
    "007",
    "1" * 15,
    "1" * 16,
    "1" * 5_000,
    "",
]
ODD_LINES: Final = [
    b"[" * 5_000, b'{"topic": ' * 1_500, b"1" * 5_000, b"null", b"1", b"[]", b"{}", b'"urn:a"', b"\xff", b'{"topic": "\\ud800"}',
    b'{"topic": "urn:a", "data": "\\udc00"}', b'{"topic": "urn:a", "id": "\\ud800"}', b'{"topic": "urn:a", "data": "\xff"}',
    b'{"topic": ["urn:a", null]}', b'{"topic": {}}', b'{"topic": null}', b'{"topic": "urn:a", "retry": 1e999}',
    b'{"topic": "urn:a", "retry": NaN}', b'{"topic": "urn:a", "retry": true}', b'{"topic": "urn:a", "private": 0}',
    b'{"topic": "urn:a", "private": "no"}', b'{"topic": "urn:a", "data": 1}', b'{"topic": "urn:a", "type": []}',
    b'{"topic": "urn:a", "topic": "urn:b"}', b'\xef\xbb\xbf{"topic": "urn:a"}', b'{"topic": "urn:a"} {}',
]  # fmt: skip
_FOR_US: Final = f'{{"iss": "{DEVELOPMENT_ISSUER}", "aud": "https://hub.example{PATH}", "exp": '
ODD_CLAIMS: Final = [
    *["[" * 5_000, '{"a": ' * 5_000, "1" * 5_000, "null", "1", "[]", "{}", '"x"', "", "\ufeff{}"],
    *[_FOR_US + exp + "}" for exp in ("1e999", "-1e999", "NaN", "1" * 400, "true", '"1"', "[]", "9e15", "0")],
    *[f'{_FOR_US}9e15, "authorization_details": [{{"type": "{DETAIL_TYPE}", {detail}}}]}}' for detail in (
        '"actions": ["publish"], "topics": [{"match": "a", "match_type": "nope"}]', '"actions": [1], "topics": [{"match": "a"}]',
        '"actions": ["publish"], "topics": [{"match": {}}]', '"actions": ["publish"], "topics": ["a"]', '"topics": [{"match": "a"}]',
    )],
    *['{"exp": 9e15, "mercure": ' + claim + "}" for claim in (
        '{"publish": "\\ud800"}', '{"subscribe": ["\\ud800"]}', '{"payload": "\\ud800"}', '{"payload": NaN}',
        '{"publish": [[]]}', '{"publish": [{"match": {}}]}', '{"publish": [{"match": "a", "match_type": []}]}', "[]", '"x"', "null",
    )],
    *['{"iss": ' + issuer + "}" for issuer in ('"\\ud800"', "[]", "{}", "1", "null")],
]  # fmt: skip
"""As text, because `json` would not write JSON like this."""


class Asker:
    """A source of requests; the same seed makes the same requests."""

    def __init__(self, seed: int, *, classic: bool) -> None:
        self.chance = random.Random(seed)
        self._classic = classic
        self._sober = True

    def request(self) -> Request:
        chance = self.chance
        self._sober = self.flip(0.6)
        kind = chance.choices([self.subscribe, self.publish, self.list_subscriptions, self.other], [5, 6, 3, 1])[0]
        request = kind()
        match chance.random():
            case dice if self._sober or dice < 0.2:
                return request
            case dice if dice < 0.8:
                return self.mangled(request)
        return Request(
            self.maybe(request.method, METHODS), self.raw(), [(self.name(), self.line()) for _ in range(4)], self.raw()
        )

    # mostly valid

    def subscribe(self) -> Request:
        pairs = [(self.pick(MATCHERS), self.text()) for _ in range(self.chance.choice([0, 1, 1, 1, 2, 3, 7]))]
        if self.flip(0.4):
            pairs.append((self.pick(CURSORS), self.text()))
        if self.flip(0.1):
            pairs.append((self.pick(["authorization", "access_token", "", "_"]), self.token()))
        self.chance.shuffle(pairs)
        method = self.chance.choices(["GET", "HEAD", "QUERY", *METHODS[4:]], [6, 1, 4, *[0.1] * len(METHODS[4:])])[0]
        headers = self.headers()
        if self.flip(0.3):
            headers.append((b"last-event-id", self.text().encode()))
        if method != "QUERY":
            return Request(method, PATH.encode() + b"?" + self.form(pairs), headers)
        if self.flip(0.9):
            headers.append((b"content-type", self.pick(TYPES[:3] if self.flip(0.9) else TYPES).encode()))
        cut = self.chance.randrange(len(pairs) + 1)
        return Request(method, PATH.encode() + b"?" + self.form(pairs[:cut]), headers, self.form(pairs[cut:]))

    def publish(self) -> Request:
        odd = not self._sober and self.flip(0.6)
        self._sober |= odd  # the rest is valid, so that it is not refused first
        headers = self.headers(needs_token=True)
        by_line = self.flip(0.4)
        is_array = by_line and self.flip(0.4)
        headers.append((b"content-type", TYPES[4 if is_array else 3 if by_line else 0].encode()))
        if by_line:
            updates = [self.update() for _ in range(self.chance.choice([1, 1, 2, 3, 6][: 4 if self._sober else 5]))]
            if odd and self.flip(0.5):
                updates[-1] = self.odd(updates[-1])
            lines = [json.dumps(update, ensure_ascii=self.flip(0.5)).encode("utf-8", "replace") for update in updates]
            lines = [*lines, self.pick(ODD_LINES)] if odd and self.flip(0.5) else lines
            body = b"[" + b",".join(lines) + b"]" if is_array else b"\n".join(lines)
        else:
            fields = self.update()
            topics = fields.pop("topic", [])
            pairs = [("topic", topic) for topic in ([topics] if isinstance(topics, str) else topics)]
            if "private" in fields:
                fields["private"] = self.pick(["", "0", "false", "on"])  # N50: the name alone counts
            pairs += [(name, str(value)) for name, value in fields.items()]
            self.chance.shuffle(pairs)
            if odd:
                name = self.pick(["id", "type", "private", "data", "topic", "", "Topic"])
                odd_pairs = [("retry", self.pick(ODD_NUMBERS)), (name, self.pick(TEXTS)), *pairs[:1]]
                pairs = [self.pick(odd_pairs), *pairs]
            body = self.form(pairs)
        query = b"?" + self.form([("a", "b")]) if self.flip(0.1) else b""
        return Request("POST", PATH.encode() + query, headers, body)

    def update(self) -> dict[str, Any]:
        topics = [self.topic() for _ in range(self.chance.choice([1, 1, 1, 2, 6][: 4 if self._sober else 5]))]
        update: dict[str, Any] = {"topic": topics[0] if len(topics) == 1 and self.flip(0.5) else topics}
        if self.flip(0.8):
            update["data"] = "".join(self.chance.choices(TEXTS, k=self.chance.randrange(5)))
        if self.flip(0.3):
            update["id"] = f"urn:{self.chance.randrange(1_000)}" if self.flip(0.6) else self.text()
        if self.flip(0.2):
            update["type"] = self.text()
        if self.flip(0.3):
            update["private"] = True
        if self.flip(0.2):
            update["retry"] = self.chance.choice([0, 1, 5_000, 10**15, -1][: 3 if self._sober else 5])
        return update

    def list_subscriptions(self) -> Request:
        path = PATH + "/subscriptions"
        segments: list[str] = []
        match self.chance.randrange(4):
            case 1:
                segments = [self.text()]
            case 2:
                segments = [self.pick(["exact", "urlpattern", "amqp", "nope", "topic"]), self.text()]
            case 3:
                segments = ["exact", self.text(), self.text()]
        path += "".join("/" + quote(segment, safe="") for segment in segments)
        headers = self.headers(needs_token=True)
        if self.flip(0.3):
            headers.append((b"accept", self.pick(["application/ld+json", "application/json", "*/*", "é"]).encode()))
        if self.flip(0.3):
            headers.append((b"if-none-match", self.pick(["*", '"x"', "x", "W/", ",", '"earliest"', "é"]).encode()))
        return Request(self.maybe("GET", METHODS), path.encode() + (b"?a=b" if self.flip(0.2) else b""), headers)

    def other(self) -> Request:
        metadata = "/.well-known/oauth-protected-resource" + PATH
        debugger = [
            PATH + "/debug" + rest
            for rest in ("", "/", "/config.json", "/debugger.js", "/../x", "/%2e%2e/x", "/a%00b", "/" + "x" * 400)
        ]
        path = self.pick(
            [
                metadata,
                metadata + "/",
                *debugger,
                "/",
                "//",
                PATH + "/",
                "/x",
                "*",
                "",
                *SMALL_PAGES,
                "/healthz/",
                "//evil.example/" + PATH + "/",
            ]
        )
        headers = self.headers()
        if self.flip(0.2):
            headers.append((b"range", self.pick(["bytes=0-1", "bytes=9-1", "bytes=-", "x", "bytes=0-1,5-6"]).encode()))
        return Request(self.maybe("GET", METHODS), path.encode(), headers)

    def headers(self, *, needs_token: bool = False) -> Headers:
        headers: Headers = []
        if self.flip(0.9 if needs_token else 0.4):
            scheme = self.pick(
                ["Bearer ", "Bearer ", "Bearer ", "Bearer ", "bearer  ", "Basic ", "Bearer", ""]
                if self.flip(0.2)
                else ["Bearer "]
            )
            where = self.chance.choices([b"authorization", b"cookie"], [4, 1])[0]
            names = [self.pick(["mercure_access_token", "mercureAuthorization"]) for _ in range(2)]
            value = scheme + self.token() if where == b"authorization" else f"{names[0]}={self.token()}; {names[1]}=x"
            headers.append((where, self.clean(value.encode("utf-8", "replace"))))
        if self.flip(0.2):
            headers.append((b"origin", self.pick(list(ORIGINS)).encode()))
        if self.flip(0.05):
            headers.append(
                (b"referer", self.pick(["https://desk.example/x", "https://hub.example", "http://[", "x", ""]).encode())
            )
        if self.flip(0.05):
            headers.append((b"host", self.pick(HOSTS).encode()))
        if self.flip(0.05):
            headers.append((b"access-control-request-method", self.pick(METHODS).encode()))
            headers.append(
                (b"access-control-request-headers", self.pick(["authorization", "x-other", "", "é", ","]).encode())
            )
        return headers

    def token(self) -> str:
        """Return a token: mostly valid, or with odd claims, or any text."""
        chance = self.chance
        everything = [{"match": "*"}]
        detail = {"type": DETAIL_TYPE, "actions": ["publish", "subscribe"], "topics": everything, "payload": {"a": "é"}}
        current: dict[str, Any] = {
            "iss": DEVELOPMENT_ISSUER,
            "aud": f"https://hub.example{PATH}",
            "exp": int(time.time()) + 3_600,
            "authorization_details": [detail],
        }
        classic: dict[str, Any] = {"mercure": {"publish": ["*"], "subscribe": ["*"], "payload": [1]}}
        kinds = [({"typ": "at+jwt", "alg": "HS256"}, current), ({"typ": "JWT", "alg": "HS256"}, classic)]
        header, claims = chance.choice(kinds if self._classic or not self._sober else kinds[:1])
        match chance.random() * (3 if self._sober else 1):
            case dice if dice < 0.1:
                detail["topics"] = [
                    {"match": self.text(), "match_type": self.pick(["exact", "uritemplate", "mqtt", "urlpattern"])}
                ]
                classic["mercure"]["publish"] = [self.text()]
            case dice if dice < 0.2:
                claims = self.odd(claims)
            case dice if dice < 0.3:
                return _sign(header, self.pick(ODD_CLAIMS))
            case dice if dice < 0.33:
                header = self.odd(header)
            case dice if dice < 0.36:
                return self.mangle(_sign(header, claims).encode()).decode("latin-1")
            case dice if dice < 0.39:
                return self.raw().decode("latin-1")
        return _sign(header, claims, DEVELOPMENT_KEY if self.flip(0.98) else "another key, of some length, for a token")

    # odd

    def odd(self, value: Any) -> Any:
        """Return `value` with something else somewhere inside."""
        if isinstance(value, dict) and value and self.flip(0.85):
            name = self.pick(list(value))
            if self.flip(0.1):
                return {key: one for key, one in value.items() if key != name}
            if self.flip(0.1):
                return value | {
                    self.pick(
                        ["kid", "crit", "b64", "jwk", "nbf", "iat", "sub", "https://mercure.rocks/", name]
                    ): self.pick(VALUES)
                }
            return value | {name: self.odd(value[name])}
        if isinstance(value, list) and value and self.flip(0.7):
            place = self.chance.randrange(len(value))
            return [*value[:place], self.odd(value[place]), *value[place + 1 :]] + (
                [self.pick(VALUES)] if self.flip(0.2) else []
            )
        if self.flip(0.02):
            return json.loads("[" * 500 + "]" * 500)
        return self.pick(VALUES)

    def mangled(self, request: Request) -> Request:
        method, target, headers, body = request.method, request.target, list(request.headers), request.body
        for _ in range(self.chance.choice([1, 1, 2, 5])):
            match self.chance.randrange(5):
                case 0:
                    target = self.mangle(target)
                case 1 if headers:
                    place = self.chance.randrange(len(headers))
                    headers[place] = (headers[place][0], self.clean(self.mangle(headers[place][1])))
                case 2 if headers:
                    headers.append(self.pick(headers))
                case 3:
                    headers.append((self.name(), self.line()))
                case _:
                    body = self.mangle(body)
        return Request(method, target, headers, body)

    def mangle(self, text: bytes) -> bytes:
        place = self.chance.randrange(len(text) + 1)
        end = place + self.chance.choice([0, 1, 1, 2, 10])
        match self.chance.randrange(5):
            case 0:
                return text[:place] + text[end:]
            case 1:
                return text[:place] + self.pick(JUNK) + text[place:]
            case 2:
                return text[:place] + self.chance.randbytes(end - place) + text[end:]
            case 3:
                return text[:end] + text[place:]
        return text[:place]

    def raw(self) -> bytes:
        if self.flip(0.5):
            return self.chance.randbytes(self.chance.choice([0, 1, 10, 100]))
        return b"".join(self.chance.choices(JUNK, k=self.chance.randrange(8)))

    def form(self, pairs: Iterable[tuple[str, str]]) -> bytes:
        return b"&".join(self._escape(name) + b"=" + self._escape(value) for name, value in pairs)

    def _escape(self, text: str) -> bytes:
        if self.flip(0.9):
            return self.pick([quote, quote_plus])(text, safe="", errors="replace").encode()
        return text.encode("utf-8", "replace").replace(b"%", b"%25").replace(b"&", b"%26").replace(b"+", b"%2B")

    def text(self) -> str:
        if self._sober and self.flip(0.9):
            return self.pick(SOBER)
        return self.pick(TEXTS) if self.flip(0.9) else "".join(self.chance.choices(TEXTS, k=3))

    def topic(self) -> str:
        return self.pick(SOBER[1:]) if self._sober or self.flip(0.8) else self.text()

    def name(self) -> bytes:
        return self.pick(
            [
                b"authorization",
                b"cookie",
                b"host",
                b"origin",
                b"content-type",
                b"last-event-id",
                b"accept",
                b"x",
                b"content-length",
            ]
        )

    def line(self) -> bytes:
        return self.clean(self.raw())

    def clean(self, value: bytes) -> bytes:
        """Return the part of `value` that a server accepts as the value of a header."""
        return value.translate(None, b"\r\n\x00").strip()

    def maybe(self, usual: str, others: Sequence[str]) -> str:
        return usual if self.flip(0.85) else self.pick(others)

    def flip(self, probability: float) -> bool:
        return self.chance.random() < probability

    def pick(self, some: Sequence[T]) -> T:
        return self.chance.choice(some)


def _sign(header: Any, claims: Any, key: str = DEVELOPMENT_KEY) -> str:
    parts = [
        (part if isinstance(part, str) else json.dumps(part)).encode("utf-8", "replace") for part in (header, claims)
    ]
    text = b".".join(base64.urlsafe_b64encode(part).rstrip(b"=") for part in parts)
    signature = hmac.digest(key.encode(), text, hashlib.sha256)
    return (text + b"." + base64.urlsafe_b64encode(signature).rstrip(b"=")).decode()


# -- responses


def route_of(target: bytes, settings: dict[str, Any]) -> str:
    path = unquote(target.partition(b"?")[0].decode("latin-1"))
    if path == PATH:
        return "hub"
    if path == PATH + "/subscriptions" or path.startswith(PATH + "/subscriptions/"):
        return "subscriptions" if settings["subscriptions"] else "elsewhere"
    if path == "/.well-known/oauth-protected-resource" + PATH:
        return "metadata"
    if path in ("/", PATH + "/debug"):
        return "redirect"
    if path in SMALL_PAGES:
        return "small page"
    if path == "*":
        return "asterisk"
    return "debugger" if path.startswith(PATH + "/debug/") else "elsewhere"


SUBSCRIBE: Final = {200, 400, 401, 429}
READ: Final = {200, 304, 400, 401, 403, 404}
PAGES: Final = {200, 206, 304, 400, 404, 405, 416}
STATUSES: Final[dict[str, dict[str, set[int]]]] = {
    "hub": {"GET": SUBSCRIBE, "HEAD": SUBSCRIBE, "QUERY": SUBSCRIBE | {413, 415}, "POST": {200, 400, 401, 403, 413}},
    "subscriptions": {"GET": READ, "HEAD": READ},
    "metadata": {"GET": {200}, "HEAD": {200}},
    "small page": {"GET": {200}, "HEAD": {200}},
    "debugger": {"GET": PAGES, "HEAD": PAGES},
    "elsewhere": {"GET": {404}, "HEAD": {404}},
}
"""The statuses that each method may get; other methods get one of `REFUSED`."""
REFUSED: Final = {404, 405}
PREFLIGHT: Final = {200, 400}


def check(request: Request, answer: Answer, settings: dict[str, Any]) -> str:
    """Check a response and return the name of its route.

    Raises `AssertionError` if the response is malformed or not valid for the route.
    """
    route = route_of(request.target, settings)
    names = {name for name, _ in request.headers}
    preflight = request.method == "OPTIONS" and {b"origin", b"access-control-request-method"} <= names
    if route == "asterisk":
        allowed = {204 if request.method == "OPTIONS" else 400}
    else:
        allowed = {307} if route == "redirect" else STATUSES[route].get(request.method, REFUSED)
    allowed = PREFLIGHT if preflight else allowed
    assert answer.status in allowed, f"{answer.status} is none of {sorted(allowed)}: {answer.body[:300]!r}"
    _check_headers(request, answer, route)
    file = route == "debugger" and answer.headers.get("content-type", "").startswith("text/plain")
    if answer.status >= 400 and not preflight and not file:
        _check_problem(answer)
    elif route == "hub" and answer.status == 200 and request.method in ("GET", "QUERY"):
        assert answer.headers["content-type"].startswith("text/event-stream")
        assert answer.headers["x-accel-buffering"] == "no"
        assert answer.body.startswith(b":\n")
    elif route == "subscriptions" and answer.status == 200 and request.method == "GET":
        assert "json" in answer.headers["content-type"]
        assert answer.json()["type"].lower() in ("subscription", "subscriptions")
        assert answer.headers["link"].startswith(f'<{PATH}>; rel="mercure"; last-event-id="')
    elif route == "metadata" and answer.status == 200:
        assert answer.json()["bearer_methods_supported"] == ["header"]
    return "preflight" if preflight else route


def _check_headers(request: Request, answer: Answer, route: str) -> None:
    for name, value in answer.raw_headers:
        assert name == name.lower(), name
        assert not set(value).intersection(b"\r\n\x00"), (name, value)
        assert value == value.strip(b" "), (name, value)
        value.decode("utf-8")
    counts = Counter(name for name, _ in answer.raw_headers)
    for name in (
        b"content-type",
        b"content-length",
        b"access-control-allow-origin",
        b"www-authenticate",
        b"link",
        b"etag",
    ):
        assert counts[name] <= 1, (name, answer.raw_headers)
    for name in (b"content-security-policy", b"x-content-type-options", b"x-frame-options", b"referrer-policy"):
        assert counts[name] == 1, name
    length = answer.headers.get("content-length")
    if length is not None and request.method != "HEAD" and answer.status != 206:  # the client leaves between ranges
        assert int(length) == len(answer.body)
    challenge = answer.headers.get("www-authenticate", "")
    assert (answer.status == 401) <= challenge.startswith("Bearer")
    assert (answer.status == 403) <= ('error="insufficient_scope"' in challenge)
    origins = [value.decode("latin-1") for name, value in request.headers if name == b"origin"]
    allowed = answer.headers.get("access-control-allow-origin")
    if len(origins) == 1 and origins[0] in ORIGINS and route != "metadata":
        assert allowed == (origins[0] if ORIGINS[origins[0]] else None)
    assert allowed is None or allowed in origins or (allowed == "*" and route == "metadata")
    assert (allowed == "*") <= ("access-control-allow-credentials" not in answer.headers)


def _check_problem(answer: Answer) -> None:
    assert answer.headers["content-type"] == "application/problem+json", answer.headers
    problem = answer.json()
    assert problem["status"] == answer.status
    assert problem["title"]
    assert problem["detail"]
    answer.body.decode("utf-8")
    assert "Traceback" not in answer.text
    assert (answer.status == 405) <= ("allow" in answer.headers)


def sent_updates(request: Request, ids: str) -> list[dict[str, Any]]:
    """Return the updates of an accepted request, from a naive reading of its body."""
    type = next((value for name, value in request.headers if name == b"content-type"), b"").lower()
    if b"json" in type:
        lines = (
            [json.loads(line) for line in request.body.split(b"\n") if line.strip()]
            if b"nd" in type
            else _listed(request.body)
        )
        said = [
            {name: line.get(name) or None for name in ("data", "id", "type")}
            | {"topics": [line["topic"]] if isinstance(line["topic"], str) else line["topic"]}
            | {"private": line.get("private", False), "retry": line.get("retry")}
            for line in lines
        ]
        given = ids.split("\n")[:-1]
    else:
        halves = [pair.replace(b"+", b" ").partition(b"=") for pair in request.body.split(b"&") if pair]
        pairs = [(_text(name), _text(value)) for name, _, value in halves]
        first = dict(reversed(pairs))
        assert set(first.get("retry", "")) <= set("0123456789")
        said = [
            {name: first.get(name) or None for name in ("data", "id", "type")}
            | {"topics": [value for name, value in pairs if name == "topic"], "private": "private" in first}
            | {"retry": int(first["retry"].lstrip("0")[:99] or 0) if first.get("retry") else None}
        ]
        given = [ids]
    assert len(given) == len(said)
    for update, id in zip(said, given, strict=True):
        assert update["id"] in (None, id)
        retry = None if update["retry"] is None else min(update["retry"], 86_400_000)
        update |= {"id": id, "data": update["data"] or "", "retry": retry}
    return said


def _listed(body: bytes) -> list[dict[str, Any]]:
    value = json.loads(body)
    return value if isinstance(value, list) else [value]


def _text(encoded: bytes) -> str:
    """Decode leniently: names and values that are ignored need not be UTF-8 (N3)."""
    return unquote_to_bytes(encoded).decode("utf-8", "replace")


def read_events(stream: bytes) -> Iterator[tuple[str, str, str]]:
    """Yield id, type and data of each event, by the algorithm of the HTML standard."""
    id, type, data = "", "", None
    for line in stream.decode("utf-8").replace("\r\n", "\n").replace("\r", "\n").split("\n")[:-1]:
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if not line:
            if data is not None:
                yield id, type or "message", data
            type, data = "", None
        elif name == "id" and "\x00" not in value:
            id = value
        elif name == "event":
            type = value
        elif name == "data":
            data = value if data is None else f"{data}\n{value}"


# -- in this process


@dataclass
class Summary:
    answers: Counter[tuple[str, str, int]] = field(default_factory=Counter)
    published: int = 0
    seconds: float = 0.0
    slowest: float = 0.0
    slowest_request: Request | None = None

    @property
    def requests(self) -> int:
        return self.answers.total()


class _Errors(logging.Handler):
    """Collects the errors that the hub and the event loop log."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.records: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record.getMessage())


async def fuzz(
    requests: int, seed: int, summary: Summary, progress: Callable[[], object] = lambda: None, **settings: Any
) -> None:
    """Send a number of requests to a hub with `settings`.

    Raises `AssertionError` for the first wrong response.
    """
    asker = Asker(seed, classic=settings["classic"])
    errors = _Errors()
    loggers = [logging.getLogger(name) for name in ("hub", "asyncio")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.addHandler(errors)
        logger.setLevel(logging.ERROR)
    try:
        async with application(**SMALL | settings) as app:
            token = current_token(["*"], ["*"])
            # This subscriber to everything receives each update once.
            async with follow(app, ("match", "*"), headers=[("authorization", f"Bearer {token}")]) as everything:
                log: list[Entry] = []
                for number in range(requests):
                    request = asker.request()
                    try:
                        await _ask_and_check(app, request, settings, summary, log)
                        assert not errors.records, errors.records
                    except Exception as error:
                        raise AssertionError(
                            f"request {number} of seed {seed}, {settings}: {request}\n{error!r}"
                        ) from error
                    progress()
                await _check_that_it_works(app, token)
                log += await _entries_after(app, log)
                while len(events := list(read_events(everything.body))) < len(log):
                    await everything.changed()
                assert events == [
                    (update.id, update.type or "message", _normalised(update.data))
                    for update in (entry.update for entry in log)
                ]
                assert app.state.hub.delivery.connection_count == 1, "a subscriber was left behind"
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.removeHandler(errors)
            logger.setLevel(level)


async def _ask_and_check(
    app: HubApplication, request: Request, settings: dict[str, Any], summary: Summary, log: list[Entry]
) -> None:
    begun = time.perf_counter()
    answer = await ask(app, request.method, request.target, request.headers, request.body)
    seconds = time.perf_counter() - begun
    assert seconds < SLOW, f"took {seconds:.1f} s"
    if seconds > summary.slowest:
        summary.slowest, summary.slowest_request = seconds, request
    route = check(request, answer, settings)
    summary.seconds += seconds
    summary.answers[route, request.method, answer.status] += 1
    entries = await _entries_after(app, log)
    log += entries
    about = PATH + "/subscriptions/"
    new = [entry.update for entry in entries if not entry.update.topics[0].startswith(about)]
    if request.method == "POST" and route == "hub" and answer.status == 200:
        said = sent_updates(request, answer.text)
        summary.published += len(said)
        assert [
            {name: getattr(update, name) for name in said[0]} | {"topics": list(update.topics)} for update in new
        ] == said
    else:
        assert not new, f"the hub published updates of a request that it refused: {new}"


async def _entries_after(app: HubApplication, log: list[Entry]) -> list[Entry]:
    entries: list[Entry] = []
    position = log[-1].position if log else 0
    while page := await app.state.hub.history.read(position):
        entries += page
        position = page[-1].position
    return entries


async def _check_that_it_works(app: HubApplication, token: str) -> None:
    headers: Headers = [
        (b"authorization", f"Bearer {token}".encode()),
        (b"content-type", b"application/x-www-form-urlencoded"),
    ]
    answer = await ask(app, "POST", PATH, headers, b"topic=urn:last&data=last")
    assert answer.status == 200, answer.text


def _normalised(data: str) -> str:
    return data.replace("\r\n", "\n").replace("\r", "\n")


# -- behind a socket


async def fuzz_socket(
    port: int, requests: int, seed: int, summary: Summary, progress: Callable[[], object] = lambda: None
) -> None:
    """Send bytes to a local server, about half of which are not HTTP.

    Raises `AssertionError` for a response with status 500.
    """
    asker = Asker(seed, classic=True)
    numbers = iter(range(requests))

    async def send_some() -> None:
        for _ in numbers:
            text = _on_the_wire(asker)
            try:
                status = await asyncio.wait_for(_exchange(port, text), SLOW)
            except TimeoutError:
                raise AssertionError(f"no answer in {SLOW} s to {text!r}") from None
            assert status != 500, text
            summary.answers["socket", "any", status] += 1
            progress()

    begun = time.perf_counter()
    await asyncio.gather(*[send_some() for _ in range(20)])
    summary.seconds += time.perf_counter() - begun


def _on_the_wire(asker: Asker) -> bytes:
    request = asker.request()
    target = request.target.replace(b" ", b"%20") or b"/"
    headers = [header for header in request.headers if header[0] not in (b"content-length", b"host")]
    headers += [
        (b"host", b"localhost"),
        (b"connection", b"close"),
        (b"content-length", str(len(request.body)).encode()),
    ]
    lines = [
        b" ".join([request.method.encode(), target, b"HTTP/1.1"]),
        *[name + b": " + value for name, value in headers],
    ]
    text = b"\r\n".join([*lines, b"", b""]) + request.body
    for _ in range(asker.pick([0, 0, 1, 3])):
        text = asker.mangle(text)
    return text


async def _exchange(port: int, text: bytes) -> int:
    """Return the status of the response; 0 if none comes in half a second."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(text)
        with contextlib.suppress(ConnectionError, TimeoutError):
            first = await asyncio.wait_for(reader.readline(), 0.5)
            return int(first.split()[1]) if first.startswith(b"HTTP/1.1 ") else 0
        return 0
    finally:
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()


# -- from the command line


def main(arguments: Sequence[str] | None = None) -> None:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
    from rich.table import Table

    parser = argparse.ArgumentParser(prog="python -m tests.hub.fuzz", description="Send random requests to a hub.")
    parser.add_argument("--requests", type=int, default=100_000, help="how many requests, over eight hubs (100,000)")
    parser.add_argument("--seed", type=int, default=1, help="the same seed makes the same requests (1)")
    parser.add_argument(
        "--socket", action="store_true", help="ask a hub in its own process, also with bytes that are not HTTP"
    )
    chosen = parser.parse_args(arguments)
    warnings.simplefilter("error")
    summary = Summary()
    console = Console()
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console) as progress:
        task = progress.add_task("requests", total=chosen.requests)

        def advance() -> None:
            progress.advance(task)

        if chosen.socket:
            from tests.conftest import HubProcess

            hub = HubProcess()
            asyncio.run(fuzz_socket(hub.port, chosen.requests, chosen.seed, summary, advance))
            hub.close()
        else:
            for number, dialect in enumerate(DIALECTS):
                share = (chosen.requests + number) // len(DIALECTS)
                progress.update(
                    task, description=", ".join(name if on else f"no {name}" for name, on in dialect.items())
                )
                asyncio.run(fuzz(share, chosen.seed + 1_000 * number, summary, advance, dev=True, **dialect))
    table = Table("route", "method", "status", "answers")
    for (route, method, status), count in sorted(summary.answers.items()):
        table.add_row(route, method, str(status or "none"), f"{count:,}")
    console.print(table)
    console.print(
        f"{summary.requests:,} requests, {summary.requests / summary.seconds:,.0f} a second; {summary.published:,} updates "
        f"published, and read back; the slowest request took {summary.slowest * 1000:.0f} ms"
    )
    if summary.slowest_request and summary.slowest > 0.1:
        console.print(repr(summary.slowest_request)[:2_000], markup=False)


if __name__ == "__main__":
    main()
