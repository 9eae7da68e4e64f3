"""The settings of a hub.  They are immutable.

A program sets them as arguments of `Settings`; a server reads them with `sources`.

Belongs here: what holds for several settings together, and what follows from them.
Does not belong here: a setting itself (`groups`).
"""

from __future__ import annotations

import json
import math
import re
from typing import TYPE_CHECKING, Any, Final

from pydantic import ValidationError, ValidationInfo, field_validator, model_validator

from hub.control.commands import RESERVED
from hub.development import DEVELOPMENT_ISSUER, DEVELOPMENT_KEY
from hub.errors import ConfigurationError
from hub.history.base import Retention
from hub.settings.groups import (
    AddressSettings,
    BrowserSettings,
    CacheSettings,
    ClientSettings,
    ConnectionSettings,
    DevelopmentSettings,
    EventLogSettings,
    HistorySettings,
    LogSettings,
    OperatorSettings,
    PageSettings,
    RequestSettings,
    SettingsGroup,
    ShareSettings,
    StreamSettings,
)
from hub.settings.issuers import Issuer, Keys, Role
from hub.settings.texts import is_true, sentences
from hub.settings.value_types import as_list

if TYPE_CHECKING:
    from collections.abc import Sequence

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

SERVER_DEFAULTS: Final = {"history_url": "sqlite:///mercure.db", "operator_socket": "mercure.sock"}
"""What a server uses if it is not set, where `Settings` has other defaults."""

ROLES: Final[tuple[Role, ...]] = "publisher", "subscriber"
_TRUST: Final = (
    "issuers",
    *(f"{role}_{name}" for role in ROLES for name in ("key", "key_old", "jwks_url", "algorithm")),
)
"""The settings that say which tokens are trusted."""
_READ_AGAIN: Final = (*_TRUST, "operator_key")
"""The settings that a running hub takes again."""


def _is_nothing(value: object) -> bool:
    """Whether a setting of trust is given, but empty."""
    return value in (None, (), []) or (isinstance(value, str) and "".join(value.split()) == "[]")


# pydantic takes the fields of the last class first.
class Settings(
    CacheSettings,
    ShareSettings,
    RequestSettings,
    LogSettings,
    OperatorSettings,
    EventLogSettings,
    HistorySettings,
    ConnectionSettings,
    StreamSettings,
    PageSettings,
    BrowserSettings,
    ClientSettings,
    AddressSettings,
    DevelopmentSettings,
):
    """The settings of one hub.

    `dev` sets everything that is needed to try a hub.  A hub works with the largest
    value of each number if the machine has the resources.

    Raises ConfigurationError if a setting is missing or out of range.  `create_app`
    raises it if nobody could subscribe.
    """

    if not TYPE_CHECKING:  # for a type checker, each setting is a parameter

        def __init__(self, **values: Any) -> None:
            try:
                super().__init__(**values)
            except ValidationError as error:
                raise ConfigurationError(sentences(error, type(self), values)) from None

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
            return as_list(value)
        try:
            parsed = json.loads(value)
        except (ValueError, RecursionError):
            parsed = None
        if not isinstance(parsed, list):
            raise ValueError("should be a JSON array")
        return tuple(parsed)

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
            if getattr(self, f"{role}_key_old") is not None and getattr(self, f"{role}_key") is None:
                raise ValueError(f"`{role}_key_old` is the key before `{role}_key`, which must be set, too")
            try:
                keys = self.classic_keys(role)
            except ValidationError as error:
                names = f"`{role}_key`, `{role}_jwks_url` and `{role}_algorithm`"
                raise ValueError(f"{names} do not fit together: {sentences(error, Keys, {})}") from None
            if keys and not self.classic:
                raise ValueError("publisher_… and subscriber_… are for classic tokens, and `classic` is off")
        if len({issuer.id for issuer in self.issuers}) < len(self.issuers):
            raise ValueError("two issuers have the same id")
        if named := RESERVED.intersection(issuer.id for issuer in self.issuers):
            raise ValueError(
                f"no issuer may have the id {min(named)!r}, which stands for others where streams are ended"
            )
        if (self.operator_key is None) != (self.operator_port is None):
            raise ValueError("`operator_key` and `operator_port` belong together: set both, or neither")
        if self.write_interval and self.history_updates < 10_000:
            raise ValueError("`write_interval` needs `history_updates` of at least 10000")
        if self.issuers and not (self.public_urls or self.resource or self.dev):
            # Otherwise a client with a token for another hub could name that hub in the
            # Host header, and the token would be accepted here.
            raise ValueError("issuers need `public_urls` or `resource`, because a token names the hub that it is for")
        return self

    def classic_keys(self, role: Role) -> Keys | None:
        """Return the keys for classic tokens of a role, or None if there are none."""
        key, old, url, algorithm = (
            getattr(self, f"{role}_{name}") for name in ("key", "key_old", "jwks_url", "algorithm")
        )
        if key is None and url is None:
            return None
        chosen = {"algorithms": (algorithm,)} if algorithm and url else {}
        return Keys(key=key, old_key=old, algorithm=algorithm if key else None, jwks_url=url, **chosen)

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
        return self.model_copy(update={name: getattr(other, name) for name in _READ_AGAIN})

    def require_same_roles(self, other: Settings) -> None:
        """Raise ConfigurationError if `other` has keys for other purposes than these
        settings: a hub cannot change that while it runs.
        """
        if (
            any(self.has_keys(role) != other.has_keys(role) for role in ROLES)
            or bool(self.issuers) != bool(other.issuers)
            or (self.operator_key is None) != (other.operator_key is None)
        ):
            raise ConfigurationError("there are keys for other purposes than before: restart the hub")

    def other_changes(self, other: Settings) -> list[str]:
        """Return the names of all settings but issuers and keys that differ."""
        return [
            name
            for name in type(self).model_fields
            if name not in _READ_AGAIN and getattr(self, name) != getattr(other, name)
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
            revocations=self.max_revocations,
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


GROUPS: Final[Sequence[type[SettingsGroup]]] = [
    base for base in reversed(Settings.__bases__) if issubclass(base, SettingsGroup)
]
"""The groups of settings, in their order."""
SECRETS: Final = tuple(name for name, field in Settings.model_fields.items() if not field.repr)
"""The settings whose values are never shown."""
