"""The groups of settings: each setting with its default, its unit and its meaning.

The text below each field says its meaning and its special values.  Its first paragraph
is the setting's line in help, in `skipfilter settings`, and in the table of
hub/README.md, which `python -m tests.hub.settings_table` writes.
"""

from __future__ import annotations

import os
from collections.abc import Sequence  # noqa: TC003 - pydantic reads it
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field
from pydantic_settings import NoDecode

from hub.settings.issuers import Algorithm, Issuer, KeySetURL, Secret  # noqa: TC001 - pydantic reads them
from hub.settings.quantities import DAY, Unit
from hub.settings.texts import text_like
from hub.settings.value_types import (
    YEAR,
    Bytes,
    ConnectionRate,
    Days,
    Directory,
    Origin,
    PublicURL,
    Seconds,
    WholeSeconds,
    as_list,
)


class SettingsGroup(BaseModel):
    """A group of settings; its docstring is its title."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class DevelopmentSettings(SettingsGroup):
    """Development."""

    dev: bool = False
    """Development mode: well-known keys, subscribers without a token, any origin, and
    the debugger.  Never use it on a public network.

    Settings that are given take precedence over those of development mode.  If any key,
    key set, algorithm or issuer is given, there are no well-known keys.
    """


class AddressSettings(SettingsGroup):
    """Addresses."""

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

    public_urls: Annotated[Sequence[PublicURL], NoDecode, BeforeValidator(as_list)] = ()
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


class ClientSettings(SettingsGroup):
    """Clients and tokens."""

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
    publisher_key_old: Secret | None = Field(default=None, repr=False)
    """The key that `publisher_key` has replaced, of the same algorithm; blank for
    none.  Tokens that it has signed are valid until it is taken away, and the hub reads
    its keys again.
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
    subscriber_key_old: Secret | None = Field(default=None, repr=False)
    """The key that `subscriber_key` has replaced, of the same algorithm; blank for
    none.  Tokens that it has signed are valid until it is taken away, and the hub reads
    its keys again.
    """
    subscriber_jwks_url: KeySetURL | None = None
    """The URL of a key set, instead of `subscriber_key`."""
    subscriber_algorithm: Algorithm | None = None
    """The algorithm of classic tokens that subscribe; it must be set for a key in PEM.
    Without it, a secret has HS256, and a key set has all algorithms for public keys.
    """

    leeway: Seconds = Field(default=10.0, ge=0, le=300)
    """Seconds by which the clock of an issuer may differ, for `nbf`, and for `iat`
    where a revocation asks.  `exp` has none (N68, N82).
    """
    max_token_life: Seconds = Field(default=0.0, ge=0, le=100 * YEAR)
    """Seconds after `iat` at which a token ends, whatever its `exp` says; 0 for no
    limit.  With a limit, tokens without `exp` or `iat` are refused, and revocations end
    by themselves.

    It does not count for tokens that are signed with the well-known keys.
    """
    max_revocations: Annotated[int, Unit("revocations")] = Field(default=10_000, ge=1, le=100_000)
    """The maximum number of revocations in force.  If there are so many, the next one
    is refused; none is dropped.
    """

    jwks_ttl: Seconds = Field(default=300.0, gt=0, le=YEAR)
    """Seconds after which a key set is fetched again.  A withdrawn key stays valid for
    that time.

    The streams that began with a key end over `drain` if the set lacks the key in two
    fetches, or if it is taken out of the settings and the hub reads its keys again.
    """


class BrowserSettings(SettingsGroup):
    """Browsers."""

    cookie: Annotated[
        str, text_like(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+", "the name of a cookie: letters, digits and !#$%&'*+.^_`|~-")
    ] = "__Secure-mercure_access_token"
    """The name of the cookie that may carry a token (N59).  If the classic dialect is
    on, the cookie `mercureAuthorization` is read after it (V86).
    """

    publish_origins: Annotated[Sequence[Origin], NoDecode, BeforeValidator(as_list)] = ()
    """Origins whose pages may publish with the cookie, in addition to the hub's own
    origin (N63).  They are written as in `cors_origins`.
    """

    cors_origins: Annotated[Sequence[Origin], NoDecode, BeforeValidator(as_list)] = ()
    """Origins whose pages may read the hub's responses (N97).  `*` allows any origin,
    without credentials.

    An origin is scheme://host[:port].  `*.` before the host stands for any name below
    it, `scheme://` alone for any host, and `null` for pages without an origin, such as
    files.
    """


class PageSettings(SettingsGroup):
    """Page and presence."""

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


class StreamSettings(SettingsGroup):
    """Streams."""

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


class ConnectionSettings(SettingsGroup):
    """Connections."""

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


class HistorySettings(SettingsGroup):
    """History."""

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


class EventLogSettings(SettingsGroup):
    """Event log."""

    event_log: Directory = ""
    """The directory of the event log, which records published updates and connections
    as JSON lines, for `hub.spark` and other readers.  Empty for no event log.

    All processes of a hub on one machine share the directory.  Only the user who runs
    the hub can read the files.  See hub/event_log.
    """
    event_log_data: bool = False
    """Whether the event log has the data of updates.  If not, it has only their size in
    bytes.
    """
    event_log_subject: Literal["hash", "plain", "none"] = "hash"
    """How the event log names the subject and the id of a token: by a digest under a
    key, as they are, or not at all.  It has addresses if `log_clients` is true.
    """
    event_log_key: Secret | None = Field(default=None, repr=False)
    """The key of the digests: a secret of at least 32 bytes, or @ and the path of a
    file with it.  If it is not set, a file `key` is made in the directory; several
    machines need one key to name a user in the same way.
    """
    event_log_segment_seconds: Seconds = Field(default=60.0, gt=0, le=DAY)
    """Seconds after which a file of the event log is closed, and can be read."""
    event_log_segment_bytes: Bytes = Field(default=64 * 2**20, ge=1, le=2**40)
    """About how many bytes a file of the event log has before it is closed."""
    event_log_keep: Days = Field(default=30.0, ge=0, le=36_600)
    """Days for which closed files of the event log are kept; 0 for no limit."""


class OperatorSettings(SettingsGroup):
    """Operator."""

    operator_socket: Annotated[str, AfterValidator(os.path.expanduser)] = ""
    """The path of a Unix socket, over which the user who runs the hub gives commands
    such as `skipfilter kick`; empty for none.  If it is not set, `skipfilter serve`
    uses mercure.sock.
    """
    operator_key: Secret | None = Field(default=None, repr=False)
    """The key for commands over HTTP: a secret of at least 32 bytes, or @ and the path
    of a file with it.  It must be no other key of the hub.
    """
    operator_port: Annotated[int | None, Unit("port")] = Field(default=None, ge=0, le=65_535)
    """The port for commands over HTTP, with `operator_key`; 0 for any free port.  If it
    is not set, there are none.  It must not be reachable from outside.
    """
    operator_host: str = "127.0.0.1"
    """The address for commands over HTTP."""
    remembered_connections: Annotated[int, Unit("connections")] = Field(default=0, ge=0, le=1_000_000)
    """Ended connections of each process that `skipfilter explain` still knows; 0 for
    none.  Each takes some 2 KB: its patterns, its subject and its address.
    """


class LogSettings(SettingsGroup):
    """Log and metrics."""

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


class RequestSettings(SettingsGroup):
    """Requests."""

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
    tell_publishers: bool = False
    """Whether the response to a publish has the header `Hub-Process-Reach`: how many
    subscribers of this process receive the update, and how many want it and may not
    read it.  It tells a publisher who is listening.
    """
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


class ShareSettings(SettingsGroup):
    """Shares of one client."""

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


class CacheSettings(SettingsGroup):
    """Caches."""

    cached_topics: Annotated[int, Unit("topics")] = Field(default=100_000, ge=1, le=10**9)
    """The number of topics whose receivers are cached."""
    cached_topics_bytes: Bytes = Field(default=256 * 2**20, ge=1, le=2**50)
    """About how many bytes the cached topics and their sets of receivers take.  A topic
    that only one pattern matches has no set of its own, however many subscribers share
    the pattern.
    """
    cached_tokens: Annotated[int, Unit("tokens")] = Field(default=10_000, ge=1, le=10**9)
    """The number of verified tokens that are cached while they are valid.  A token that
    grants much counts as several.
    """
