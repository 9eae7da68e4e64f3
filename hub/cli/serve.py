"""`skipfilter serve`: start a server, with settings from the environment."""

from __future__ import annotations

import contextlib
import logging
import socket
import sys
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple
from urllib.parse import unquote, urlsplit

import typer

from hub.auth.signing import development_token, token_command
from hub.cli.app import app, fail
from hub.errors import ConfigurationError
from hub.http.application import create_app
from hub.http.endpoints import DEBUGGER
from hub.logs import LogFormatter, log_to_stdlib
from hub.process.server import check_files, fitting, run
from hub.process.workers import supervise
from hub.settings import settings_from_environment
from skipfilter.text import example

if TYPE_CHECKING:
    from hub.hub import Hub
    from hub.settings import Settings

main = app()


@main.command(epilog=example("skipfilter serve --dev --port 8000"))
def serve(
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on; 0 for any free port.", min=0, max=65535)] = 3000,
    dev: Annotated[
        bool, typer.Option("--dev", help="Development mode: well-known keys, and subscribers need no token.")
    ] = False,
    dev_anywhere: Annotated[
        bool,
        typer.Option(
            "--dev-anywhere",
            help="Allow other machines to reach a hub in development mode. Its keys are public, so they may publish "
            "and read everything.",
        ),
    ] = False,
    detach: Annotated[
        bool,
        typer.Option(
            "--park/--no-park",
            help="Detach each stream from the task of its request, which takes half the memory.",
        ),
    ] = True,
    workers: Annotated[int, typer.Option(help="Number of processes, which share the history.", min=1)] = 1,
    log_level: Annotated[Literal["debug", "info", "warning", "error"], typer.Option()] = "info",
) -> None:
    """Serve a hub until SIGINT or SIGTERM.

    Its streams then end over HUB_DRAIN seconds.  A second signal ends them at once.
    """
    _log_to_stderr(log_level, with_process=workers > 1)
    # An error in the settings, the address or the files stops the start here.
    try:
        chosen = {"dev": True} if dev else {}
        settings = fitting(settings_from_environment(**chosen))
        if workers > 1 and settings.history_url.get_secret_value().startswith("memory:"):
            raise ConfigurationError(
                "a history in memory belongs to one process, so several cannot share it: set "
                "HUB_HISTORY_URL, as in sqlite:///mercure.db"
            )
        address = _resolve(host, port)
        if settings.dev and not dev_anywhere:
            _require_loopback(host, address, settings)
        # If a later step fails, the listener is closed.
        with contextlib.ExitStack() as on_failure:
            listener = on_failure.enter_context(_listen(host, port, address))
            served = create_app(settings)
            check_files(settings)
            on_failure.pop_all()
    except (ConfigurationError, OSError) as error:
        fail(error)
    typer.echo(_welcome(served.hub, f"http://{_authority(host, listener)}"))
    sys.stdout.flush()
    if workers > 1:
        with listener:
            raise typer.Exit(supervise(workers, lambda: run(create_app(settings), listener, detach=detach)))
    with contextlib.suppress(KeyboardInterrupt):  # uvicorn raises the signal again after its shutdown
        run(served, listener, detach=detach)


def _log_to_stderr(level: str, *, with_process: bool) -> None:
    """Write log lines from `level` on to stderr, with the process id if wanted."""
    process = "%(process)d " if with_process else ""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(LogFormatter(f"%(asctime)s {process}%(levelname)-7s %(message)s"))
    logging.basicConfig(level=level.upper(), handlers=[handler])
    logging.getLogger("httpx2").setLevel(logging.WARNING)
    log_to_stdlib()


class _Address(NamedTuple):
    """A result of socket.getaddrinfo()."""

    family: socket.AddressFamily
    kind: socket.SocketKind
    protocol: int
    name: str
    address: Any


def _resolve(host: str, port: int) -> _Address:
    """Return the first address of a host; raise OSError if there is none."""
    try:
        return _Address(*socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0])
    except (OSError, UnicodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "this is not a host name"
        raise OSError(f"cannot listen on {host} port {port}: {reason}") from None


def _require_loopback(host: str, address: _Address, settings: Settings) -> None:
    """Raise ConfigurationError if other machines can reach the address."""
    if not ip_address(str(address.address[0]).partition("%")[0]).is_loopback:
        danger = (
            "its keys are public, so they could publish and read everything"
            if settings.has_well_known_keys
            else "it is open to pages of any origin, and accepts weak keys"
        )
        raise ConfigurationError(
            f"development mode is for this machine only, and others could reach {host}: {danger}; "
            "listen on 127.0.0.1, or allow it with --dev-anywhere"
        )


def _listen(host: str, port: int, address: _Address) -> socket.socket:
    """Return a listening socket.

    It listens before the welcome is printed, so that a reader of the welcome can
    connect.
    """
    listener = socket.socket(address.family, address.kind, address.protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address.address)
        listener.listen(2_048)
    except OSError as error:
        listener.close()
        raise OSError(f"cannot listen on {host} port {port}: {error.strerror}") from None
    return listener


def _authority(host: str, listener: socket.socket) -> str:
    """Return host and port, as a URL on this machine has them."""
    name = {"127.0.0.1": "localhost", "0.0.0.0": "localhost", "::": "localhost", "::1": "localhost"}.get(host, host)  # noqa: S104
    return f"{name}:{listener.getsockname()[1]}"


def _history_place(settings: Settings) -> str:
    """Say where the history is, without passwords."""
    url = urlsplit(settings.history_url.get_secret_value())
    if url.scheme == "memory":
        return "in this process's memory, and lost when it ends"
    if url.scheme == "sqlite":
        return f"in {unquote(url.path[1:])}"
    return f"in {url.scheme} at {url.netloc.rpartition('@')[2]}"  # without the password


def _welcome(hub: Hub, url: str) -> str:
    """Return what to print at the start: addresses and, in development, examples."""
    settings = hub.settings
    lines = [
        "",
        f"Hub       {url}{settings.path}",
        f"History   {_history_place(settings)}: the last {settings.history_updates:,} updates, "
        f"of {settings.history_bytes / 2**20:.0f} MiB at most",
    ]
    if settings.event_log:
        lines.append(f"Events    in {Path(settings.event_log).absolute()}")
    if settings.debugger:
        lines.insert(2, f"Page      {url}{settings.path}{DEBUGGER}")
    if settings.dev:
        lines += _development_help(settings, url)
    return "\n".join([*lines, "", "Ctrl-C stops it.", ""])


def _development_help(settings: Settings, url: str) -> list[str]:
    """Return the examples to copy in development."""
    token, command = development_token(settings, url), token_command(settings, url)
    selector = f"{'topic' if settings.classic else 'match_uritemplate'}=https://example.com/books/{{id}}"
    if token:
        lines = [
            "",
            "DEVELOPMENT MODE: the keys are public, so anyone may publish. Never use it on a public network.",
            "",
            "Token     that may publish and read everything, signed with the well-known development key:",
            f"          {token}",
        ]
    else:
        lines = ["", "DEVELOPMENT MODE, with the keys that were set. Never use it on a public network."]
        if command:
            lines += [
                "",
                "Sign a token for the second terminal; FILE is the file of your secret, or of your private key:",
                "",
                f"  TOKEN=$({command})",
            ]
    lines += ["", "Subscribe, in one terminal:", "", f"  curl -N -g '{url}{settings.path}?{selector}'"]
    if token or command:
        authorization = f"'Authorization: Bearer {token}'" if token else '"Authorization: Bearer $TOKEN"'
        lines += [
            "",
            "Publish, in another:",
            "",
            f"  curl -H {authorization} \\",
            "       -d topic=https://example.com/books/1 -d 'data=a new chapter' \\",
            f"       {url}{settings.path}",
        ]
    return lines
