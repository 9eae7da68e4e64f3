"""SIGHUP: what a server does when it comes, from the start of the process on.

    from a terminal, which was closed     shut down, as at SIGTERM
    from anything else                    read the keys again
    the process was told to ignore it     nothing, as `nohup` wants

A signal that comes before there is a server is kept until there is one.
"""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING, Any

import structlog

from hub.auth.authorizer import check_keys
from hub.errors import ConfigurationError
from hub.http.embedding import KEYS_FAILED

if TYPE_CHECKING:
    from collections.abc import Callable

    from hub.settings import Settings
    from hub.settings.sources import Sources

log = structlog.stdlib.get_logger("hub")


class HangUp:
    """The handler of SIGHUP, which is installed when it is made.

    Must be made at the start, because a terminal that was closed is none any more.
    """

    def __init__(self) -> None:
        self._has_terminal = any(os.isatty(file) for file in (0, 1, 2))
        self._is_pending = False
        self._read_keys: Callable[[], None] | None = None
        number = getattr(signal, "SIGHUP", None)  # Windows has none
        if number is not None and signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, self._handle)

    def _handle(self, *_: Any) -> None:
        if self._has_terminal:
            log.info("the terminal was closed, so the hub shuts down")
            signal.raise_signal(signal.SIGTERM)
        elif self._read_keys is None:
            self._is_pending = True
        else:
            self._read_keys()

    def then(self, read_keys: Callable[[], None]) -> None:
        """From now on, call `read_keys` at each signal, and now if one is pending.

        A signal handler calls it, so in an event loop it must only schedule its work.
        """
        self._read_keys = read_keys
        if self._is_pending:
            self._is_pending = False
            read_keys()

    def forget(self) -> None:
        """Keep signals again until `then`: this is a new process."""
        self._read_keys, self._is_pending = None, False


class CurrentKeys:
    """The settings of a supervisor, with the keys that were last read.

    A worker that starts later has them, even if their files cannot be read then.
    """

    def __init__(self, settings: Settings, read_again: Callable[[], Sources]) -> None:
        self.settings = settings
        self._read_again = read_again

    def read(self) -> bool:
        """Read the keys again; return whether the workers should, too.

        Logs an error if the keys cannot be used; then those before stay.
        """
        try:
            sources = self._read_again()
            with sources.named():
                new = sources.settings()
                self.settings.require_same_roles(new)
                check_keys(new)
        except ConfigurationError as error:
            log.error(KEYS_FAILED, reason=str(error))
            return False
        self.settings = self.settings.with_keys_of(new)
        return True
