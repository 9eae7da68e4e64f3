"""The settings of a hub.  They are immutable.

A program sets them as arguments of `Settings`; a server reads them with `sources`.  The
text below each field says its meaning and its special values.  Its first paragraph is
the setting's line in help, in `skipfilter settings`, and in the table of hub/README.md,
which `python -m tests.hub.settings_table` writes.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence  # noqa: TC003 - pydantic reads it
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, TypeAlias

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)
from pydantic_settings import NoDecode

from hub.development import DEVELOPMENT_ISSUER, DEVELOPMENT_KEY
from hub.errors import ConfigurationError
from hub.history.base import Retention
from hub.protocol.origins import normal_origin
from hub.settings.issuers import Algorithm, Issuer, Keys, KeySetURL, Role, Secret
from hub.settings.quantities import DAY, Unit, duration, parse_duration, parse_size, size
from hub.settings.texts import is_true, sentences, text_like

if TYPE_CHECKING:
    from collections.abc import Callable


def _of_text(parse: Callable[[str], float]) -> BeforeValidator:
    """Return a validator that also accepts the texts that `parse` reads."""
    return BeforeValidator(lambda value: parse(value) if isinstance(value, str) else value)


def _list(value: object) -> object:
    """Return the items of a list, or of a text with commas or spaces between them."""
    items = re.findall(r"[^\s,]+", value) if isinstance(value, str) else value
    return tuple(items) if isinstance(items, list) else items


Origin: TypeAlias = Annotated[
    str,
    text_like(
        r"\*|null|[a-z][a-z0-9+.-]*://((\*\.)?[A-Za-z0-9.-]+|\[[0-9A-Fa-f:]+\])?(:[0-9]+)?",
        "an origin, as in https://app.example.com or https://*.example.com:8443; or * or null",
    ),
]

Seconds: TypeAlias = Annotated[float, Unit("seconds", "15, 40s or 10m", duration), _of_text(parse_duration)]
WholeSeconds: TypeAlias = Annotated[int, Unit("seconds", "15, 40s or 10m", duration), _of_text(parse_duration)]
Bytes: TypeAlias = Annotated[int, Unit("bytes", "65536, 64KiB or 1MiB", size), _of_text(parse_size)]
Days: TypeAlias = Annotated[
    float,
    Unit("days", "7, 12h or 30d", lambda days: duration(days * DAY)),
    _of_text(lambda text: parse_duration(text, unit=DAY) / DAY),
]

ConnectionRate: TypeAlias = Annotated[float, Unit("subscribers per second")]

YEAR: Final = 366 * DAY
"""Seconds in a leap year."""

_METADATA: Final = "/.well-known/oauth-protected-resource"  # RFC 9728, 3

_DEVELOPMENT: Final[dict[str, Any]] = {
    "anonymous": True,
    "cookie": "mercure_access_token",  # the __Secure- prefix needs HTTPS (N62)
    "cors_origins": ("*",),
    "debugger": True,
    "drain": 0.0,
    "subscriptions": True,
}
_DEVELOPMENT_KEYS: Final = Keys.model_validate({"key": DEVELOPMENT_KEY})
_DEVELOPMENT_ISSUERS: Final = (Issuer.model_validate({"id": DEVELOPMENT_ISSUER, "keys": _DEVELOPMENT_KEYS}),)

SERVER_HISTORY: Final = "sqlite:///mercure.db"
"""The history of a server for which none is set."""

GROUPS: Final = {
    "dev": "Development",
    "path": "Addresses",
    "anonymous": "Clients and tokens",
    "cookie": "Browsers",
    "debugger": "Page and presence",
    "heartbeat": "Streams",
    "max_connections": "Connections",
    "history_url": "History",
    "event_log": "Event log",
    "log_format": "Log and metrics",
    "max_header_fields": "Requests",
    "client_share": "Shares of one client",
    "cached_topics": "Caches",
}
"""The first setting of each group -> the title of the group."""

ROLES: Final[tuple[Role, ...]] = "publisher", "subscriber"
_TRUST: Final = (
    "issuers",
    *(f"{role}_{name}" for role in ROLES for name in ("key", "jwks_url", "algorithm")),
)
"""The settings that say which tokens are trusted."""


def _is_nothing(value: object) -> bool:
    """Whether a setting of trust is given, but empty."""
    return value in (None, (), []) or (isinstance(value, str) and "".join(value.split()) == "[]")


class Settings(BaseModel):
    """The settings of one hub.

    `dev` sets everything that is needed to try a hub.  A hub works with the largest
    value of each number if the machine has the resources.

    Raises ConfigurationError if a setting is missing or out of range.  `create_app`
    raises it if nobody could subscribe.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    if not TYPE_CHECKING:  # for a type checker, each setting is a parameter

        def __init__(self, **values: Any) -> None:
            try:
                super().__init__(**values)
            except ValidationError as error:
                raise ConfigurationError(sentences(error, type(self), values)) from None

    dev: bool = False
    """Development mode: well-known keys, subscribers without a token, any origin, and
    the debugger.  Never use it on a public network.

    Settings that are given take precedence over those of development mode.  If any key,
    key set, algorithm or issuer is given, there are no well-known keys.
    """

    path: Annotated[
        str,
        text_like(
            r"(/\.{0,2}[A-Za-z0-9_~-][A-Za-z0-9._~-]*)+",
            "a path like /.well-known/mercure, of letters, digits and . _ ~ - between slashes, without one at its end",
        ),
    ] = "/.well-known/mercure"
    """The path of the hub URL as clients see it, including the prefix under which an
    application is mounted, if any.

    The other routes of the hub are below this path.  The path of the metadata is
    derived from it (N6).
    """

    public_urls: Annotated[
        Sequence[
            Annotated[
                str,
                text_like(
                    r"https?://[^/?#\s]+",
                    "a scheme and a host, as in https://hub.example.com, without a path",
                    is_url=True,
                ),
            ]
        ],
        NoDecode,
        BeforeValidator(_list),
    ] = ()
    """The scheme and host of each public URL, as in https://hub.example.com.  If any
    are set, requests for other hosts get 421 (R6).
    """

    resource: (
        Annotated[
            str,
            text_like(
                r"[a-z][a-z0-9+.-]*:[^#\s{}]+",
                "an absolute URL without a fragment, as in https://hub.example.com/.well-known/mercure",
                is_url=True,
            ),
        ]
        | None
    ) = None
    """The resource identifier of the hub, which current tokens must have in `aud`
    (N69).  If it is not set, it is the hub's URL as the request addresses it.

    Clients look for the hub's metadata at the URL that RFC 9728 derives from the
    identifier.  So set it to the hub's own URL, or to a URL on a host that forwards the
    path /.well-known/oauth-protected-resource to the hub.
    """

    anonymous: bool = False
    """Whether clients may subscribe without a token; they receive public updates only
    (N24).
    """

    issuers: Annotated[Sequence[Issuer], NoDecode] = Field(default=(), repr=False)
    """The trusted issuers of current tokens, with their keys (N67)."""

    classic: bool = True
    """Whether the hub also speaks the classic dialect: `topic` subscriptions, and
    tokens with a `mercure` claim (V88).
    """

    publisher_key: Secret | None = Field(default=None, repr=False)
    """The key for classic tokens that publish: a secret of at least 32 bytes, or a
    public key in PEM; or @ and the path of a file with one of them (V32).
    """
    publisher_jwks_url: KeySetURL | None = None
    """The URL of a key set, instead of `publisher_key`."""
    publisher_algorithm: Algorithm | None = None
    """The algorithm of classic tokens that publish; it must be set for a key in PEM.
    Without it, a secret has HS256, and a key set has all algorithms for public keys.
    """

    subscriber_key: Secret | None = Field(default=None, repr=False)
    """The key for classic tokens that subscribe: a secret of at least 32 bytes, or a
    public key in PEM; or @ and the path of a file with one of them (V32).
    """
    subscriber_jwks_url: KeySetURL | None = None
    """The URL of a key set, instead of `subscriber_key`."""
    subscriber_algorithm: Algorithm | None = None
    """The algorithm of classic tokens that subscribe; it must be set for a key in PEM.
    Without it, a secret has HS256, and a key set has all algorithms for public keys.
    """

    jwks_ttl: Seconds = Field(default=300.0, gt=0, le=YEAR)
    """Seconds after which a key set is fetched again.  A withdrawn key stays valid for
    that time.

    A stream that began with a withdrawn key ends with its token, or after
    `max_lifetime`.
    """

    cookie: Annotated[
        str, text_like(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+", "the name of a cookie: letters, digits and !#$%&'*+.^_`|~-")
    ] = "__Secure-mercure_access_token"
    """The name of the cookie that may carry a token (N59).  If the classic dialect is
    on, the cookie `mercureAuthorization` is read after it (V86).
    """

    publish_origins: Annotated[Sequence[Origin], NoDecode, BeforeValidator(_list)] = ()
    """Origins whose pages may publish with the cookie, in addition to the hub's own
    origin (N63).  They are written as in `cors_origins`.
    """

    cors_origins: Annotated[Sequence[Origin], NoDecode, BeforeValidator(_list)] = ()
    """Origins whose pages may read the hub's responses (N97).  `*` allows any origin,
    without credentials.

    An origin is scheme://host[:port].  `*.` before the host stands for any name below
    it, `scheme://` alone for any host, and `null` for pages without an origin, such as
    files.
    """

    debugger: bool = False
    """Whether the hub serves a web page for trying it out, at `path` + /debug/."""

    subscriptions: bool = False
    """Whether the hub publishes presence updates when subscribers come and go, and
    serves the list of subscriptions at `path` + /subscriptions.

    A connection causes two presence updates for each of its matchers.  They are in the
    history too, but never displace published updates: see `presence_updates`.
    """
    typed_classic_events: bool = False
    """Whether presence updates about classic subscriptions have the type `mercure`, as
    in version 1.0 of the reference hub.  If not, they reach `onmessage`, as in 0.x
    (V61, V84).
    """

    heartbeat: Seconds = Field(default=15.0, ge=0, le=DAY)
    """Seconds of silence after which a stream gets a comment; 0 for never (N8).

    It must be shorter than the time after which a proxy cuts off a silent response.
    """
    write_interval: Seconds = Field(default=0.0, ge=0, le=1)
    """Seconds between two writes of updates, at least; 0 writes each update at once.

    Updates that come meanwhile share the next write, so a stream of many updates costs
    less.  The first one after a pause is not held back.  Publishers wait if more than
    1,024 updates are held back.  `history_updates` must be at least 10,000, so that no
    update is forgotten before it is written.
    """
    max_lifetime: Seconds = Field(default=600.0, ge=0, le=YEAR)
    """Seconds after which a connection is ended, less a random part of up to a fifth; 0
    for never (N82, R33).
    """
    retry: Seconds = Field(default=3.0, ge=0, le=DAY)
    """Seconds after which a client should reconnect, plus or minus a random part of up
    to half; 0 leaves it to the client (N30).

    The time is random so that the clients do not all reconnect at once.
    """

    send_buffer: Bytes = Field(default=2**17, ge=2**12, le=2**30)
    """Bytes that the kernel may buffer for a client that does not read.  Further
    updates wait in the history.
    """
    # The upper bound is half a day, because half of the value is the socket option
    # TCP_KEEPIDLE, and Linux accepts at most 32,767 s for it.
    client_timeout: Seconds = Field(default=30.0, ge=0, le=DAY / 2)
    """Seconds without a TCP acknowledgement, or with a full receive window, before a
    client is dropped; 0 for the kernel's default.
    """

    max_connections: Annotated[int, Unit("subscribers")] = Field(default=100_000, ge=1, le=10_000_000)
    """The maximum number of connected subscribers (N23).  The streams of more end at
    once, so that they come back later; those that do not wait get 503.

    Limits and rates are those of one process: with `--workers`, each process has its
    own.
    """
    max_connections_per_client: Annotated[int, Unit("subscribers")] = Field(default=0, ge=0, le=10_000_000)
    """The maximum number of connected subscribers with the same token subject or,
    without a subject, the same address; 0 for no limit.  More of them get 429.

    uvicorn takes the address from X-Forwarded-For if the request comes from 127.0.0.1
    or ::1, or from an address that FORWARDED_ALLOW_IPS lists.  So a proxy on this
    machine must add the address of its client to that field, or replace the field.  If
    it passes on what the client sent, each client can choose its address.  If it sends
    no such field, all clients have the same address.
    """

    connection_rate: ConnectionRate = Field(default=0.0, ge=0, le=1_000_000)
    """Subscribers that may connect per second, on average and in one burst; 0 for no
    limit.  The streams of excess subscribers end at once, so that they come back later;
    those that do not wait get 503.
    """
    connection_rate_per_client: ConnectionRate = Field(default=0.0, ge=0, le=1_000_000)
    """Subscribers per second from one client, counted as in
    `max_connections_per_client`; 0 for no limit.  Excess subscribers get 429, after
    which EventSource and most libraries never retry.
    """

    drain: Seconds = Field(default=5.0, ge=0, le=DAY)
    """Seconds over which the streams end when the hub shuts down, so that clients do
    not all reconnect at once; 0 ends them at once.

    If the server waits no longer than that for its responses, it cuts off the last
    streams.
    """

    history_url: Secret = Field(default="memory://", repr=False)
    """The URL of the history: memory://, sqlite:///relative.db, sqlite:////absolute.db,
    redis://, rediss:// or redis+sentinel://.  If it is not set, `skipfilter serve` and
    `uvicorn hub:app` use sqlite:///mercure.db.

    A sqlite URL may end in ?synchronous=normal; see hub/history.
    """
    history_updates: Annotated[int, Unit("updates")] = Field(default=100_000, ge=1, le=10**12)
    """About how many published updates the history keeps."""
    history_bytes: Bytes = Field(default=64 * 2**20, ge=1, le=2**50)
    """About how many bytes of published updates the history keeps, in memory or on
    disk.  The newest update always stays.
    """
    presence_updates: Annotated[int, Unit("updates")] = Field(default=10_000, ge=1, le=10**12)
    """About how many presence updates (subscribers that come and go) the history keeps,
    in addition to the published ones.

    If a client that may read presence updates reconnects after more of them, it is
    informed of the gap, and gets all that the history has (N108).
    """
    presence_bytes: Bytes = Field(default=8 * 2**20, ge=1, le=2**50)
    """About how many bytes of presence updates the history keeps."""
    history_age: Seconds = Field(default=0.0, ge=0, le=100 * YEAR)
    """About how many seconds the history keeps an update; 0 for no limit."""
    idempotency_window: Seconds = Field(default=0.0, ge=0, le=YEAR)
    """Seconds for which the id of an update is remembered; 0 for off.  If its publisher
    sends the id again, the answer is the same, and nothing is dispatched (N115, N162).

    A publisher is the subject of a token or, without a subject, its issuer together
    with the topics that it may publish to.  The newest `history_updates` ids are
    remembered, and none of an update that the history has lost.
    """
    node_timeout: Seconds = Field(default=10.0, ge=1, le=DAY)
    """Seconds without a sign of life after which a node counts as dead, and its
    subscribers as gone.
    """
    replay_unknown: bool = True
    """Whether a client whose last event is unknown gets all updates of the history.  If
    not, it gets new updates only (N109).
    """

    event_log: str = ""
    """The directory of the event log, which records published updates and connections
    as JSON lines, for `hub.spark` and other readers.  Empty for no event log.

    All processes of a hub on one machine share the directory.  Only the user who runs
    the hub can read the files.  See hub/event_log.
    """
    event_log_data: bool = False
    """Whether the event log has the data of updates.  If not, it has only their size in
    bytes.
    """
    event_log_segment_seconds: Seconds = Field(default=60.0, gt=0, le=DAY)
    """Seconds after which a file of the event log is closed, and can be read."""
    event_log_segment_bytes: Bytes = Field(default=64 * 2**20, ge=1, le=2**40)
    """About how many bytes a file of the event log has before it is closed."""
    event_log_keep: Days = Field(default=30.0, ge=0, le=36_600)
    """Days for which closed files of the event log are kept; 0 for no limit."""

    log_format: Literal["text", "json"] = "text"
    """The format of log lines: `text`, or `json` for an object in each line.

    `uvicorn hub:app` writes its own lines in this format too.
    """
    log_clients: bool = True
    """Whether log lines have the addresses of clients, and the subjects and ids of
    their tokens.

    They never have a token.
    """
    log_publishes: bool = False
    """Whether there is a log line for each request to publish.  If not, it has the
    level debug.
    """
    large_update: Bytes = Field(default=60_000, ge=0, le=2**30)
    """Bytes of an update above which the log has a warning, once an hour for each
    publisher; 0 for none.  Some clients do not read large updates: two libraries for Go
    stop at 64 KiB, Spring's at 256 KiB and aiohttp's at 512 KiB, until they get a
    larger buffer.
    """
    log_decisions: bool = False
    """Whether there is a log line for each decision on what a client may do, with the
    issuer, the id and the key of its token.
    """

    metrics_port: Annotated[int | None, Unit("port")] = Field(default=None, ge=0, le=65_535)
    """The port on which Prometheus finds metrics, at /metrics; 0 for any free port.  If
    it is not set, there are none.

    With `skipfilter serve --workers`, they are the sums over all processes.
    """
    metrics_host: str = "127.0.0.1"
    """The address for metrics.  Anyone who can reach it can read them."""

    max_header_fields: Annotated[int, Unit("header fields")] = Field(default=100, ge=10, le=10_000)
    """The maximum number of header fields in a request, including its trailers.  More
    get 431.
    """
    max_head: Bytes = Field(default=2**16, ge=2**12, le=2**24)
    """The maximum number of bytes in the request line and header fields, and in the
    trailers.  More get 431, or 414 if it is because of the URL.
    """
    idle_timeout: WholeSeconds = Field(default=30, ge=1, le=86_400)
    """Seconds that a connection stays open after a response if no request comes."""
    max_body: Bytes = Field(default=2**20, ge=0, le=2**30)
    """The maximum number of bytes in the body of a request, in both dialects; 0 for no
    limit (N56).  The body of a QUERY has a lower limit.
    """
    body_timeout: Seconds = Field(default=30.0, gt=0, le=DAY)
    """Seconds that the body of a request may take to arrive.  After ten seconds, 1,000
    bytes of it must have arrived for each second more.
    """
    authorize_timeout: Seconds = Field(default=5.0, gt=0, le=DAY)
    """Seconds that the function `authorize` of an application may take to decide."""
    max_batch: Annotated[int, Unit("updates")] = Field(default=1_000, ge=1, le=1_000_000)
    """The maximum number of updates in one request."""
    max_topics: Annotated[int, Unit("topics")] = Field(default=1_000, ge=1, le=1_000_000)
    """The maximum number of topics of an update (N56)."""
    max_topic: Bytes = Field(default=4_096, ge=1, le=2**20)
    """The maximum number of bytes in a topic, an id or a type (N56)."""
    max_matchers: Annotated[int, Unit("matchers")] = Field(default=100, ge=1, le=1_000_000)
    """The maximum number of matchers in a subscribe request.  In a current token, it
    limits the details, and also the topics of all details together (N18, N77).
    """
    max_classic_matchers: Annotated[int, Unit("matchers")] = Field(default=1_000, ge=1, le=100_000)
    """The maximum number of classic matchers in a subscribe request, in addition to the
    others (V1).
    """
    max_pattern: Bytes = Field(default=4_096, ge=1, le=2**20)
    """The maximum number of bytes in a matcher's pattern (N18, N77).  For a classic
    pattern, only the limits of its request or token apply.
    """
    max_matchers_bytes: Bytes = Field(default=2**16, ge=1, le=2**26)
    """The maximum number of bytes in all patterns of a subscribe request, in both
    dialects together (N18).  A connection keeps them while it lasts.
    """
    max_token: Annotated[int, Unit("characters")] = Field(default=2**16, ge=2**8, le=2**24)
    """The maximum number of characters in a token.  A classic token with 1,000
    selectors has about 50,000.

    The server, or a proxy, may have a lower limit.
    """
    client_share: Annotated[float, Unit("a fraction")] = Field(default=0.02, gt=0, le=1)
    """The part of each bound from `max_url_patterns` to `publish_rate` that one client
    may use while more than half is in use; clients are told apart as in
    `max_connections_per_client`.  A client above its share gets 429, and its open
    streams go on.

    Near a bound, the clients that use most are refused first, and those without a token
    before the others.  The same holds for `max_connections`.
    """
    max_url_patterns: Annotated[int, Unit("URL Patterns")] = Field(default=10_000, ge=1, le=1_000_000)
    """The maximum number of different URL Patterns with groups in parentheses in use at
    a time.  Each takes about 7 KB of memory, and at worst 32 KB for each component with
    groups.  One whose groups need more than 50 instructions counts as several.  URL
    Patterns without groups do not count.
    """
    max_matchers_memory: Bytes = Field(default=2**30, ge=2**20, le=2**50)
    """About how many bytes of memory all different patterns in use may take, without
    the groups of URL Patterns: 1.5 KB each, and 4 bytes for each character.
    """
    max_alike: Annotated[int, Unit("patterns")] = Field(default=1_024, ge=16, le=1_000_000)
    """The maximum number of URI templates, or URL Patterns without groups, with the
    same fixed text.  They must be tested one by one, at some 2 µs for each new topic.
    """
    max_readers: Annotated[int, Unit("readers")] = Field(default=200, ge=1, le=1_000_000)
    """The maximum number of readers with `Prefer: wait=0` at a time."""
    max_requests: Annotated[int, Unit("requests")] = Field(default=4_000, ge=1, le=1_000_000)
    """The maximum number of requests in progress that are not streams or readers."""
    max_announcements: Annotated[int, Unit("presence updates")] = Field(default=100_000, ge=1, le=10**9)
    """The maximum number of presence updates that wait until the history has them."""
    publish_rate: Annotated[float, Unit("updates per second")] = Field(default=100_000.0, gt=0, le=10**9)
    """The maximum number of updates published per second.  The client of its share is
    the publisher, as in `idempotency_window`.
    """
    cached_topics: Annotated[int, Unit("topics")] = Field(default=100_000, ge=1, le=10**9)
    """The number of topics whose receivers are cached."""
    cached_topics_bytes: Bytes = Field(default=256 * 2**20, ge=1, le=2**50)
    """About how many bytes the cached sets of receivers take.  A topic that only one
    pattern matches has no set of its own, however many subscribers share the pattern.
    """
    cached_tokens: Annotated[int, Unit("tokens")] = Field(default=10_000, ge=1, le=10**9)
    """The number of verified tokens that are cached while they are valid.  A token that
    grants much counts as several.
    """

    @field_validator("*", mode="before")
    @classmethod
    def _refuse_booleans(cls, value: object, info: ValidationInfo) -> object:
        # For pydantic, true is the number 1.
        if isinstance(value, bool) and cls.model_fields[str(info.field_name)].annotation in (int, float, int | None):
            raise ValueError("should be a number")
        return value

    @field_validator("issuers", mode="before")
    @classmethod
    def _parse(cls, value: object) -> object:
        if not isinstance(value, str):
            return _list(value)
        try:
            parsed = json.loads(value)
        except (ValueError, RecursionError):
            parsed = None
        if not isinstance(parsed, list):
            raise ValueError("should be a JSON array")
        return tuple(parsed)

    @field_validator("public_urls")
    @classmethod
    def _normalize(cls, urls: Sequence[str]) -> tuple[str, ...]:
        return tuple(normal_origin(*url.lower().split("://")) for url in urls)  # in the form of a request's origin

    @model_validator(mode="before")
    @classmethod
    def _fill_in(cls, values: dict[str, Any]) -> dict[str, Any]:
        if not is_true(values.get("dev", False)):
            return values
        # The given values come last, because they take precedence.
        filled = {**_DEVELOPMENT, **values}
        # All well-known keys or none: beside a key of the operator's own, a key that
        # everyone knows would make the own one useless.
        if all(_is_nothing(values.get(name)) for name in _TRUST):
            roles = ROLES if is_true(values.get("classic", True)) else ()
            filled |= {f"{role}_key": DEVELOPMENT_KEY for role in roles} | {"issuers": _DEVELOPMENT_ISSUERS}
        return filled

    @model_validator(mode="after")
    def _check(self) -> Settings:
        # Both roles are checked, even if their keys are not needed, to report each
        # error.
        for role in ROLES:
            try:
                keys = self.classic_keys(role)
            except ValidationError as error:
                names = f"`{role}_key`, `{role}_jwks_url` and `{role}_algorithm`"
                raise ValueError(f"{names} do not fit together: {sentences(error, Keys, {})}") from None
            if keys and not self.classic:
                raise ValueError("publisher_… and subscriber_… are for classic tokens, and `classic` is off")
        if len({issuer.id for issuer in self.issuers}) < len(self.issuers):
            raise ValueError("two issuers have the same id")
        if self.write_interval and self.history_updates < 10_000:
            raise ValueError("`write_interval` needs `history_updates` of at least 10000")
        if self.issuers and not (self.public_urls or self.resource or self.dev):
            # Otherwise a client with a token for another hub could name that hub in the
            # Host header, and the token would be accepted here.
            raise ValueError("issuers need `public_urls` or `resource`, because a token names the hub that it is for")
        return self

    def classic_keys(self, role: Role) -> Keys | None:
        """Return the keys for classic tokens of a role, or None if there are none."""
        key, url, algorithm = (getattr(self, f"{role}_{name}") for name in ("key", "jwks_url", "algorithm"))
        if key is None and url is None:
            return None
        chosen = {"algorithms": (algorithm,)} if algorithm and url else {}
        return Keys(key=key, algorithm=algorithm if key else None, jwks_url=url, **chosen)

    @property
    def has_well_known_keys(self) -> bool:
        """Whether anyone can sign tokens for this hub, because it has the keys of
        development mode and no others.
        """
        classic = _DEVELOPMENT_KEYS if self.classic else None
        return (
            self.dev
            and self.issuers == _DEVELOPMENT_ISSUERS
            and all(self.classic_keys(role) == classic for role in ROLES)
        )

    def has_keys(self, role: Role) -> bool:
        """Whether there are keys for the tokens of a role."""
        return bool(self.classic_keys(role)) or any(one.keys or getattr(one, role) for one in self.issuers)

    @property
    def can_publish(self) -> bool:
        """Whether any token could allow publishing."""
        return self.has_keys("publisher")

    @property
    def can_subscribe(self) -> bool:
        """Whether subscribers are allowed, with or without a token."""
        return self.anonymous or self.has_keys("subscriber")

    def require_publishers(self) -> None:
        """Raise ConfigurationError if no token could allow publishing (R12)."""
        if not self.can_publish:
            raise ConfigurationError(f"no publisher is allowed: set `publisher_key` or `issuers`, {self._advice}")

    def require_subscribers(self) -> None:
        """Raise ConfigurationError if no client could subscribe (R12)."""
        if not self.can_subscribe:
            raise ConfigurationError(
                f"no subscriber is allowed: set `subscriber_key`, `issuers` or `anonymous`, {self._advice}"
            )

    @property
    def _advice(self) -> str:
        if self.dev:
            return "as `dev` sets no key if a key, key set, algorithm or issuer is set"
        return "or `dev` to try the hub"

    def with_keys_of(self, other: Settings) -> Settings:
        """Return these settings with the issuers and keys of `other`."""
        return self.model_copy(update={name: getattr(other, name) for name in _TRUST})

    def require_same_roles(self, other: Settings) -> None:
        """Raise ConfigurationError if `other` has keys for other purposes than these
        settings: a hub cannot change that while it runs.
        """
        if any(self.has_keys(role) != other.has_keys(role) for role in ROLES) or (
            bool(self.issuers) != bool(other.issuers)
        ):
            raise ConfigurationError("there are keys for other purposes than before: restart the hub")

    def other_changes(self, other: Settings) -> list[str]:
        """Return the names of all settings but issuers and keys that differ."""
        return [
            name
            for name in type(self).model_fields
            if name not in _TRUST and getattr(self, name) != getattr(other, name)
        ]

    @property
    def retention(self) -> Retention:
        """The bounds of the history."""
        return Retention(
            max_updates=self.history_updates,
            max_bytes=self.history_bytes,
            max_age=self.history_age or math.inf,
            presence_updates=self.presence_updates,
            presence_bytes=self.presence_bytes,
            idempotency_window=self.idempotency_window,
            node_timeout=self.node_timeout,
        )

    @property
    def max_query(self) -> int:
        """The maximum number of bytes in the body of a QUERY; at most `max_body`.

        It has room for all patterns and a cursor, percent-encoded, with their names.
        """
        names = 32 * (self.max_matchers + (self.max_classic_matchers if self.classic else 0) + 1)
        size = 3 * (self.max_matchers_bytes + self.max_topic) + names
        return min(size, self.max_body or size)

    def resource_at(self, origin: str) -> str:
        """Return the resource identifier for requests to `origin` (N69, R6).

        `origin` is a scheme and an authority.
        """
        return self.resource or origin + self.path

    @property
    def url(self) -> str:
        """The hub URL: the base of relative URL Patterns and topics (N34, R6)."""
        if self.resource and re.fullmatch(rf"https?://[^/?]+{re.escape(self.path)}", self.resource):
            return self.resource
        return (self.public_urls or ("http://mercure.invalid",))[0] + self.path

    @property
    def metadata_path(self) -> str:
        """The path of the protected resource metadata (N145)."""
        return _METADATA + self.path

    def metadata_url(self, origin: str) -> str | None:
        """Return the URL of the metadata for requests to `origin`, or None (N154).

        The URL is derived from the resource identifier, because a client must discard
        metadata of another resource (RFC 9728, 3.1 and 3.3).

        Returns None if there are no issuers and so no metadata, or if the identifier is
        not an http URL and no public URL is set.  The Host header alone is not trusted,
        because the client chooses it.
        """
        if not self.issuers:
            return None
        # The well-known path comes between the host and the path.  A path that is only
        # a slash is left out (RFC 9728, 3.1).
        if found := re.fullmatch(r"(https?://[^/?]+)(?:/(?=\?|$))?(.*)", self.resource_at(origin)):
            base, rest = found.groups()
            return f"{base}{_METADATA}{rest}"
        return origin + self.metadata_path if self.public_urls else None


SECRETS: Final = tuple(name for name, field in Settings.model_fields.items() if not field.repr)
"""The settings whose values are never shown."""
