"""`skipfilter verify`: check a running hub from outside, and print a report."""

from __future__ import annotations

import json
import os
import secrets
from typing import Annotated

import typer

from hub.cli.app import CANNOT_BEGIN, FAILED, app, fail, run
from hub.cli.client_options import Dev, Token, TokenFile, read_token
from hub.development import DEVELOPMENT_URL
from hub.verify.report import Plan
from hub.verify.run import verify as check
from skipfilter.text import example

main = app()


@main.command(epilog=example("skipfilter verify --dev --seconds 60 http://localhost:3000/.well-known/mercure"))
def verify(
    urls: Annotated[
        list[str],
        typer.Argument(metavar="[URL]...", help="URL of a hub, or of several nodes of one hub; or else HUB_URL."),
    ] = [],  # noqa: B006
    clients: Annotated[int, typer.Option(help="Number of clients that subscribe.", min=1)] = 50,
    publishers: Annotated[int, typer.Option(help="Number of publishers at each node.", min=1)] = 2,
    rate: Annotated[float, typer.Option(help="Updates per second, of all publishers together.", min=0.1)] = 50,
    seconds: Annotated[float, typer.Option(help="Seconds for which the publishers publish.", min=0.1)] = 10,
    churn: Annotated[float, typer.Option(help="Mean seconds between two disconnections of a client.", min=0.01)] = 3,
    patience: Annotated[float, typer.Option(help="Seconds to wait at the end for missing updates.", min=0.1)] = 30,
    private: Annotated[float, typer.Option(help="Share of private updates.", min=0, max=1)] = 0,
    may_lose: Annotated[
        bool,
        typer.Option(
            "--may-lose",
            help="Allow the history to lose accepted updates if it reports the loss, as one in memory does.",
        ),
    ] = False,
    token: Token = "",
    token_file: TokenFile = None,
    dev: Dev = False,
    seed: Annotated[int | None, typer.Option(help="Seed of all random choices; a new one by default.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the report as JSON.")] = False,
) -> None:
    """Publish updates, and check that each client receives them.

    The clients come and go.  The report has the updates that were lost, repeated, out
    of order or changed.

    Exits with 0 if there is no such update, 1 if there is one, and 2 if it cannot
    begin.
    """
    from rich.console import Console  # the import takes a tenth of a second
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    plan = Plan(
        urls=urls or [os.environ.get("HUB_URL", DEVELOPMENT_URL)],
        clients=clients,
        publishers=publishers,
        rate=rate,
        seconds=seconds,
        churn=churn,
        patience=patience,
        private=private,
        may_lose=may_lose,
        token=read_token(token, token_file, dev=dev),
        seed=secrets.randbelow(2**32) if seed is None else seed,
    )
    columns = TimeElapsedColumn(), BarColumn(), TextColumn("{task.description}")
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task("", total=seconds)
        try:
            report = run(check(plan, lambda now: bar.update(task, completed=now.elapsed, description=str(now))))
        except (OSError, ValueError) as error:
            fail(error, CANNOT_BEGIN)
    typer.echo(json.dumps(report.to_json(), indent=2, ensure_ascii=False) if as_json else report)
    raise typer.Exit(FAILED if report.violations else 0)
