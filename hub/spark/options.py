"""Options: which hub a job reads or writes, and how to reach it.

Only the place of a token is stored.  The token is read for each request, and appears in
no message.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Final

import httpx2

from hub.protocol.events import MAX_EVENT
from hub.proxies import usable_proxies
from skipfilter.spark.errors import BadInput

if TYPE_CHECKING:
    import ssl
    from collections.abc import Mapping


AUTO: Final = "auto"
REQUIRED: Final = "required"
OFF: Final = "off"
"""Whether to request metadata, and whether a hub without it is an error."""

_CONNECT: Final = 10.0
_ANSWER: Final = 60.0
"""Seconds that a POST may take: a hub lets publishers wait while it is behind."""
_JWT: Final = re.compile(r"(?i)^\s*(bearer\s+)?ey[\w-]+\.[\w-]+\.")


# -- the connection


@dataclass(frozen=True)
class SparkOptions:
    """Where a hub is, and where its token is.

    `retries` bounds consecutive failures, and `max_event` the bytes of an event.
    """

    url: str
    token_env: str | None = None
    token_file: str | None = None
    retries: int = 8
    max_event: int = MAX_EVENT

    def headers(self) -> list[tuple[bytes, bytes]]:
        """Return the header with the token.

        The token is read anew each time, so a file may be replaced while a query runs.
        Raises BadInput if there is no token.
        """
        token = self._token()
        return [] if token is None else [(b"Authorization", f"Bearer {token}".encode("ascii"))]

    def _token(self) -> str | None:
        """Return the token, or None if none is configured."""
        if self.token_env is not None:
            token, where = os.environ.get(self.token_env, ""), f"the environment variable {self.token_env}"
            hint = "; Spark does not copy it to executors: set it there, or use the option tokenFile"
        elif self.token_file is not None:
            where, hint = f"the file {self.token_file}", ""
            try:
                token = Path(self.token_file).read_text("utf-8-sig")
            except OSError as error:
                raise BadInput(f"there is no token: {where} cannot be read: {error.strerror}") from None
        else:
            return None
        token = token.strip()
        if not token:
            raise BadInput(f"there is no token: {where} is empty or not set, on {_host()}{hint}")
        if not (token.isascii() and token.isprintable()):  # the client would show the character
            raise BadInput(f"there is no token: the content of {where} cannot be one")
        return token

    def open(self, *, read: float = _ANSWER) -> httpx2.Client:
        """Return an HTTP client; `read` is the seconds that it waits for data."""
        # It follows no redirect, which could send the token elsewhere.
        with usable_proxies():
            return httpx2.Client(timeout=httpx2.Timeout(_CONNECT, read=read), verify=_trusted())


@cache
def _trusted() -> ssl.SSLContext:
    """Return the trusted certificates; reading them takes longer than a request."""
    return httpx2.create_ssl_context()


def _host() -> str:
    return os.uname().nodename


def parse_connection(options: Mapping[str, str]) -> SparkOptions:
    """Parse the options url, tokenEnv, tokenFile, retries and maxEventBytes.

    Raises BadInput, whose text never has a token.
    """
    if "token" in options:
        raise BadInput(
            "the option token is refused, because options are shown in plans and logs: name an environment variable "
            "with tokenEnv, or a file with tokenFile"
        )
    url = options.get("url", "")
    try:
        parsed = httpx2.URL(url)
    except httpx2.InvalidURL:
        parsed = httpx2.URL("")
    if parsed.userinfo or {name.lower() for name in parsed.params} & {"authorization", "access_token", "token"}:
        raise BadInput("the option url contains a token: use tokenEnv or tokenFile")
    if parsed.scheme not in ("http", "https") or not parsed.host:
        raise BadInput("the option url must be that of a hub, as https://hub.example/.well-known/mercure")
    env, file = options.get("tokenenv"), options.get("tokenfile")
    if env is not None and file is not None:
        raise BadInput("only one of the options tokenEnv and tokenFile can be given")
    if _JWT.match(env or "") or _JWT.match(file or ""):
        raise BadInput("tokenEnv must name an environment variable and tokenFile a file, and not be the token")
    retries, most = whole_number(options, "retries", 8, least=0), MAX_EVENT
    return SparkOptions(url, env, file, retries, whole_number(options, "maxEventBytes", most, least=1))


def require_known(options: Mapping[str, str], *known: str) -> None:
    """Raise BadInput for an unknown option.

    Options that Spark passes on are ignored.
    """
    names = {"url", "tokenEnv", "tokenFile", "retries", "maxEventBytes", *known}
    # parse_connection() has its own message for `token`.
    ours = {name.lower() for name in names} | {"token", "checkpointlocation", "queryname"}
    for name in options:
        if name.lower() not in ours:
            raise BadInput(f"there is no option {name!r}; the options are {', '.join(sorted(names))}")


def whole_number(options: Mapping[str, str], name: str, default: int, *, least: int) -> int:
    """Return an option as a whole number.

    Raises BadInput if it is not, or is too small.
    """
    text = options.get(name.lower(), str(default))
    if not (text.isascii() and text.isdigit()) or int(text) < least:
        raise BadInput(f"the option {name} must be a whole number of at least {least}, not {text!r}")
    return int(text)


def seconds(options: Mapping[str, str], name: str, default: float) -> float:
    """Return an option as seconds.  Raises BadInput if it is not a number above 0."""
    text = options.get(name.lower(), str(default))
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise BadInput(f"the option {name} must be a number of seconds above 0, not {text!r}")
    return value


def flag(options: Mapping[str, str], name: str, *, default: bool) -> bool:
    """Return an option as a bool.  Raises BadInput if it is neither true nor false."""
    text = options.get(name.lower(), str(default)).lower()
    if text not in ("true", "false"):
        raise BadInput(f"the option {name} must be true or false, not {text!r}")
    return text == "true"
