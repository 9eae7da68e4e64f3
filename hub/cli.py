"""Flags and environment -> Settings -> a server."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import secrets
import socket
import sys
import time
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple
from urllib.parse import unquote, urlsplit

import typer

from hub.auth.signing import development_token, sign_classic_token, sign_token
from hub.errors import ConfigurationError
from hub.history_cli import main as history
from hub.http.application import LogFormatter, check_files, create_app, log_to_stdlib
from hub.http.endpoints import DEBUGGER
from hub.process.server import fitting, run
from hub.process.workers import supervise
from hub.protocol.topics import MATCHER_TYPES
from hub.settings import (
    DEVELOPMENT_ISSUER,
    DEVELOPMENT_KEY,
    DEVELOPMENT_TOKEN,
    Algorithm,
    settings_from_environment,
)
from hub.verify import Plan, verify

if TYPE_CHECKING:
    from hub.hub import Hub
    from hub.settings import Settings

main = typer.Typer(
    help="A Mercure hub.",
    add_completion=False,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
main.add_typer(history, name="history")


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
    dev_anywhere: Annotated[
        bool,
        typer.Option(
            "--dev-anywhere",
            help="Let others reach a hub in development mode. Its key is known to all: they may publish and read "
            "everything.",
        ),
    ] = False,
    park: Annotated[bool, typer.Option(help="Whether streams do without a task, which takes half the memory.")] = True,
    workers: Annotated[int, typer.Option(help="Processes that serve it; they share its log.", min=1)] = 1,
    log_level: Annotated[Literal["debug", "info", "warning", "error"], typer.Option()] = "info",
) -> None:
    """Serve one hub until SIGINT or SIGTERM; its streams then end over HUB_DRAIN seconds, at a second one at once."""
    process = "%(process)d " if workers > 1 else ""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(LogFormatter(f"%(asctime)s {process}%(levelname)-7s %(message)s"))
    logging.basicConfig(level=log_level.upper(), handlers=[handler])
    logging.getLogger("httpx2").setLevel(logging.WARNING)
    log_to_stdlib()
    try:
        chosen = {"dev": True} if dev else {}
        settings = fitting(settings_from_environment(**chosen))
        if workers > 1 and settings.history_url.get_secret_value().startswith("memory:"):
            raise ConfigurationError(
                "a log in memory is of one process, and there are to be several: set "
                "HUB_HISTORY_URL, as in sqlite:///mercure.db"
            )
        address = _resolve(host, port)
        if settings.dev and not dev_anywhere:
            _require_loopback(host, address)
        with contextlib.ExitStack() as on_failure:
            listener = on_failure.enter_context(_listen(host, port, address))
            app = create_app(settings)
            check_files(settings)
            on_failure.pop_all()
    except (ConfigurationError, OSError) as error:
        typer.echo(f"hub: {error}", err=True)
        raise typer.Exit(2) from None
    typer.echo(_welcome(app.state.hub, f"http://{_authority(host, listener)}"))
    sys.stdout.flush()
    if workers > 1:
        with listener:
            raise typer.Exit(supervise(workers, lambda: run(create_app(settings), listener, park=park)))
    with contextlib.suppress(KeyboardInterrupt):  # uvicorn raises the signal again when it has shut down
        run(app, listener, park=park)


@main.command()
def token(
    dev: Annotated[bool, typer.Option("--dev", help="For `hub serve --dev`: its key, issuer and address.")] = False,
    classic: Annotated[
        bool, typer.Option("--classic", help="With a `mercure` claim, for hubs and clients of 0.x.")
    ] = False,
    key: Annotated[
        str,
        typer.Option(
            help="What signs it: a secret, or @ and a file with one or with a PEM key.", envvar="HUB_TOKEN_KEY"
        ),
    ] = "",
    algorithm: Annotated[Algorithm, typer.Option(help="What the key signs with.")] = "HS256",
    issuer: Annotated[str, typer.Option(help="`iss`: who the hub is to trust.")] = "",
    audience: Annotated[str, typer.Option(help="`aud`: the hub's URL, or its resource identifier.")] = "",
    publish: Annotated[
        list[str], typer.Option(help="[TYPE=]PATTERN to publish to; `*` is everything. Repeatable.")
    ] = [],  # noqa: B006
    subscribe: Annotated[
        list[str], typer.Option(help="[TYPE=]PATTERN whose private updates may be read. Repeatable.")
    ] = [],  # noqa: B006
    payload: Annotated[str, typer.Option(help="JSON that others see of the subscriptions.")] = "null",
    subject: Annotated[str, typer.Option(help="`sub`: whose token it is.")] = "",
    ttl: Annotated[float, typer.Option(help="Seconds that it is good for.", min=1)] = 3600,
) -> None:
    """Sign a token, and print it.

    A pattern is an exact topic unless a matcher type stands before it, as in
    uritemplate=https://example.com/books/{id}; in a classic token it is a topic or a URI template, without a type.
    """
    if dev:
        key, issuer = key or DEVELOPMENT_KEY, issuer or DEVELOPMENT_ISSUER
        audience = audience or "http://localhost:3000/.well-known/mercure"
    try:
        if not key:
            raise ConfigurationError("a key is needed: --key, HUB_TOKEN_KEY, or --dev")
        if not classic and not (issuer and audience):
            raise ConfigurationError("a current token names its --issuer and its --audience; --dev knows both")
        secret = Path(key[1:]).read_text("utf-8") if key.startswith("@") else key
        about = json.loads(payload)
        now = time.time()
        signed = (
            sign_classic_token(
                secret, algorithm, publish=publish, subscribe=subscribe, payload=about, seconds=ttl, now=now
            )
            if classic
            else sign_token(
                secret,
                algorithm,
                issuer=issuer,
                resource=audience,
                publish=map(_selector, publish),
                subscribe=map(_selector, subscribe),
                payload=about,
                subject=subject or None,
                seconds=ttl,
                now=now,
            )
        )
    except (ConfigurationError, OSError, ValueError) as error:
        typer.echo(f"hub: {error}", err=True)
        raise typer.Exit(2) from None
    typer.echo(signed)


@main.command("verify")
def verify_hub(
    urls: Annotated[list[str], typer.Argument(metavar="URL…", help="Of a hub, or of several nodes of one.")],
    clients: Annotated[int, typer.Option(help="How many follow.", min=1)] = 50,
    publishers: Annotated[int, typer.Option(help="How many publish, by each node.", min=1)] = 2,
    rate: Annotated[float, typer.Option(help="Updates a second, in all.", min=0.1)] = 50,
    seconds: Annotated[float, typer.Option(help="How long they publish.", min=0.1)] = 10,
    churn: Annotated[float, typer.Option(help="Mean seconds between two disconnections of a client.", min=0.01)] = 3,
    patience: Annotated[float, typer.Option(help="Seconds to wait at the end for what is missing.", min=0.1)] = 30,
    private: Annotated[float, typer.Option(help="Share of private updates.", min=0, max=1)] = 0,
    may_lose: Annotated[
        bool, typer.Option("--may-lose", help="The log may lose what it has taken, if it tells: as one in memory.")
    ] = False,
    token: Annotated[str, typer.Option(help="Publishes, and reads all.", envvar="HUB_TOKEN")] = "",
    dev: Annotated[bool, typer.Option("--dev", help="With the token for development.")] = False,
    seed: Annotated[int | None, typer.Option(help="Of all that is random; a new one unless it is given.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the report as JSON.")] = False,
) -> None:
    """Publish, follow with clients that come and go, and report what was lost, repeated, out of order or changed.

    Exits with 0 if nothing was, 1 if something was, and 2 if it could not begin.
    """
    from rich.console import Console  # it takes a tenth of a second, which the other commands need not wait
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    plan = Plan(
        urls=urls,
        clients=clients,
        publishers=publishers,
        rate=rate,
        seconds=seconds,
        churn=churn,
        patience=patience,
        private=private,
        may_lose=may_lose,
        token=DEVELOPMENT_TOKEN if dev else token or None,
        seed=secrets.randbelow(2**32) if seed is None else seed,
    )
    columns = TimeElapsedColumn(), BarColumn(), TextColumn("{task.description}")
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task("", total=seconds)
        try:
            report = asyncio.run(
                verify(plan, lambda now: bar.update(task, completed=now.elapsed, description=str(now)))
            )
        except (OSError, ValueError) as error:
            typer.echo(f"hub: {error}", err=True)
            raise typer.Exit(2) from None
    typer.echo(json.dumps(report.to_json(), indent=2, ensure_ascii=False) if as_json else report)
    raise typer.Exit(1 if report.violations else 0)


def _selector(text: str) -> tuple[str, str]:
    type, separator, pattern = text.partition("=")
    return (type, pattern) if separator and type in MATCHER_TYPES else ("exact", text)


class _Address(NamedTuple):
    """As socket.getaddrinfo() has it."""

    family: socket.AddressFamily
    kind: socket.SocketKind
    protocol: int
    name: str
    address: Any


def _resolve(host: str, port: int) -> _Address:
    try:
        return _Address(*socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0])
    except (OSError, UnicodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "this is no name of a host"
        raise OSError(f"cannot listen on {host} port {port}: {reason}") from None


def _require_loopback(host: str, address: _Address) -> None:
    """Raise ConfigurationError if other machines could reach the address."""
    if not ip_address(str(address.address[0]).partition("%")[0]).is_loopback:
        raise ConfigurationError(
            f"development mode is for this machine only, and others could reach {host}: its key is known to all, "
            "so they could publish and read everything; listen on 127.0.0.1, or insist with --dev-anywhere"
        )


def _listen(host: str, port: int, address: _Address) -> socket.socket:
    """A listening socket.  It listens before the welcome is printed, so whoever reads that may connect."""
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
    name = {"127.0.0.1": "localhost", "0.0.0.0": "localhost", "::": "localhost", "::1": "localhost"}.get(host, host)  # noqa: S104
    return f"{name}:{listener.getsockname()[1]}"


def _place(settings: Settings) -> str:
    url = urlsplit(settings.history_url.get_secret_value())
    if url.scheme == "memory":
        return "in this process's memory, and gone when it ends"
    if url.scheme == "sqlite":
        return f"in {unquote(url.path[1:])}"
    return f"in {url.scheme} at {url.netloc.rpartition('@')[2]}"  # without the password


def _welcome(hub: Hub, url: str) -> str:
    settings = hub.settings
    lines = [
        "",
        f"Hub       {url}{settings.path}",
        f"History   {_place(settings)}: the last {settings.history_updates:,} updates, "
        f"of {settings.history_bytes / 2**20:.0f} MiB at most",
    ]
    if settings.event_log:
        lines.append(f"Events    in {Path(settings.event_log).absolute()}")
    if settings.debugger:
        lines.insert(2, f"Page      {url}{settings.path}{DEBUGGER}")
    if settings.dev:
        token = development_token(settings, url)
        selector = f"{'topic' if settings.classic else 'match_uritemplate'}=https://example.com/books/{{id}}"
        lines += [
            "",
            "DEVELOPMENT MODE: the key is known to all, so anybody may publish. Never on a public network.",
            "",
            "Token     may publish and read everything, signed with the well-known development key:",
            f"          {token}",
            "",
            "Subscribe, in one terminal:",
            "",
            f"  curl -N -g '{url}{settings.path}?{selector}'",
            "",
            "Publish, in another:",
            "",
            f"  curl -H 'Authorization: Bearer {token}' \\",
            "       -d topic=https://example.com/books/1 -d 'data=a new chapter' \\",
            f"       {url}{settings.path}",
        ]
    return "\n".join([*lines, "", "Ctrl-C stops it.", ""])
