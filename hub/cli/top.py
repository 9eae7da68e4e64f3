"""`skipfilter top`: how busy a hub is, and with what."""

from __future__ import annotations

import json
import sys
import time
from itertools import chain
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from rich.console import Console, Group
from rich.filesize import decimal
from rich.live import Live
from rich.table import Table
from rich.text import Text

from hub.cli.app import FAILED, app, fail
from hub.cli.operator_options import NoAnswer, Socket, answer_of, ask, socket_of
from hub.cli.settings_options import Config, EnvFile  # noqa: TC001 - Typer reads them
from skipfilter.text import escaped, example

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    Answer = dict[str, Any]
    Row = dict[str, Any]

ENOUGH: Final = 2
"""Seconds that an answer should be the mean of, if it is the only one."""
ATTEMPTS: Final = 10
"""Questions until such an answer, at most."""
HEAD: Final = 3
"""Lines above the tables."""
REFUSALS: Final = 4
"""Reasons of refusals that a line has."""

main = app()


@main.command(epilog=example("skipfilter top", "skipfilter top --once --json"))
def top(
    once: Annotated[bool, typer.Option("--once", help="Print once, after two seconds, and end.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print an object of JSON in each line.")] = False,
    interval: Annotated[float, typer.Option(help="Seconds between two looks.", min=1, max=10)] = 2.0,
    socket: Socket = "",
    config: Config = None,
    env_file: EnvFile = None,
) -> None:
    """Show how busy the hub is: its streams, updates and deliveries, the delay, refused
    requests, the topics with most deliveries, the largest clients, the slowest streams.

    Numbers are of all processes, and the mean of up to 10 seconds.  The hub counts only
    while this command runs.  Ctrl-C ends it.
    """
    path = socket_of(socket, config, env_file)
    if once or not (as_json or sys.stdout.isatty()):
        answer = _first(path)
        _print(answer, as_json=as_json)
        if answer["silent"]:
            fail(f"{', '.join(answer['silent'])}: no answer, so their numbers are missing", FAILED)
        return
    try:
        if as_json:
            while True:
                _print(_asked(path), as_json=True)
                time.sleep(interval)
        _watch(path, interval)
    except KeyboardInterrupt:  # the way to end it
        pass


def _asked(path: str) -> Answer:
    """Return an answer; end the command if there is none."""
    return ask("/top", {}, socket=path, config=None, env_file=None)


def _first(path: str) -> Answer:
    """Return an answer about enough seconds, or of a hub that does not count at all."""
    for _ in range(ATTEMPTS):
        answer = _asked(path)
        if answer["seconds"] >= ENOUGH or not answer["processes"]:
            break
        time.sleep(0.5)
    return answer


def _print(answer: Answer, *, as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps(answer))
    else:
        console = Console(highlight=False)
        console.print(screen(answer, console.width, None))


def _watch(path: str, interval: float) -> None:
    """Show one answer after the other, on the whole screen."""
    console = Console(highlight=False)
    answer, trouble = _asked(path), ""
    with Live(console=console, screen=True, auto_refresh=False) as live:
        while True:
            live.update(screen(answer, console.width, console.height, trouble), refresh=True)
            time.sleep(interval)
            try:  # a hub that restarts comes back
                answer, trouble = answer_of("/top", {}, path), ""
            except NoAnswer as error:
                trouble = str(error)


# -- the screen


def screen(answer: Answer, width: int, height: int | None, trouble: str = "") -> Group:
    """Return what the screen shows, in so many columns and lines.

    Without a height, it has all rows.  A table without rows is left out.
    """
    lists = {name: answer[name] for name in TABLES if answer[name]}
    if height is not None:
        # Each table has a blank line and a head.
        rooms = _rooms([len(rows) for rows in lists.values()], height - HEAD - 2 * len(lists))
        lists = {
            name: _most_of_both(rows, room) if name == "clients" else rows[:room]
            for (name, rows), room in zip(lists.items(), rooms, strict=True)
        }
    lines = [_line(text, width) for text in (*_head(answer), trouble or _refusals(answer))]
    parts: list[Text | Table] = [*lines]
    for name, rows in lists.items():
        parts += [Text(""), _table(rows, TABLES[name])]
    return Group(*parts)


def _head(answer: Answer) -> tuple[str, str]:
    """Return the first two lines."""
    many = len(answer["silent"])
    silent = f", {many} {'does' if many == 1 else 'do'} not answer" if many else ""
    processes = f"{answer['processes']} {'process' if answer['processes'] == 1 else 'processes'}{silent}"
    streams = (
        f"{answer['streams']:,} {'stream' if answer['streams'] == 1 else 'streams'}, {answer['live']:,} of them live"
    )
    if not answer["seconds"]:
        return f"{streams}   {processes}", "counting begins"
    first = f"{streams}   {processes}   mean of {answer['seconds']} s"
    parts = [
        f"{_rate(answer['updates'])} updates/s",
        f"{_rate(answer['deliveries'])} deliveries/s",
        f"{decimal(round(answer['bytes']))}/s",
    ]
    if answer["updates"]:
        parts.append(f"delay {_seconds(answer['delay'])}, at most {_seconds(answer['worst_delay'])}")
    return first, "   ".join(parts)


def _refusals(answer: Answer) -> str:
    """Return the line about refusals."""
    reasons = list(answer["refusals"].items())
    if not reasons:
        return "nothing refused"
    more = f"   {len(reasons) - REFUSALS} other reasons" if len(reasons) > REFUSALS else ""
    return "refused/s: " + "   ".join(f"{reason} {_rate(rate)}" for reason, rate in reasons[:REFUSALS]) + more


def _rooms(sizes: Sequence[int], lines: int) -> list[int]:
    """Return how many of the lines each of some lists gets: all get the same, and what
    one does not need goes to the others.
    """
    rooms = [0] * len(sizes)
    while lines > 0 and rooms != list(sizes):
        for n, size in enumerate(sizes):
            if rooms[n] < size and lines > 0:
                rooms[n] += 1
                lines -= 1
    return rooms


def _most_of_both(clients: Sequence[Row], room: int) -> list[Row]:
    """Return clients by turns: the one with most streams, the one with most bytes, …"""
    found: dict[int, Row] = {}
    orders = [sorted(clients, key=lambda row: row[name], reverse=True) for name in ("streams", "bytes")]
    for row in chain.from_iterable(zip(*orders, strict=True)):
        found[id(row)] = row
    chosen = list(found.values())[:room]
    return sorted(chosen, key=lambda row: (row["streams"], row["bytes"]), reverse=True)


def _table(rows: Sequence[Row], columns: dict[str, Callable[[Row], str]]) -> Table:
    """Return a table; a topic or client takes the width that is left."""
    table = Table(box=None, expand=True, padding=(0, 1, 0, 0), header_style="bold")
    for name in columns:
        is_wide, is_text = name in ("topic", "client"), name in ("topic", "client", "slowest stream", "state")
        table.add_column(name, ratio=1 if is_wide else None, justify="left" if is_text else "right", no_wrap=True)
    for row in rows:
        table.add_row(*(Text(escaped(value(row)), overflow="ellipsis") for value in columns.values()))
    return table


def _line(text: str, width: int) -> Text:
    line = Text(escaped(text), no_wrap=True, overflow="ellipsis")
    line.truncate(width, overflow="ellipsis")
    return line


def _client(row: Row) -> str:
    """Return who a client is: a subject with its issuer, or an address."""
    return f"{row['subject']} ({row['issuer']})" if row["subject"] else row["address"] or row["issuer"]


def _rate(value: float) -> str:
    """Return a rate, with one decimal if it is small."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}"


def _seconds(value: float) -> str:
    """Return a time in a suitable unit."""
    return f"{value * 1_000:,.1f} ms" if value < 1 else f"{value:,.1f} s"


TABLES: Final[dict[str, dict[str, Callable[[Row], str]]]] = {
    "topics": {
        "topic": lambda row: row["topic"],
        "updates/s": lambda row: _rate(row["updates"]),
        "streams": lambda row: f"{row['streams']:,}",
        "deliveries/s": lambda row: _rate(row["deliveries"]),
    },
    "clients": {
        "client": _client,
        "streams": lambda row: f"{row['streams']:,}",
        "bytes/s": lambda row: decimal(round(row["bytes"])),
        "behind": lambda row: f"{row['behind']:,}",
    },
    "slowest": {
        "slowest stream": lambda row: row["subscriber"],
        "client": _client,
        "state": lambda row: row["state"],
        "behind": lambda row: f"{row['behind']:,}",
    },
}
"""The columns of each table of the screen, by the name of its rows in an answer."""
