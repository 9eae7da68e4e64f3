"""Every choice of an operator, frozen, with its unit; from Python, or from the environment as HUB_NAME."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal, TypeAlias

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    SecretStr,
    TypeAdapter,
    ValidationError,
    field_validator,
    model_validator,
)
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from hub.errors import ConfigurationError

Algorithm: TypeAlias = Literal[
    "HS256", "HS384", "HS512", "RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA"
]
Origins: TypeAlias = Annotated[tuple[str, ...], NoDecode]

DEVELOPMENT_KEY: Final = "!ChangeThisMercureHubJWTSecretKey!"
"""The key that the reference hub ships for development, and that clients' examples sign with (V34)."""

DEVELOPMENT_TOKEN: Final = (
    "eyJ0eXAiOiJKV1QiLCJhbGciOiJIUzI1NiJ9."
    "eyJtZXJjdXJlIjp7InB1Ymxpc2giOlsiKiJdLCJzdWJzY3JpYmUiOlsiKiJdfX0."
    "dRaccW_KSiTKbiCSSAZIRwjxZWtJum2nE7-hcpum1cU"
)
"""A classic token, signed with that key, which may publish and read everything and has no end."""

_DEVELOPMENT: Final[dict[str, Any]] = {
    "anonymous": True,
    "cookie": "mercure_access_token",  # the __Secure- prefix needs HTTPS (N62)
    "cors_origins": ("*",),
    "debugger": True,
    "publisher_key": DEVELOPMENT_KEY,
    "subscriber_key": DEVELOPMENT_KEY,
}


class Settings(BaseModel):
    """What one hub is to be.

    A hub needs a key for its publishers, and for its subscribers too unless `anonymous`; `dev` fills in what
    is needed to try it.  Raises ConfigurationError where something is missing or out of range.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    dev: bool = False
    """For development only: the well-known key, anonymous subscribers, any origin, and the debugger."""

    path: str = Field("/.well-known/mercure", pattern=r"^(/[A-Za-z0-9._~-]+)+$")
    """The path of the hub URL; all else that the hub serves is below it (N6)."""

    public_url: str | None = Field(None, pattern=r"^https?://[^/?#\s]+$")
    """Scheme and authority that clients see, as in https://hub.example.com; current tokens name it in `aud`."""

    anonymous: bool = False
    """Whether one may subscribe without a token, to public updates (N24)."""

    publisher_key: SecretStr | None = None
    """Secret or PEM public key of the classic tokens that publish (V32)."""
    publisher_algorithm: Algorithm = "HS256"

    subscriber_key: SecretStr | None = None
    """Secret or PEM public key of the classic tokens that subscribe (V32)."""
    subscriber_algorithm: Algorithm = "HS256"

    issuer: str | None = Field(None, min_length=1)
    """The `iss` of the current tokens that are trusted (N67); goes with `issuer_key` and `public_url`."""
    issuer_key: SecretStr | None = None
    issuer_algorithm: Algorithm = "HS256"

    cookie: str = "__Secure-mercure_access_token"
    """Name of the cookie that may carry a token (N59); `mercureAuthorization` is read after it (V86)."""

    publish_origins: Origins = ()
    """Origins, beside the hub's own, whose pages may publish with the cookie (N63)."""

    cors_origins: Origins = ()
    """Origins whose pages may read what the hub answers (N97); `*` is any, without credentials."""

    debugger: bool = False
    """Whether the web page for trying things out is served, at `path` + /debug/."""

    heartbeat: float = Field(40.0, ge=0)
    """Seconds of silence after which a comment is sent; 0 for never (N8)."""

    history_updates: int = Field(10_000, ge=1)
    """Updates that the log keeps."""
    history_bytes: int = Field(64 * 2**20, ge=1)
    """Bytes of memory that the log takes, about; the newest update always stays."""

    max_body: int = Field(2**20, ge=1)
    """Bytes of a publish body (N56)."""
    body_timeout: float = Field(30.0, gt=0)
    """Seconds that a publish body may take to arrive."""
    max_topics: int = Field(1_000, ge=1)
    """Topics of an update (N56)."""
    max_topic: int = Field(4_096, ge=1)
    """Bytes of a topic, an id or a type (N56)."""
    max_matchers: int = Field(100, ge=1)
    """Matchers of a subscribe request, and of one array of a token (N18, N77)."""
    max_pattern: int = Field(4_096, ge=1)
    """Bytes of a matcher's pattern (N18, N77)."""
    cached_topics: int = Field(100_000, ge=1)
    """Topics whose receivers are remembered."""

    def __init__(self, **values: Any) -> None:
        try:
            super().__init__(**values)
        except ValidationError as error:
            # Not its own text: pydantic's would repeat the value, and the value may be a key.
            raise ConfigurationError(
                "; ".join(f"{'.'.join(map(str, e['loc'])) or 'settings'}: {e['msg']}" for e in error.errors())
            ) from None

    @field_validator("publish_origins", "cors_origins", mode="before")
    @classmethod
    def _split(cls, value: object) -> object:
        return tuple(value.split()) if isinstance(value, str) else value

    @model_validator(mode="before")
    @classmethod
    def _fill_in(cls, values: dict[str, Any]) -> dict[str, Any]:
        development = TypeAdapter(bool).validate_python(values.get("dev", False))
        return {**_DEVELOPMENT, **values} if development else values

    @model_validator(mode="after")
    def _check(self) -> Settings:
        if self.publisher_key is None and self.issuer is None:
            raise ValueError("nobody could publish: set publisher_key or issuer, or dev to try the hub")
        if self.subscriber_key is None and self.issuer is None and not self.anonymous:
            raise ValueError("nobody could subscribe: set subscriber_key, issuer or anonymous, or dev to try the hub")
        if self.issuer is not None and (self.issuer_key is None or self.public_url is None):
            raise ValueError("issuer goes with issuer_key and public_url")
        return self

    @property
    def resource(self) -> str | None:
        """The hub's resource identifier, which current tokens have in `aud` (N69)."""
        return None if self.public_url is None else self.public_url + self.path


class _Environment(Settings, BaseSettings):
    model_config = SettingsConfigDict(env_prefix="HUB_", frozen=True, extra="forbid")


def settings_from_environment(**chosen: Any) -> Settings:
    """Settings from HUB_… variables, under those that are `chosen`; lists are separated by spaces."""
    return Settings(**_Environment(**chosen).model_dump(exclude_unset=True))
