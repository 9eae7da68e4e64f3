"""The settings for issuers of tokens and for their keys."""

from __future__ import annotations

from typing import Annotated, Final, Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, PlainSerializer, model_validator

from hub.settings.texts import text_like

Algorithm: TypeAlias = Literal[
    "HS256", "HS384", "HS512", "RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512",
    "EdDSA", "Ed25519", "Ed448",
]  # fmt: skip
Role: TypeAlias = Literal["publisher", "subscriber"]
KeySetURL: TypeAlias = Annotated[
    str,
    text_like(
        r"(https://|http://(localhost|127\.0\.0\.1|\[::1\])[:/]|file:///(?!.*[?#])).+",
        "a URL that begins with https://, with file:///, or with http:// and localhost, 127.0.0.1 or [::1]",
        is_url=True,
    ),
]

Secret: TypeAlias = Annotated[str, PlainSerializer(lambda _: "**********")]
"""A text that no dump shows.  `Field(repr=False)` keeps it out of the repr too."""

PUBLIC_KEY_ALGORITHMS: Final[tuple[Algorithm, ...]] = (
    "EdDSA", "Ed25519", "Ed448", "ES256", "ES384", "ES512", "RS256", "RS384", "RS512", "PS256", "PS384", "PS512",
)  # fmt: skip


class Keys(BaseModel):
    """The source of the keys for one role: one key, or a key set behind a URL (R7).

    Exactly one of `key` and `jwks_url` must be set.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    key: Secret | None = Field(default=None, repr=False)
    """A shared secret, or a public key in PEM; or @ and the path of a file with one of
    them.  The file is read once, at start.

    A secret must have at least 32 bytes, except in development.
    """
    old_key: Secret | None = Field(default=None, repr=False)
    """The key that `key` has replaced.  Tokens that it has signed are valid until it is
    taken away here.  If it is blank, there is none.
    """
    algorithm: Algorithm | None = None
    """The algorithm of `key`, and of `old_key`; HS256 if not set.  It must be set if
    the key is in PEM.
    """

    jwks_url: KeySetURL | None = None
    """The URL of a JWK Set: https, http on this machine, or a file.

    A file is read once, at start.
    """
    algorithms: tuple[Algorithm, ...] = Field(default=PUBLIC_KEY_ALGORITHMS, min_length=1)
    """The algorithms that are allowed for the keys of the set."""

    @model_validator(mode="after")
    def _check(self) -> Keys:
        if (self.key is None) == (self.jwks_url is None):
            raise ValueError("set one of key and jwks_url")
        if self.jwks_url is not None and self.old_key is not None:
            raise ValueError("old_key belongs to key: a key set may have several keys")
        if self.jwks_url is not None and self.algorithm is not None:
            raise ValueError("algorithm belongs to key: with jwks_url, set algorithms")
        if self.key is not None and "algorithms" in self.model_fields_set:
            raise ValueError("algorithms belong to jwks_url: with key, set algorithm")
        if self.jwks_url is not None and not set(self.algorithms) <= set(PUBLIC_KEY_ALGORITHMS):
            raise ValueError("a key set is public, so its algorithms must not include HS256, HS384 or HS512")
        return self


class Issuer(BaseModel):
    """A trusted issuer of current tokens, and its keys (N67).

    A token for a role without keys is refused (R7).
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    id: str = Field(min_length=1)
    """The `iss` of its tokens, compared byte for byte."""
    keys: Keys | None = None
    """The keys for both roles; a role that has keys of its own does not use them."""
    publisher: Keys | None = None
    """The keys for tokens that publish; None for those in `keys`."""
    subscriber: Keys | None = None
    """The keys for tokens that subscribe; None for those in `keys`."""
    authorization_server: bool = False
    """Whether clients can get tokens from it.  If so, the hub's metadata names it
    (N147).
    """

    @model_validator(mode="after")
    def _check(self) -> Issuer:
        if self.keys is None and self.publisher is None and self.subscriber is None:
            raise ValueError(f"issuer {self.id!r} has no keys")
        return self
