"""The options of the commands that talk to a hub, and how these commands fail."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import httpx2
import typer

from hub.cli.app import CANNOT_BEGIN, FAILED, fail, run
from hub.client import Client
from hub.development import DEVELOPMENT_TOKEN

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

Url = Annotated[str, typer.Option("--url", help="URL of the hub.", envvar="HUB_URL")]
Token = Annotated[
    str, typer.Option("--token", help="Token; other users of this machine can see the option.", envvar="HUB_TOKEN")
]
TokenFile = Annotated[
    Path | None, typer.Option("--token-file", metavar="FILE", help="File with the token.", envvar="HUB_TOKEN_FILE")
]
Dev = Annotated[bool, typer.Option("--dev", help="Send the token of development mode, which may do everything.")]
Json = Annotated[bool, typer.Option("--json", help="Print an object of JSON in each line.")]


def read_token(token: str, file: Path | None, *, dev: bool) -> str | None:
    """Return the token that the options choose, or None.

    The first of them counts that is given: `--token`, `--token-file`, `--dev`.
    """
    if token:
        return token
    if file is not None:
        try:
            return file.read_text("utf-8").strip()
        except OSError as error:
            fail(f"{file}: {error.strerror}")
        except UnicodeError:
            fail(f"{file}: this is not a token")
    return DEVELOPMENT_TOKEN if dev else None


def with_client(url: str, token: str | None, work: Callable[[Client], Awaitable[None]]) -> None:
    """Do `work` with a client of a hub.

    Ends the command with a sentence if the hub refuses a request, or if there is no
    connection.
    """

    async def connected() -> None:
        async with Client(url, token=token) as client:
            await work(client)

    try:
        run(connected())
    except httpx2.HTTPStatusError as error:
        fail(f"{url}: {refusal(error)}", FAILED)
    except httpx2.SSEError as error:
        fail(f"{url}: {error}", FAILED)
    except (httpx2.UnsupportedProtocol, httpx2.InvalidURL):
        fail(f"{url!r} is not the URL of a hub, as in http://localhost:3000/.well-known/mercure", CANNOT_BEGIN)
    except httpx2.TimeoutException:
        fail(f"{url}: there is no answer", FAILED)
    except httpx2.TransportError as error:
        fail(f"{url}: there is no connection ({error}); `skipfilter serve --dev` starts a hub", FAILED)


def refusal(error: httpx2.HTTPStatusError) -> str:
    """Return why a hub refused a request: the status and its own words."""
    response = error.response
    try:
        detail = response.json()["detail"]
    except (ValueError, KeyError, TypeError):
        detail = " ".join(response.text.split())[:200] or response.reason_phrase
    return f"{response.status_code}: {detail}"
