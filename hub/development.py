"""The keys of development mode, which everyone knows.

A module of its own, because clients use it without any settings.
"""

from __future__ import annotations

from typing import Final

DEVELOPMENT_KEY: Final = "!ChangeThisMercureHubJWTSecretKey!"
"""The reference hub's development key, with which examples of clients sign (V34)."""

DEVELOPMENT_ISSUER: Final = "https://issuer.example"
"""The `iss` of current tokens in development."""

DEVELOPMENT_TOKEN: Final = (
    "eyJ0eXAiOiJKV1QiLCJhbGciOiJIUzI1NiJ9."
    "eyJtZXJjdXJlIjp7InB1Ymxpc2giOlsiKiJdLCJzdWJzY3JpYmUiOlsiKiJdfX0."
    "dRaccW_KSiTKbiCSSAZIRwjxZWtJum2nE7-hcpum1cU"
)
"""A classic token that may publish and read everything.

It is signed with `DEVELOPMENT_KEY`, and never expires.
"""

DEVELOPMENT_URL: Final = "http://localhost:3000/.well-known/mercure"
"""The URL of a hub that `skipfilter serve --dev` starts."""
