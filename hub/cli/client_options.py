"""The options of the commands that talk to a hub, and how these commands fail."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated
from urllib.parse import urlsplit

import typer

from hub.cli.app import CANNOT_BEGIN, FAILED, fail, run
from hub.client import Client, ClientError, NoAnswer, Unreachable, Unsendable
from hub.development import DEVELOPMENT_TOKEN, DEVELOPMENT_URL
from hub.errors import ConfigurationError
from hub.proxies import hint_at_proxy

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

Url = Annotated[str, typer.Option("--url", help="URL of the hub.", envvar="HUB_URL")]
Token = Annotated[
    str, typer.Option("--token", help="Token, or else HUB_TOKEN; other users of this machine can see the option.")
]
TokenFile = Annotated[
    Path | None,
    typer.Option("--token-file", metavar="FILE", help="File with the token, or else HUB_TOKEN_FILE."),
]
Dev = Annotated[bool, typer.Option("--dev", help="Send the token of development mode, which may do everything.")]
Json = Annotated[bool, typer.Option("--json", help="Print an object of JSON in each line.")]


def read_token(token: str, file: Path | None, *, dev: bool) -> str | None:
    """Return the token that the options or variables choose, or None.

    The first of them counts that is given: `--token`, `--token-file`, `--dev`,
    HUB_TOKEN, HUB_TOKEN_FILE.
    """
    if not (token or file or dev):
        token, name = os.environ.get("HUB_TOKEN", ""), os.environ.get("HUB_TOKEN_FILE")
        file = Path(name) if name else None
    if not token and file is not None:
        try:
            token = file.read_text("utf-8-sig").strip()
        except OSError as error:
            fail(f"{file}: {error.strerror}")
        except UnicodeError:
            fail(f"{file}: this is not a token")
        if not token:
            fail(f"{file}: the file is empty, so there is no token in it")
    if not token:
        return DEVELOPMENT_TOKEN if dev else None
    token = token.strip()
    if not (token.isascii() and token.isprintable()) or " " in token:
        fail("the token has a character that no token has")
    return token


def with_client(
    url: str,
    token: str | None,
    work: Callable[[Client], Awaitable[None]],
    *,
    on_reach: Callable[[str], object] | None = None,
) -> None:
    """Do `work` with a client of a hub; see `Client` for `on_reach`.

    Ends the command with a sentence if the hub refuses a request, or if there is no
    connection.
    """
    _check_url(url)

    async def connected() -> None:
        async with Client(url, token=token, on_reach=on_reach) as client:
            await work(client)

    try:
        run(connected())
    except NoAnswer as error:
        fail(f"{url}: {error}", FAILED)
    except Unreachable:
        hint = hint_at_proxy(url) or "; `skipfilter serve --dev` starts one"
        fail(f"{url}: there is no connection to a hub{hint}", FAILED)
    except ConfigurationError as error:
        fail(str(error))
    except Unsendable as error:
        fail(str(error))
    except ClientError as error:
        fail(f"{url}: {error}", FAILED)


def _check_url(url: str) -> None:
    """End the command unless `url` can be the URL of a hub."""
    try:
        parts = urlsplit(url)
        is_url = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # a bracket is missing, or the port is too large
        is_url = False
    if not is_url or not url.isprintable() or " " in url:
        fail(f"{url!r} is not the URL of a hub, as in {DEVELOPMENT_URL}", CANNOT_BEGIN)
