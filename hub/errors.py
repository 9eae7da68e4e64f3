"""The errors that the hub raises on purpose, each with the HTTP status of its answer.

    HubError
    ├── ConfigurationError (ValueError)    wrong settings: the hub does not start
    ├── NotRunning (RuntimeError)          the program uses a hub that is not running
    ├── PositionExpired (LookupError)      the history forgot entries after it
    ├── Outdated                           a command came before the append
    ├── EventTooLarge                      an event is larger than its reader takes
    └── RequestError                       the answer to a client
        ├── InvalidRequest          400    a field breaks a rule (N17, N41, N43 …)
        ├── InvalidPresentation     400    a token is sent in a malformed way (N93)
        ├── TokenRequired           401    a token is needed, and there is none (N90)
        ├── InvalidToken            401    a token fails validation (N91)
        ├── InsufficientScope       403    a valid token does not allow this (N92)
        ├── NotFound                404    there is no such subscription (N133)
        ├── TooSlow                 408    the body does not arrive in time
        ├── ListFull                409    there are as many revocations as there may be
        ├── TooLarge                413    a body, field or batch is over a limit (N56)
        ├── TargetTooLong           414    the URL is over a limit
        ├── UnsupportedContent      415    a compressed body, or not a form (N11)
        ├── Misdirected             421    the request is for another host (R6)
        ├── LimitExceeded           429    a client is above its share, or a limit (N23)
        │   └── Full                    429    all clients together are
        ├── HeadTooLarge            431    the header fields are too many or too long
        ├── Busy                    503    too many subscribers, or too many in a second
        ├── Interrupted             503    a command has ended the session meanwhile
        ├── Unavailable             503    something that the hub needs does not answer
        │   ├── Undecided               503    the application does not decide in time
        │   │   └── NotAsked                503    the client has asked too often
        │   ├── KeysUnavailable         503    a key set cannot be fetched
        │   └── HistoryUnavailable      503    the history cannot be reached
        └── Closing                 503    the hub is shutting down

`http/problems.py` sends the answers.  Errors that are found while the head of a request
is parsed are answered by `server/http1.py`.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, ClassVar

from skipfilter.errors import copied_error

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Self


class HubError(Exception):
    """The base class of all errors that the hub raises on purpose."""

    __reduce__ = copied_error


class ConfigurationError(HubError, ValueError):
    """An error in the settings; the message says what to change."""


class NotRunning(HubError, RuntimeError):
    """An error of the program around a hub: the hub is not running, or ran already."""

    def __init__(self, reason: str = "") -> None:
        super().__init__(
            reason
            or "the hub is not running: the lifespan of the application around it must enter `running()` of what "
            "create_app() returned, or a server must run the hub's own lifespan"
        )


class PositionExpired(HubError, LookupError):
    """An error for a position if the history forgot some of the entries after it."""


class Outdated(HubError):
    """The history has taken a command that this process does not know: ask again
    whether the updates may be appended.
    """


class EventTooLarge(HubError):
    """An event of a stream, or what should be one, is larger than its reader takes."""


class RequestError(HubError):
    """An error that a client gets as an answer; the message says what to fix.

    `status` and `title` are those of the answer, and `headers` are added to it.
    """

    status: ClassVar[int]
    title: ClassVar[str]
    challenge: ClassVar[str | None] = None
    """The `error` in the WWW-Authenticate header (N95).

    If it is "", the header names no error.  If it is None, there is no header.
    """
    headers: Mapping[str, str] = {}
    reason: str = ""
    """The cause for the hub's log, if the client must not see it; else ""."""

    @classmethod
    def kind(cls) -> str:
        """Return a name for metrics: the title, as in `invalid_token`."""
        return cls.title.lower().replace(" ", "_")

    def retry_after(self, seconds: float) -> Self:
        """Set the header Retry-After to `seconds`, and return this error.

        The header has whole seconds: the number is rounded up, and is at least 1.
        """
        self.headers = {"Retry-After": str(max(1, math.ceil(seconds)))}
        return self


class InvalidRequest(RequestError):
    """400: a parameter or a field breaks a rule."""

    status = 400
    title = "Invalid request"


class InvalidPresentation(RequestError):
    """400: a token is sent in a malformed way, or from a page that must not send it."""

    status = 400
    title = "Invalid presentation of a token"
    challenge = "invalid_request"


class TokenRequired(RequestError):
    """401: the request needs a token and has none."""

    status = 401
    title = "Token required"
    challenge = ""


class InvalidToken(RequestError):
    """401: the token is not valid.

    The client gets one message for every cause (N91).  `reason` is for the log.
    """

    status = 401
    title = "Invalid token"
    challenge = "invalid_token"

    def __init__(self, reason: str) -> None:
        super().__init__("the token is not valid here; the hub's log says why")
        self.reason = reason


class InsufficientScope(RequestError):
    """403: the token is valid and does not allow this request."""

    status = 403
    title = "Insufficient scope"
    challenge = "insufficient_scope"


class NotFound(RequestError):
    """404: there is no such subscription."""

    status = 404
    title = "Not found"


class TooSlow(RequestError):
    """408: the body of the request did not arrive in time."""

    status = 408
    title = "Too slow"


class ListFull(RequestError):
    """409: there are as many revocations in force as the settings allow."""

    status = 409
    title = "List full"

    def __init__(self, most: int) -> None:
        super().__init__(
            f"{most} revocations are in force, which is the bound (max_revocations): lift some, or set max_token_life, "
            "with which they end by themselves"
        )


class TooLarge(RequestError):
    """413: the body, a field or the number of updates or topics is over a limit."""

    status = 413
    title = "Too large"


class TargetTooLong(RequestError):
    """414: the URL of the request is over a limit."""

    status = 414
    title = "URI too long"


class UnsupportedContent(RequestError):
    """415: the body is compressed, or the body of a QUERY is not a form.

    `accepted` are the header fields that say what the hub takes.
    """

    status = 415
    title = "Unsupported content"

    def __init__(self, reason: str, accepted: Mapping[str, str]) -> None:
        super().__init__(reason)
        self.headers = accepted


class Misdirected(RequestError):
    """421: the host of the request is not a public host of the hub."""

    status = 421
    title = "Misdirected request"


class LimitExceeded(RequestError):
    """429: a client has more than its share, or a limit of all clients is reached."""

    status = 429
    title = "Limit exceeded"
    headers: Mapping[str, str] = {"Retry-After": "10"}


class Full(LimitExceeded):
    """429: all clients together, or all without a token, have reached a limit."""


class HeadTooLarge(RequestError):
    """431: the request has too many header fields, or too long ones."""

    status = 431
    title = "Request header fields too large"


class Busy(RequestError):
    """503: more subscribers than the hub accepts are connected, or come in a second."""

    status = 503
    title = "Busy"


class Interrupted(RequestError):
    """503: a command has ended the session while its request was on the way."""

    status = 503
    title = "Interrupted"
    headers: Mapping[str, str] = {"Retry-After": "1"}

    def __init__(self) -> None:
        super().__init__("the session was ended while its request was on the way; send the request again")


class Unavailable(RequestError):
    """503: something that the hub needs does not answer; the base of three errors.

    The client gets `told`, and not the cause.  `reason` is for the log.
    """

    status = 503
    title = "Unavailable"
    told: ClassVar[str]

    def __init__(self, reason: str) -> None:
        super().__init__(f"{self.told}; try again in a moment")
        self.reason = reason


class Undecided(Unavailable):
    """503: the application does not decide in time what the client may do."""

    title = "Undecided"
    told = "the application does not decide in time"
    headers: Mapping[str, str] = {"Retry-After": "2"}


class NotAsked(Undecided):
    """503: the application is not asked, as too many requests of the client wait."""


class KeysUnavailable(Unavailable):
    """503: the keys for the token are missing, because a key set cannot be fetched."""

    title = "Keys unavailable"
    told = "the token's signing keys are temporarily unavailable"
    headers: Mapping[str, str] = {"Retry-After": "10"}


class HistoryUnavailable(Unavailable):
    """503: the history cannot be reached or written."""

    title = "History unavailable"
    told = "the history is temporarily unavailable"
    headers: Mapping[str, str] = {"Retry-After": "2"}


class Closing(RequestError):
    """503: the hub is shutting down."""

    status = 503
    title = "Shutting down"
    headers: Mapping[str, str] = {"Retry-After": "1"}

    def __init__(self) -> None:
        super().__init__("the hub is shutting down; try again in a moment")
