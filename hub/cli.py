"""Flags and environment -> Settings -> uvicorn."""

from __future__ import annotations

import contextlib
import logging
import socket
import sys
from typing import TYPE_CHECKING, Annotated, Literal

import typer
import uvicorn

from hub.application import create_app, log_to_stdlib
from hub.endpoints import DEBUGGER
from hub.errors import ConfigurationError
from hub.settings import DEVELOPMENT_TOKEN, settings_from_environment

if TYPE_CHECKING:
    from hub.hub import Hub

main = typer.Typer(
    help="A Mercure hub.",
    add_completion=False,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)


@main.callback()
def _hub() -> None:
    """A Mercure hub.  What is not a flag here is set by HUB_… variables; see hub/settings.py."""


@main.command()
def serve(
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on; 0 for any free one.", min=0, max=65535)] = 3000,
    dev: Annotated[
        bool, typer.Option("--dev", help="Development mode: a well-known key, and anybody may read.")
    ] = False,
    log_level: Annotated[Literal["debug", "info", "warning", "error"], typer.Option()] = "info",
) -> None:
    """Serve one hub until SIGINT or SIGTERM."""
    logging.basicConfig(level=log_level.upper(), format="%(asctime)s %(levelname)-7s %(message)s", stream=sys.stderr)
    logging.getLogger("httpx2").setLevel(logging.WARNING)
    log_to_stdlib()
    try:
        listener = _listen(host, port)
        url = f"http://{_authority(host, listener)}"
        chosen = {"dev": True} if dev else {}
        settings = settings_from_environment(**chosen)
        if settings.dev and settings.public_url is None:
            settings = settings.model_copy(update={"public_url": url})
        app = create_app(settings)
    except (ConfigurationError, OSError) as error:
        typer.echo(f"hub: {error}", err=True)
        raise typer.Exit(2) from None
    typer.echo(_welcome(app.state.hub, url))
    config = uvicorn.Config(app, access_log=False, log_config=None, server_header=False, timeout_graceful_shutdown=5)
    with contextlib.suppress(KeyboardInterrupt):  # uvicorn raises the signal again when it has shut down
        uvicorn.Server(config).run(sockets=[listener])


def _listen(host: str, port: int) -> socket.socket:
    """A listening socket.  It listens before the welcome is printed, so whoever reads that may connect."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind, protocol)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(2_048)
    except OSError as error:
        raise OSError(f"cannot listen on {host} port {port}: {error.strerror}") from None
    return listener


def _authority(host: str, listener: socket.socket) -> str:
    name = {"127.0.0.1": "localhost", "0.0.0.0": "localhost", "::": "localhost", "::1": "localhost"}.get(host, host)  # noqa: S104
    return f"{name}:{listener.getsockname()[1]}"


def _welcome(hub: Hub, url: str) -> str:
    settings = hub.settings
    lines = [
        "",
        f"Hub       {url}{settings.path}",
        f"History   in this process's memory: the last {settings.history_updates:,} updates, "
        f"{settings.history_bytes / 2**20:.0f} MiB at most; gone when it ends",
    ]
    if settings.debugger:
        lines.insert(2, f"Page      {url}{settings.path}{DEBUGGER}")
    if settings.dev:
        lines += [
            "",
            "DEVELOPMENT MODE: the key is known to all, so anybody may publish. Never on a public network.",
            "",
            "Token     may publish and read everything, signed with the well-known development key:",
            f"          {DEVELOPMENT_TOKEN}",
            "",
            "Subscribe, in one terminal:",
            "",
            f"  curl -N -g '{url}{settings.path}?topic=https://example.com/books/{{id}}'",
            "",
            "Publish, in another:",
            "",
            f"  curl -H 'Authorization: Bearer {DEVELOPMENT_TOKEN}' \\",
            "       -d topic=https://example.com/books/1 -d 'data=a new chapter' \\",
            f"       {url}{settings.path}",
        ]
    return "\n".join([*lines, "", "Ctrl-C stops it.", ""])
