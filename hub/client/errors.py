"""The errors of the clients.

HubError
└── ClientError
    ├── Refused                          the hub answers that it does not want to
    ├── NotAHub                          the answer is not one of a hub
    ├── Unsendable (ValueError)          a text cannot be sent
    └── Unreachable (ConnectionError)    there is no connection, or it was lost
        └── NoAnswer (TimeoutError)      the hub does not answer in time

A subscription may also raise `hub.errors.EventTooLarge`.
"""

from __future__ import annotations

from hub.errors import HubError


class ClientError(HubError):
    """The base class of the errors of a client."""


class Refused(ClientError):
    """The hub refuses a request; the message is its status and its own words."""

    def __init__(self, status: int, detail: str, retry_after: float = 0.0) -> None:
        super().__init__(f"{status}: {detail}")
        self.status = status
        """The HTTP status."""
        self.detail = detail
        """The reason that the hub gives."""
        self.retry_after = retry_after
        """Seconds after which the hub may accept it, if it says so; otherwise 0.0."""

    @property
    def may_pass(self) -> bool:
        """Whether the same request may succeed later."""
        return self.status in (408, 429) or self.status >= 500


class NotAHub(ClientError):
    """The answer is not one that a hub gives."""


class Unsendable(ClientError, ValueError):
    """A text has a character that cannot be sent."""


class Unreachable(ClientError, ConnectionError):
    """There is no connection to the hub, or it was lost.

    An update that was being published may have reached the hub.
    """


class NoAnswer(Unreachable, TimeoutError):
    """The hub does not answer in time."""
