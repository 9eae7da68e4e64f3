"""Options: which hub a job reads or writes, and how to reach it.

A token is read when a request is made, and is in no message: what is kept is where it is to be found.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Final

import httpx2

from skipfilter.spark.errors import BadInput

if TYPE_CHECKING:
    import ssl
    from collections.abc import Mapping


AUTO: Final = "auto"
REQUIRED: Final = "required"
OFF: Final = "off"
"""Whether to ask for metadata, and to go on without."""

_CONNECT: Final = 10.0
_ANSWER: Final = 60.0
"""Seconds that an answer to a POST may take: a hub lets publishers wait while it is behind."""
_JWT: Final = re.compile(r"(?i)^\s*(bearer\s+)?ey[\w-]+\.[\w-]+\.")


# -- how to be let in


@dataclass(frozen=True)
class Connection:
    """Where a hub is, and where the token for it is found; `retries` is how often in a row something may fail."""

    url: str
    token_env: str | None = None
    token_file: str | None = None
    retries: int = 8

    def headers(self) -> list[tuple[bytes, bytes]]:
        """What lets one in.  Read anew for each request, so that a file may be replaced while a query runs."""
        token = self._token()
        return [] if token is None else [(b"Authorization", f"Bearer {token}".encode("ascii"))]

    def _token(self) -> str | None:
        if self.token_env is not None:
            token, where = os.environ.get(self.token_env, ""), f"the environment variable {self.token_env}"
            hint = "; Spark does not take it to executors by itself: set it there, or use the option tokenFile"
        elif self.token_file is not None:
            where, hint = f"the file {self.token_file}", ""
            try:
                token = Path(self.token_file).read_text("utf-8")
            except OSError as error:
                raise BadInput(f"there is no token: {where} cannot be read: {error.strerror}") from None
        else:
            return None
        token = token.strip()
        if not token:
            raise BadInput(f"there is no token: {where} is empty or not set, on {_host()}{hint}")
        if not (token.isascii() and token.isprintable()):  # else the client would tell which character is wrong
            raise BadInput(f"there is no token: what is in {where} cannot be one")
        return token

    def open(self, *, read: float = _ANSWER) -> httpx2.Client:
        # It follows no redirect, which could take the token elsewhere.
        return httpx2.Client(timeout=httpx2.Timeout(_CONNECT, read=read), verify=_trusted())


@cache
def _trusted() -> ssl.SSLContext:
    """Whom to trust; reading that takes longer than a request."""
    return httpx2.create_ssl_context()


def _host() -> str:
    return os.uname().nodename


def parse_connection(options: Mapping[str, str]) -> Connection:
    """What the options url, tokenEnv, tokenFile and retries say.  Raises BadInput, which repeats no token."""
    if "token" in options:
        raise BadInput(
            "the option token is refused, as options are shown in plans and logs: name an environment variable "
            "with tokenEnv, or a file with tokenFile"
        )
    url = options.get("url", "")
    try:
        parsed = httpx2.URL(url)
    except httpx2.InvalidURL:
        parsed = httpx2.URL("")
    if parsed.userinfo or {name.lower() for name in parsed.params} & {"authorization", "access_token", "token"}:
        raise BadInput("the option url has a token in it: use tokenEnv or tokenFile")
    if parsed.scheme not in ("http", "https") or not parsed.host:
        raise BadInput("the option url is to be that of a hub, as https://hub.example/.well-known/mercure")
    env, file = options.get("tokenenv"), options.get("tokenfile")
    if env is not None and file is not None:
        raise BadInput("of the options tokenEnv and tokenFile, one can be given")
    if _JWT.match(env or "") or _JWT.match(file or ""):
        raise BadInput("tokenEnv is the name of an environment variable and tokenFile that of a file, not a token")
    return Connection(url, env, file, retries=whole_number(options, "retries", 8, least=0))


def require_known(options: Mapping[str, str], *known: str) -> None:
    """Raise BadInput for an option that there is not; those that Spark hands on for its own use are none of ours."""
    names = {"url", "tokenEnv", "tokenFile", "retries", *known}
    # `token` is told of where the connection is parsed.
    ours = {name.lower() for name in names} | {"token", "checkpointlocation", "queryname"}
    for name in options:
        if name.lower() not in ours:
            raise BadInput(f"there is no option {name!r}; there are {', '.join(sorted(names))}")


def whole_number(options: Mapping[str, str], name: str, default: int, *, least: int) -> int:
    text = options.get(name.lower(), str(default))
    if not (text.isascii() and text.isdigit()) or int(text) < least:
        raise BadInput(f"the option {name} is to be a whole number of at least {least}, not {text!r}")
    return int(text)


def seconds(options: Mapping[str, str], name: str, default: float) -> float:
    text = options.get(name.lower(), str(default))
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise BadInput(f"the option {name} is to be a number of seconds above 0, not {text!r}")
    return value


def flag(options: Mapping[str, str], name: str, *, default: bool) -> bool:
    text = options.get(name.lower(), str(default)).lower()
    if text not in ("true", "false"):
        raise BadInput(f"the option {name} is true or false, not {text!r}")
    return text == "true"
