"""MemoryHub: a hub for one test, in memory, in this process or on a real port."""

from __future__ import annotations

import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from hub.development import DEVELOPMENT_TOKEN
from hub.history.memory import MemoryHistory
from hub.http.embedding import HubApplication
from hub.hub import Hub
from hub.logs import configure_log
from hub.settings import Settings
from hub.testing.recording import record_updates
from hub.testing.server import serve
from hub.testing.subscriber import Subscriber
from hub.testing.transport import client_of
from skipfilter.errors import not_copied

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from types import EllipsisType
    from typing import TypeAlias, Unpack

    from hub.client import Client
    from hub.http.authorization import Authorize
    from hub.protocol.data import Matchers

    Token: TypeAlias = str | EllipsisType | None


class Clock:
    """A clock that goes as usual, and that a test can advance."""

    def __init__(self) -> None:
        self._ahead = 0.0  # seconds

    def advance(self, seconds: float) -> None:
        """Let time pass at once.

        The hub notices within a second what is due, such as the end of a stream.
        """
        self._ahead += seconds

    def time(self) -> float:
        """Return the seconds since the epoch."""
        return time.time() + self._ahead

    def monotonic(self) -> float:
        """Return seconds that never go backwards."""
        return time.monotonic() + self._ahead


class MemoryHub:
    """A hub in memory, in development mode, without random times.

    `settings` are those of the hub, such as its `path`, and take precedence.
    `authorize` is the function of `create_app`.

    - `app` is the application, to be mounted in another one, or to be used alone.
    - `updates` has everything that was published; `assert_published` and
      `assert_nothing_published` are its methods.
    - `token` may publish and read everything; it is None if there is an `authorize`,
      which decides instead.
    - `clock` is the hub's: tokens expire by it, and streams and updates grow old.
    """

    __reduce__ = not_copied

    def __init__(self, *, authorize: Authorize | None = None, **settings: Any) -> None:
        configure_log()
        chosen = Settings(**{"dev": True, "retry": 0.0, "max_lifetime": 0.0} | settings)
        self.clock = Clock()
        history = MemoryHistory(chosen.retention, clock=self.clock.time)
        hub = Hub(chosen, history, clock=self.clock.monotonic, wall_clock=self.clock.time)
        self.app = HubApplication(hub, authorize)
        self.updates = record_updates(self.app)
        self.assert_published = self.updates.assert_published
        self.assert_nothing_published = self.updates.assert_nothing_published
        self.path = chosen.path
        self.token = DEVELOPMENT_TOKEN if authorize is None else None

    def client(self, *, token: Token = ..., headers: Mapping[str, str] | None = None) -> Client:
        """Return a client of the hub, which must run in the same event loop.

        It has the `token` of the hub, unless another one or None is given.
        """
        chosen = self.token if token is ... else token
        return client_of(self.app, self.path, token=chosen, headers=headers)

    def subscriber(
        self,
        *topics: str,
        token: Token = ...,
        headers: Mapping[str, str] | None = None,
        timeout: float = 5.0,
        last_event_id: str | None = None,
        **matchers: Unpack[Matchers],
    ) -> Subscriber:
        """Return a subscriber to the hub, with a client as that of `client`."""
        client = self.client(token=token, headers=headers)
        return Subscriber(client, *topics, timeout=timeout, last_event_id=last_event_id, **matchers)

    @contextmanager
    def serving(self) -> Iterator[str]:
        """Serve the hub on a real port, in a thread, and yield its URL.

        Any client can use it: another process, a browser, a synchronous client.
        """
        with serve(self.app, before_end=self.app.hub.shutdown.begin) as origin:
            yield origin + self.path
