"""`skipfilter serve`: start a server."""

from __future__ import annotations

import contextlib
import sys
from functools import partial
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, NamedTuple
from urllib.parse import unquote, urlsplit

import typer
import typer.core

from hub.auth.signing import development_token, token_command
from hub.cli.app import app
from hub.cli.settings_options import Config, Dev, EnvFile, settings_sources
from hub.errors import ConfigurationError
from hub.http.embedding import server_app
from hub.http.endpoints import DEBUGGER
from hub.http.operator import OperatorListeners
from hub.logs import log_to_stderr
from hub.process.hang_up import CurrentKeys, HangUp
from hub.process.listeners import listen, resolve
from hub.process.server import check_files, fitting, run, warn_of_files
from hub.process.workers import supervise
from hub.settings.sources import Sources
from hub.settings.variable_names import variable
from skipfilter.text import example

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable

    from hub.http.embedding import HubApplication
    from hub.metrics.board import Board
    from hub.metrics.server import MetricsServer
    from hub.process.listeners import Address
    from hub.settings import Settings
    from hub.settings.description import Description

main = app()

_DEV_ANYWHERE: Final = (
    "Allow other machines to reach a hub in development mode. Its keys are public, so they may publish and read "
    "everything."
)
_DETACH: Final = "Detach each stream from the task of its request, which takes half the memory."


class _Serve(typer.core.TyperCommand):
    """The command, whose help has all settings."""

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        """Write the settings by group, and then the example."""
        from hub.settings.description import groups

        for title, settings in groups().items():
            with formatter.section(f"Settings, {title.lower()}"):
                formatter.write_dl([(each.variable, f"{each.plain()}{_default(each)}") for each in settings])
        super().format_epilog(ctx, formatter)


def _default(setting: Description) -> str:
    """Return the default of a setting, as the help of an option has it."""
    text = setting.shown(setting.server_default)
    return f"  [default: {text}]" if text else ""


def _setting(name: str, warning: str = "") -> Any:
    """Return the option of a setting, which the end of the help describes."""
    return typer.Option(help=f"{variable(name)}, below.{warning}", show_default=False)


@main.command(cls=_Serve, epilog=example("skipfilter serve --dev --port 8000", "skipfilter serve --config hub.toml"))
def serve(
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on; 0 for any free port.", min=0, max=65535)] = 3000,
    workers: Annotated[int, typer.Option(help="Number of processes, which share the history.", min=1)] = 1,
    log_level: Annotated[
        Literal["debug", "info", "warning", "error"], typer.Option(help="The least important lines of the log.")
    ] = "info",
    config: Config = None,
    env_file: EnvFile = None,
    dev: Dev = None,
    dev_anywhere: Annotated[bool, typer.Option("--dev-anywhere", help=_DEV_ANYWHERE)] = False,
    public_urls: Annotated[str | None, _setting("public_urls")] = None,
    anonymous: Annotated[bool | None, _setting("anonymous")] = None,
    cors_origins: Annotated[str | None, _setting("cors_origins")] = None,
    subscriptions: Annotated[bool | None, _setting("subscriptions")] = None,
    heartbeat: Annotated[str | None, _setting("heartbeat")] = None,
    history_url: Annotated[str | None, _setting("history_url", " Other users of this machine can see it.")] = None,
    event_log: Annotated[str | None, _setting("event_log")] = None,
    detach: Annotated[bool, typer.Option("--detach/--no-detach", help=_DETACH)] = True,
) -> None:
    """Serve a hub until SIGINT or SIGTERM.

    Its streams then end over HUB_DRAIN seconds.  A second signal ends them at once.
    SIGHUP does the same if the hub was started from a terminal; otherwise, the hub
    reads its keys again.

    A setting comes from its option, from its variable, from the file that
    HUB_..._FILE names (for secrets), from --env-file, or from --config; the first one
    counts.  `skipfilter settings` prints the values in force.
    """
    log_to_stderr(log_level, "text", with_clients=True)
    hang_up = HangUp()
    flags = {
        "dev": dev,
        "public_urls": public_urls,
        "anonymous": anonymous,
        "cors_origins": cors_origins,
        "subscriptions": subscriptions,
        "heartbeat": heartbeat,
        "history_url": history_url,
        "event_log": event_log,
    }
    # An error in the settings, the address or the files stops the start here.
    with settings_sources(config, env_file, **flags) as sources:
        wanted = sources.settings()
        log_to_stderr(log_level, wanted.log_format, with_clients=wanted.log_clients, with_process=workers > 1)
        settings = fitting(wanted)
        address = resolve(host, port)
        if settings.dev and not dev_anywhere:
            _require_loopback(host, address, settings)
        opened = _open(settings, address, workers)
    typer.echo(_welcome(opened, f"http://{_authority(host, opened.listeners[0])}"))
    sys.stdout.flush()
    warn_of_files(wanted, settings)
    again = partial(Sources, flags, config=config, env_file=env_file)
    raise typer.Exit(_serve(opened, again, hang_up, workers=workers, detach=detach))


class _Opened(NamedTuple):
    """All that is open before a hub is served."""

    app: HubApplication
    """The application, unless several workers make their own."""
    listeners: list[socket.socket]
    """One for each worker."""
    commands: OperatorListeners
    metrics: _Metrics | None

    def close(self) -> None:
        """Close it, after the server has ended."""
        for listener in self.listeners:
            listener.close()
        self.commands.close()
        if self.metrics is not None:
            self.metrics.close()


def _open(settings: Settings, address: Address, workers: int) -> _Opened:
    """Open all that a server needs; nothing stays open if an error is raised."""
    if workers > 1 and settings.history_url.startswith("memory:"):
        raise ConfigurationError(
            "a history in memory belongs to one process, so several cannot share it: set `history_url`, as in "
            "sqlite:///mercure.db"
        )
    with contextlib.ExitStack() as on_failure:
        listeners = listen(address, workers)
        for listener in listeners:
            on_failure.enter_context(listener)
        metrics = _open_metrics(settings, workers)
        if metrics is not None:
            on_failure.callback(metrics.close)
        app = server_app(settings, metrics and metrics.board.slots[0])
        check_files(settings)
        app.listeners = commands = OperatorListeners.open(settings)
        on_failure.pop_all()
    return _Opened(app, listeners, commands, metrics)


def _serve(opened: _Opened, again: Callable[[], Sources], hang_up: HangUp, *, workers: int, detach: bool) -> int:
    """Serve until a signal, and return the exit status.

    `again` reads the sources of settings once more, for the keys in them.
    """
    metrics = opened.metrics

    def serve_one(app: HubApplication, number: int) -> None:
        """Serve an application in this process, which is the worker `number`."""
        hang_up.then(lambda: app.read_keys_soon(again))
        run(app, opened.listeners[number], detach=detach)

    with contextlib.closing(opened):
        if workers == 1:
            if metrics is not None:
                metrics.server.start()
            with contextlib.suppress(KeyboardInterrupt):  # uvicorn raises the signal again after its shutdown
                serve_one(opened.app, 0)
            return 0
        keys = CurrentKeys(opened.app.hub.settings, again)

        def work(number: int) -> None:
            app = server_app(keys.settings, metrics and metrics.board.slots[number])
            app.listeners = opened.commands._replace(close=lambda: None)  # the first process does it
            serve_one(app, number)

        return supervise(
            workers,
            work,
            hang_up=hang_up,
            take_keys=keys.read,
            ended=metrics and metrics.board.note_death,
            beside=metrics and metrics.server.serve,
        )


class _Metrics(NamedTuple):
    """The metrics of all workers, and the server that serves them."""

    board: Board
    server: MetricsServer

    def close(self) -> None:
        """Stop serving them."""
        self.server.close()
        self.board.close()


def _open_metrics(settings: Settings, workers: int) -> _Metrics | None:
    """Return the metrics, or None if they are not wanted.

    Raises OSError if their server cannot listen.
    """
    if settings.metrics_port is None:
        return None
    from hub.metrics.board import Board
    from hub.metrics.server import MetricsServer

    board = Board(workers)
    return _Metrics(board, MetricsServer(board, settings.metrics_host, settings.metrics_port))


def _require_loopback(host: str, address: Address, settings: Settings) -> None:
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


def _authority(host: str, listener: socket.socket) -> str:
    """Return host and port, as a URL on this machine has them."""
    name = {"127.0.0.1": "localhost", "0.0.0.0": "localhost", "::": "localhost", "::1": "localhost"}.get(host, host)  # noqa: S104
    return f"{name}:{listener.getsockname()[1]}"


def _history_place(settings: Settings) -> str:
    """Say where the history is, without passwords."""
    url = urlsplit(settings.history_url)
    if url.scheme == "memory":
        return "in this process's memory, and lost when it ends"
    if url.scheme == "sqlite":
        return f"in {unquote(url.path[1:])}"
    return f"in {url.scheme} at {url.netloc.rpartition('@')[2]}"  # without the password


def _welcome(opened: _Opened, url: str) -> str:
    """Return what to print at the start: addresses and, in development, examples."""
    settings = opened.app.hub.settings
    lines = [
        "",
        f"Hub       {url}{settings.path}",
        f"History   {_history_place(settings)}: the last {settings.history_updates:,} updates, "
        f"of {settings.history_bytes / 2**20:.0f} MiB at most",
    ]
    if opened.metrics is not None:
        lines.append(f"Metrics   {opened.metrics.server.url}")
    if opened.commands.url:
        lines.append(f"Commands  {opened.commands.url}")
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
