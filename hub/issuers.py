"""The issuers of tokens and their keys, as an operator declares them."""

from __future__ import annotations

from typing import Annotated, Final, Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, SecretStr, model_validator

from hub.validation import text_like

Algorithm: TypeAlias = Literal[
    "HS256", "HS384", "HS512", "RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA"
]
Role: TypeAlias = Literal["publisher", "subscriber"]
KeySetURL: TypeAlias = Annotated[
    str,
    text_like(
        r"(https://|http://(localhost|127\.0\.0\.1|\[::1\])[:/]|file:///).+",
        "a URL that begins with https://, with file:///, or with http:// and localhost, 127.0.0.1 or [::1]",
        is_url=True,
    ),
]

PUBLIC_KEY_ALGORITHMS: Final[tuple[Algorithm, ...]] = (
    "EdDSA", "ES256", "ES384", "ES512", "RS256", "RS384", "RS512", "PS256", "PS384", "PS512",
)  # fmt: skip


class Keys(BaseModel):
    """Where the keys of one role come from: one key, or a key set behind a URL (R7)."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    key: SecretStr | None = None
    """A shared secret of at least 32 bytes, or of any length in development; or a public key in PEM."""
    algorithm: Algorithm | None = None
    """What the key signs with: HS256 for a secret, and to be said for PEM."""

    jwks_url: KeySetURL | None = None
    """Of a JWK Set: https, http of this machine, or a file, which is read once."""
    algorithms: tuple[Algorithm, ...] = Field(PUBLIC_KEY_ALGORITHMS, min_length=1)
    """What the keys of the set may sign with."""

    @model_validator(mode="after")
    def _check(self) -> Keys:
        if (self.key is None) == (self.jwks_url is None):
            raise ValueError("set one of key and jwks_url")
        if self.jwks_url is not None and self.algorithm is not None:
            raise ValueError("algorithm is that of key; those of jwks_url are its algorithms")
        if self.key is not None and "algorithms" in self.model_fields_set:
            raise ValueError("algorithms are those of jwks_url; that of key is its algorithm")
        if self.jwks_url is not None and not set(self.algorithms) <= set(PUBLIC_KEY_ALGORITHMS):
            raise ValueError("a key set is public, so none of its algorithms may be HS256, HS384 or HS512")
        return self


class Issuer(BaseModel):
    """Who signs current tokens, and with which keys (N67).  A role without keys is refused (R7)."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    id: str = Field(min_length=1)
    """The `iss` of its tokens, byte for byte."""
    keys: Keys | None = None
    """Of both roles, where they have none of their own."""
    publisher: Keys | None = None
    subscriber: Keys | None = None
    authorization_server: bool = False
    """Whether clients can get tokens there, so that the hub's metadata names it (N147)."""

    @model_validator(mode="after")
    def _check(self) -> Issuer:
        if self.keys is None and self.publisher is None and self.subscriber is None:
            raise ValueError(f"issuer {self.id!r} has no keys")
        return self
