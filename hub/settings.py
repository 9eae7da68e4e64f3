"""Every choice of an operator, frozen, with its unit; from Python, or from the environment as HUB_NAME."""

from __future__ import annotations

import json
import math
import os
import re
from typing import Annotated, Any, Final, TypeAlias

import structlog
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    SecretStr,
    ValidationError,
    field_validator,
    model_validator,
)
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from hub.errors import ConfigurationError
from hub.history.base import Retention
from hub.issuers import Algorithm, Issuer, Keys, KeySetURL, Role
from hub.protocol.origins import normal_origin
from hub.validation import is_true, sentences, text_like
from hub.variables import PREFIX, RENAMED, renamed_variables, unknown_variables

log = structlog.stdlib.get_logger("hub")

Origin: TypeAlias = Annotated[
    str,
    text_like(
        r"\*|null|[a-z][a-z0-9+.-]*://((\*\.)?[A-Za-z0-9.-]+|\[[0-9A-Fa-f:]+\])?(:[0-9]+)?",
        "an origin, as in https://app.example.com or https://*.example.com:8443; or * or null",
    ),
]

DAY: Final = 86_400.0
YEAR: Final = 366 * DAY
"""Seconds."""

DEVELOPMENT_KEY: Final = "!ChangeThisMercureHubJWTSecretKey!"
"""The key that the reference hub ships for development, and that clients' examples sign with (V34)."""

DEVELOPMENT_ISSUER: Final = "https://issuer.example"
"""The `iss` of current tokens in development."""

DEVELOPMENT_TOKEN: Final = (
    "eyJ0eXAiOiJKV1QiLCJhbGciOiJIUzI1NiJ9."
    "eyJtZXJjdXJlIjp7InB1Ymxpc2giOlsiKiJdLCJzdWJzY3JpYmUiOlsiKiJdfX0."
    "dRaccW_KSiTKbiCSSAZIRwjxZWtJum2nE7-hcpum1cU"
)
"""A classic token, signed with that key, which may publish and read everything and has no end."""

_METADATA: Final = "/.well-known/oauth-protected-resource"  # RFC 9728, 3

_DEVELOPMENT: Final[dict[str, Any]] = {
    "anonymous": True,
    "cookie": "mercure_access_token",  # the __Secure- prefix needs HTTPS (N62)
    "cors_origins": ("*",),
    "debugger": True,
    "drain": 0.0,
    "issuers": ({"id": DEVELOPMENT_ISSUER, "keys": {"key": DEVELOPMENT_KEY}},),
    "subscriptions": True,
}
_ROLES: Final[tuple[Role, ...]] = "publisher", "subscriber"


class Settings(BaseModel):
    """What one hub is to be.

    A hub needs keys for its publishers unless it is `embedded`, and for its subscribers too unless `anonymous`;
    `dev` fills in what is needed to try it.  Raises ConfigurationError where something is missing or out of range.
    A hub works with the largest value of each number, as far as the machine does.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    dev: bool = False
    """For development only: well-known keys, anonymous subscribers, any origin, and the debugger."""

    path: Annotated[
        str,
        text_like(
            r"(/\.{0,2}[A-Za-z0-9_~-][A-Za-z0-9._~-]*)+",
            "a path like /.well-known/mercure, of letters, digits and . _ ~ - between slashes, without one at its end",
        ),
    ] = "/.well-known/mercure"
    """The path of the hub URL as clients see it, with the prefix that the application is mounted under, if any.
    All else that the hub serves is below it, and its metadata beside it (N6)."""

    public_urls: Annotated[
        tuple[
            Annotated[
                str,
                text_like(
                    r"https?://[^/?#\s]+",
                    "a scheme and a host, as in https://hub.example.com, without a path",
                    is_url=True,
                ),
            ],
            ...,
        ],
        NoDecode,
    ] = ()
    """Scheme and authority that clients see, as in https://hub.example.com; requests for others get 421 (R6)."""

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
    """The hub's resource identifier, which current tokens have in `aud` (N69); else it is the hub's URL, where a
    request finds it.  Clients look for the hub's metadata at the URL that RFC 9728 derives from it: let it be the hub's
    own URL, or one whose host has the path /.well-known/oauth-protected-resource answered by the hub."""

    anonymous: bool = False
    """Whether one may subscribe without a token, to public updates (N24)."""

    embedded: bool = False
    """Whether the program that the hub is part of publishes, so that nobody needs to over HTTP (R12)."""

    issuers: Annotated[tuple[Issuer, ...], NoDecode] = ()
    """Whose current tokens are trusted (N67)."""

    classic: bool = True
    """Whether the classic dialect is spoken too: `topic` subscriptions, and tokens with a `mercure` claim (V88)."""

    publisher_key: SecretStr | None = None
    """Secret, of at least 32 bytes, or PEM public key of the classic tokens that publish (V32)."""
    publisher_jwks_url: KeySetURL | None = None
    """Or where their keys are."""
    publisher_algorithm: Algorithm | None = None
    """HS256 for a secret; to be said for PEM; and any that is for public keys for a key set."""

    subscriber_key: SecretStr | None = None
    """Secret or PEM public key of the classic tokens that subscribe (V32)."""
    subscriber_jwks_url: KeySetURL | None = None
    subscriber_algorithm: Algorithm | None = None

    jwks_ttl: float = Field(300.0, gt=0, le=YEAR)
    """Seconds for which a key set is not fetched again; for so long a key that was withdrawn is good.  A stream that
    has begun with it ends with its token, or after `max_lifetime`."""

    cookie: Annotated[
        str, text_like(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+", "the name of a cookie: letters, digits and !#$%&'*+.^_`|~-")
    ] = "__Secure-mercure_access_token"
    """Name of the cookie that may carry a token (N59); `mercureAuthorization` is read after it (V86)."""

    publish_origins: Annotated[tuple[Origin, ...], NoDecode] = ()
    """Origins, beside the hub's own, whose pages may publish with the cookie (N63)."""

    cors_origins: Annotated[tuple[Origin, ...], NoDecode] = ()
    """Origins whose pages may read what the hub answers (N97).  An origin is scheme://host[:port]; `*.` before the
    host is any name below it, a scheme:// alone any host, `null` itself, and `*` any, without credentials."""

    debugger: bool = False
    """Whether the web page for trying things out is served, at `path` + /debug/."""

    subscriptions: bool = False
    """Whether subscribers coming and going are updates, and who is there can be asked, at `path` + /subscriptions.
    Those updates, two for each matcher of a connection, are in the log beside what was published, and never push that
    out: see presence_updates."""
    typed_classic_events: bool = False
    """Whether updates about classic subscriptions have the type `mercure`, as the reference's 1.0 has it; without,
    they reach `onmessage`, as in 0.x (V61, V84)."""

    heartbeat: float = Field(40.0, ge=0, le=DAY)
    """Seconds of silence after which a comment is sent; 0 for never (N8)."""
    max_lifetime: float = Field(600.0, ge=0, le=YEAR)
    """Seconds after which a connection is ended, less a random fifth (N82, R33); 0 for never."""
    retry: float = Field(3.0, ge=0, le=DAY)
    """Seconds after which a client should come back that lost its connection, give or take a random half, so that
    not all come at once (N30); 0 leaves it to the client."""

    send_buffer: int = Field(2**17, ge=2**12, le=2**30)
    """Bytes that the kernel may hold for a client that does not read; what comes after them waits in the log."""
    # Half of it is TCP_KEEPIDLE, which Linux takes up to 32,767 s.
    client_timeout: float = Field(30.0, ge=0, le=DAY / 2)
    """Seconds after which a client counts as gone that acknowledges nothing, or reads nothing though its buffers are
    full; 0 for what the kernel thinks right."""

    max_connections: int = Field(100_000, ge=1, le=10_000_000)
    """Subscribers that may be connected (N23).  Limits and rates are those of one process: with `--workers`, each has
    its own."""
    max_connections_per_client: int = Field(0, ge=0, le=10_000_000)
    """Subscribers of one token's subject or, without one, of one address; 0 for no limit.  uvicorn believes what
    X-Forwarded-For says of that address from 127.0.0.1 and ::1, or from what FORWARDED_ALLOW_IPS lists.  So a proxy on
    this machine must add the address of its client to the field, or replace the field.  If it hands on what the client
    wrote, each client chooses its own address; if it sends no such field, all clients have one."""

    connection_rate: float = Field(0.0, ge=0, le=1_000_000)
    """Subscribers that may come in a second, and at once as many; 0 for no limit.  Others get 503, upon which an
    EventSource stays away for good: so it is to be more than all that come back at a time."""
    connection_rate_per_client: float = Field(0.0, ge=0, le=1_000_000)
    """The same of one client, as in max_connections_per_client; others of it get 429."""

    drain: float = Field(5.0, ge=0, le=DAY)
    """Seconds over which the streams are ended when the hub shuts down, so that not all clients come back at once.
    A server that waits no longer than that for its responses cuts the last ones off."""

    history_url: SecretStr = SecretStr("memory://")
    """Where the log is: memory://, sqlite:///relative.db, sqlite:////absolute.db (?synchronous=normal), redis://,
    rediss:// or redis+sentinel://; see hub/history.  `hub serve` and `uvicorn hub:app` take sqlite:///mercure.db
    unless told otherwise."""
    history_updates: int = Field(100_000, ge=1, le=10**12)
    """Published updates that the log keeps, about."""
    history_bytes: int = Field(64 * 2**20, ge=1, le=2**50)
    """Bytes that they take, about: of memory, or on disk.  The newest update always stays."""
    presence_updates: int = Field(10_000, ge=1, le=10**12)
    """Updates about subscribers coming and going that the log keeps beside those, about.  A client that may read them
    and comes back after more of them is told so, and gets all that there is (N108)."""
    presence_bytes: int = Field(8 * 2**20, ge=1, le=2**50)
    """Bytes that they take, about."""
    history_age: float = Field(0.0, ge=0, le=100 * YEAR)
    """Seconds that the log keeps an update, about; 0 for ever."""
    idempotency_window: float = Field(0.0, ge=0, le=YEAR)
    """Seconds for which an id is remembered, so that its publisher does not publish it again: the second time it is
    answered as the first, and nothing is dispatched; 0 for off (N115).  A publisher is a token's subject or, without
    one, its issuer and what it may publish to.  As many ids are remembered as history_updates, the newest ones; and
    none of an update that the log has lost."""
    node_timeout: float = Field(10.0, ge=1, le=DAY)
    """Seconds after which a node that says nothing counts as dead, and its subscribers as gone."""
    replay_unknown: bool = True
    """Whether a client whose last event is no longer known gets all that there is; else it gets what comes (N109)."""

    event_log: str = ""
    """Directory in which to write what is published and who is connected, for `hub.spark` and whoever else reads JSON
    lines; see hub/event_log.  All processes of a hub on one machine share it.  Nothing is written unless it is set;
    nobody but the hub's user may read what is."""
    event_log_data: bool = False
    """Whether the data of updates is written too; without, how many bytes it has."""
    event_log_segment_seconds: float = Field(60.0, gt=0, le=DAY)
    """Seconds after which a file of it is closed, and can be read."""
    event_log_segment_bytes: int = Field(64 * 2**20, ge=1, le=2**40)
    """Bytes after which it is, about."""
    event_log_keep: float = Field(30.0, ge=0, le=36_600)
    """Days for which closed files are kept; 0 for ever."""

    max_header_fields: int = Field(100, ge=10, le=10_000)
    """Header fields of a request, with its trailers; more are answered 431."""
    max_head: int = Field(2**16, ge=2**12, le=2**24)
    """Bytes of a request's line and header fields, and of its trailers; more are answered 431, or 414 for the URL."""
    idle_timeout: int = Field(30, ge=1, le=86_400)
    """Seconds that a connection stays open after a response, unless another request comes."""
    max_body: int = Field(2**20, ge=0, le=2**30)
    """Bytes of a request's body (N56), in both dialects; 0 for no limit.  A QUERY has a lower one, `max_query`."""
    body_timeout: float = Field(30.0, gt=0, le=DAY)
    """Seconds that a body may take to arrive."""
    max_batch: int = Field(1_000, ge=1, le=1_000_000)
    """Updates of one request."""
    max_topics: int = Field(1_000, ge=1, le=1_000_000)
    """Topics of an update (N56)."""
    max_topic: int = Field(4_096, ge=1, le=2**20)
    """Bytes of a topic, an id or a type (N56)."""
    max_matchers: int = Field(100, ge=1, le=1_000_000)
    """Matchers of a subscribe request, and in a current token its details, and the topics of all (N18, N77)."""
    max_classic_matchers: int = Field(1_000, ge=1, le=100_000)
    """Matchers of the classic dialect in a subscribe request, beside the others (V1)."""
    max_pattern: int = Field(4_096, ge=1, le=2**20)
    """Bytes of a matcher's pattern (N18, N77).  One of the classic dialect is bounded by its request or token alone."""
    max_matchers_bytes: int = Field(2**16, ge=1, le=2**26)
    """Bytes of all patterns of a subscribe request, in both dialects (N18): a connection holds them while it lasts."""
    max_token: int = Field(2**16, ge=2**8, le=2**24)
    """Characters of a token.  A classic one with 1,000 selectors has some 50,000; the server, or a proxy, may let fewer
    through."""
    max_url_patterns: int = Field(1_000, ge=1, le=1_000_000)
    """Different URL Patterns in use at a time, which take some 100 KB each, and 2 MB at worst."""
    cached_topics: int = Field(100_000, ge=1, le=10**9)
    """Topics whose receivers are remembered."""
    cached_tokens: int = Field(10_000, ge=1, le=10**9)
    """Tokens that are not verified again while they last; one that grants much counts as several."""

    def __init__(self, **values: Any) -> None:
        try:
            super().__init__(**values)
        except ValidationError as error:
            # Not its own text: pydantic's would repeat the value, and the value may be a key.
            raise ConfigurationError(sentences(error)) from None

    @field_validator("issuers", mode="before")
    @classmethod
    def _parse(cls, value: object) -> object:
        if not isinstance(value, str):
            return value
        try:
            parsed = json.loads(value)
        except (ValueError, RecursionError):
            parsed = None
        if not isinstance(parsed, list):
            raise ValueError("should be an array in JSON")
        return parsed

    @field_validator("public_urls", "publish_origins", "cors_origins", mode="before")
    @classmethod
    def _split(cls, value: object) -> object:
        return tuple(value.split()) if isinstance(value, str) else value

    @field_validator("public_urls")
    @classmethod
    def _normalize(cls, urls: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(normal_origin(*url.lower().split("://")) for url in urls)  # as the origin of a request is

    @model_validator(mode="before")
    @classmethod
    def _fill_in(cls, values: dict[str, Any]) -> dict[str, Any]:
        if not is_true(values.get("dev", False)):
            return values
        roles = _ROLES if is_true(values.get("classic", True)) else ()
        keys = {f"{role}_key": DEVELOPMENT_KEY for role in roles if values.get(f"{role}_jwks_url") is None}
        return {**_DEVELOPMENT, **keys, **values}

    @model_validator(mode="after")
    def _check(self) -> Settings:
        for role in _ROLES:  # both, also if they are not needed: an error in them must be reported
            try:
                keys = self.classic_keys(role)
            except ValidationError as error:
                names = f"{role}_key, {role}_jwks_url and {role}_algorithm"
                raise ValueError(f"{names} do not fit together: {sentences(error)}") from None
            if keys and not self.classic:
                raise ValueError("publisher_… and subscriber_… are for classic tokens, and classic is off")
        if len({issuer.id for issuer in self.issuers}) < len(self.issuers):
            raise ValueError("two issuers have one id")
        if not (self.can_publish or self.embedded):
            raise ValueError("nobody could publish: set publisher_key or issuers, or dev to try the hub")
        if not self.can_subscribe:
            raise ValueError("nobody could subscribe: set subscriber_key, issuers or anonymous, or dev to try the hub")
        if self.issuers and not (self.public_urls or self.resource or self.dev):
            # Else whoever has a token for another hub could name that one in the Host header.
            raise ValueError("issuers go with public_urls or resource: their tokens name the hub they are for")
        return self

    def classic_keys(self, role: Role) -> Keys | None:
        """The keys of classic tokens for a role; None where it has none."""
        key, url, algorithm = (getattr(self, f"{role}_{name}") for name in ("key", "jwks_url", "algorithm"))
        if key is None and url is None:
            return None
        chosen = {"algorithms": (algorithm,)} if algorithm and url else {}
        return Keys(key=key, algorithm=algorithm if key else None, jwks_url=url, **chosen)

    @property
    def can_publish(self) -> bool:
        """Whether there is a token that may publish."""
        return bool(self.classic_keys("publisher")) or any(one.keys or one.publisher for one in self.issuers)

    @property
    def can_subscribe(self) -> bool:
        """Whether somebody may subscribe."""
        return (
            self.anonymous
            or bool(self.classic_keys("subscriber"))
            or any(one.keys or one.subscriber for one in self.issuers)
        )

    @property
    def retention(self) -> Retention:
        """What the history keeps, and for how long."""
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
        """Bytes of a QUERY's body: all patterns and a cursor, percent-encoded, with their names; at most `max_body`."""
        names = 32 * (self.max_matchers + (self.max_classic_matchers if self.classic else 0) + 1)
        size = 3 * (self.max_matchers_bytes + self.max_topic) + names
        return min(size, self.max_body or size)

    def resource_at(self, origin: str) -> str:
        """The resource identifier for requests to `origin`, a scheme and authority (N69, R6)."""
        return self.resource or origin + self.path

    @property
    def url(self) -> str:
        """The hub URL, which relative URL Patterns and topics are resolved against (N34, R6)."""
        if self.resource and re.fullmatch(rf"https?://[^/?]+{re.escape(self.path)}", self.resource):
            return self.resource
        return (self.public_urls or ("http://mercure.invalid",))[0] + self.path

    @property
    def metadata_path(self) -> str:
        """Where the protected resource metadata is (N145)."""
        return _METADATA + self.path

    def metadata_url(self, origin: str) -> str | None:
        """The URL of the metadata, for requests to `origin` (N154).

        It is derived from the resource identifier, because a client must discard metadata of another resource
        (RFC 9728, 3.1 and 3.3).  None if there is no metadata, or if the identifier is no URL and no public URL says
        where the hub is: the Host header alone is the client's own word.
        """
        if not self.issuers:
            return None
        if found := re.fullmatch(r"(https?://[^/?]+)(?:/(?=\?|$))?(.*)", self.resource_at(origin)):
            base, rest = found.groups()
            return f"{base}{_METADATA}{rest}"
        return origin + self.metadata_path if self.public_urls else None


class _Environment(Settings, BaseSettings):
    history_url: SecretStr = SecretStr("sqlite:///mercure.db")

    model_config = SettingsConfigDict(env_prefix=PREFIX, frozen=True, extra="forbid")


def settings_from_environment(**chosen: Any) -> Settings:
    """Settings from HUB_… variables; those that are `chosen` take precedence.

    Lists are separated by spaces, and HUB_ISSUERS is an array in JSON.  Raises ConfigurationError also for a variable
    whose name is nearly that of a setting, and warns of other unknown ones.
    """
    for name in unknown_variables(os.environ, Settings.model_fields):
        log.warning("this variable is not a setting of the hub, and is ignored", name=name)
    for name in os.environ:
        if new_name := RENAMED.get(name.upper()):
            log.warning("this variable has a new name", name=name, new_name=new_name)
    renamed = {name.removeprefix(PREFIX).lower(): value for name, value in renamed_variables(os.environ).items()}
    environment = _Environment(**(renamed | chosen))
    own = {"history_url": environment.history_url}  # what a server takes, unless told otherwise
    return Settings(**own | environment.model_dump(exclude_unset=True))
