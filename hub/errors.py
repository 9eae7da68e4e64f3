"""What the hub raises on purpose; a class knows the HTTP status that answers it.

    HubError
    ├── ConfigurationError (ValueError)    it does not start
    ├── PositionExpired (LookupError)      a position of which the history has forgotten what follows
    └── RequestError                       what a client gets
        ├── InvalidRequest          400    a parameter or a field breaks a rule (N17, N41, N43 …)
        ├── InvalidPresentation     400    a token presented in no valid way (N93)
        ├── TokenRequired           401    no token where one is needed (N90)
        ├── InvalidToken            401    a token that fails validation (N91)
        ├── InsufficientScope       403    a valid token that does not allow this (N92)
        ├── NotFound                404    no such subscription (N133)
        ├── TooSlow                 408    a body that does not arrive
        ├── TooLarge                413    over a limit of the hub (N56)
        ├── TargetTooLong           414    a URL that no request may have
        ├── UnsupportedContent      415    a QUERY body that is no form (N11)
        ├── Misdirected             421    a request for another host (R6)
        ├── LimitExceeded           429    as many subscribers, or patterns, as may be (N23)
        ├── HeadTooLarge            431    more header fields, or longer ones, than a request may have
        ├── Busy                    503    more subscribers a second than the hub takes
        ├── KeysUnavailable         503    a key set that cannot be fetched
        ├── HistoryUnavailable      503    a log that cannot be reached, or written
        └── Closing                 503    the hub is shutting down, and takes no more updates

`http/problems.py` answers them; those that are found while a head is parsed, `http/uvicorn_protocol.py`.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Self


class HubError(Exception):
    """The root of everything that the hub raises on purpose."""


class ConfigurationError(HubError, ValueError):
    """Settings that make no hub; the message says what to set."""


class PositionExpired(HubError, LookupError):
    """A position of which the history has forgotten a part of what follows."""


class RequestError(HubError):
    """An answer to a client: a status, what to fix, and the token challenge's error if one is due (N95)."""

    status: ClassVar[int]
    title: ClassVar[str]
    challenge: ClassVar[str | None] = None
    """The `error` of a WWW-Authenticate header; "" for a header without one, None for no header."""
    headers: Mapping[str, str] = {}
    reason: str = ""
    """What the hub's log says, where the client is told less."""

    def retry_after(self, seconds: float) -> Self:
        """This error, which says when to try again: after so many seconds, rounded up."""
        self.headers = {"Retry-After": str(max(1, math.ceil(seconds)))}
        return self


class InvalidRequest(RequestError):
    status = 400
    title = "Invalid request"


class InvalidPresentation(RequestError):
    status = 400
    title = "Invalid presentation of a token"
    challenge = "invalid_request"


class TokenRequired(RequestError):
    status = 401
    title = "Token required"
    challenge = ""


class InvalidToken(RequestError):
    """The client is told no more than that; `reason` is for the log."""

    status = 401
    title = "Invalid token"
    challenge = "invalid_token"

    def __init__(self, reason: str) -> None:
        super().__init__("the token is not valid here; the hub's log says why")
        self.reason = reason


class InsufficientScope(RequestError):
    status = 403
    title = "Insufficient scope"
    challenge = "insufficient_scope"


class NotFound(RequestError):
    status = 404
    title = "Not found"


class TooSlow(RequestError):
    status = 408
    title = "Too slow"


class TooLarge(RequestError):
    status = 413
    title = "Too large"


class TargetTooLong(RequestError):
    status = 414
    title = "URI too long"


class UnsupportedContent(RequestError):
    status = 415
    title = "Unsupported content"
    headers: Mapping[str, str] = {"Accept-Query": "application/x-www-form-urlencoded"}


class Misdirected(RequestError):
    status = 421
    title = "Misdirected request"


class LimitExceeded(RequestError):
    status = 429
    title = "Limit exceeded"
    headers: Mapping[str, str] = {"Retry-After": "10"}


class HeadTooLarge(RequestError):
    status = 431
    title = "Request header fields too large"


class Busy(RequestError):
    status = 503
    title = "Busy"


class KeysUnavailable(RequestError):
    """The client is told no more than that; `reason` is for the log."""

    status = 503
    title = "Keys unavailable"
    headers: Mapping[str, str] = {"Retry-After": "10"}

    def __init__(self, reason: str) -> None:
        super().__init__("the keys that would verify the token cannot be had now; try again in a moment")
        self.reason = reason


class HistoryUnavailable(RequestError):
    """The client is told no more than that; `reason` is for the log."""

    status = 503
    title = "History unavailable"
    headers: Mapping[str, str] = {"Retry-After": "2"}

    def __init__(self, reason: str) -> None:
        super().__init__("the history cannot be reached or written now; try again in a moment")
        self.reason = reason


class Closing(RequestError):
    status = 503
    title = "Shutting down"
    headers: Mapping[str, str] = {"Retry-After": "1"}

    def __init__(self) -> None:
        super().__init__("the hub is shutting down; try again in a moment")
