"""What the hub raises on purpose; a class knows the HTTP status that answers it.

    HubError
    ├── ConfigurationError (ValueError)    it does not start
    ├── OffTheLog (LookupError)            a place in the log that the log no longer holds
    └── RequestError                       what a client gets
        ├── InvalidRequest          400    a parameter or a field breaks a rule (N17, N41, N43 …)
        ├── InvalidPresentation     400    a token presented in no valid way (N93)
        ├── TokenRequired           401    no token where one is needed (N90)
        ├── InvalidToken            401    a token that fails validation (N91)
        ├── InsufficientScope       403    a valid token that does not allow this (N92)
        ├── TooSlow                 408    a body that does not arrive
        ├── TooLarge                413    over a limit of the hub (N56)
        └── Closing                 503    the hub is shutting down, and takes no more updates

They are answered in one place, `endpoints.answer`.
"""

from __future__ import annotations

from typing import ClassVar


class HubError(Exception):
    """The root of everything that the hub raises on purpose."""


class ConfigurationError(HubError, ValueError):
    """Settings that make no hub; the message says what to set."""


class OffTheLog(HubError, LookupError):
    """A place in the log that the log no longer holds: what came after it is partly gone."""


class RequestError(HubError):
    """An answer to a client: a status, what to fix, and the token challenge if one is due (N95)."""

    status: ClassVar[int]
    title: ClassVar[str]
    challenge: ClassVar[str | None] = None


class InvalidRequest(RequestError):
    status = 400
    title = "Invalid request"


class InvalidPresentation(RequestError):
    status = 400
    title = "Invalid presentation of a token"
    challenge = 'Bearer error="invalid_request"'


class TokenRequired(RequestError):
    status = 401
    title = "Token required"
    challenge = "Bearer"


class InvalidToken(RequestError):
    """The client is told no more than that; `reason` is for the log."""

    status = 401
    title = "Invalid token"
    challenge = 'Bearer error="invalid_token"'

    def __init__(self, reason: str) -> None:
        super().__init__("the token is not valid here; the hub's log says why")
        self.reason = reason


class InsufficientScope(RequestError):
    status = 403
    title = "Insufficient scope"
    challenge = 'Bearer error="insufficient_scope"'


class TooSlow(RequestError):
    status = 408
    title = "Too slow"


class TooLarge(RequestError):
    status = 413
    title = "Too large"


class Closing(RequestError):
    status = 503
    title = "Shutting down"

    def __init__(self) -> None:
        super().__init__("the hub is shutting down; try again in a moment")
