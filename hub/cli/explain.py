"""`skipfilter explain`: why an update did not arrive, or who got it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import urlencode

import typer

from hub.cli.app import FAILED, app, fail, warn
from hub.cli.client_options import Token, TokenFile, read_token
from hub.cli.operator_options import Issuer, Json, KeyId, Socket, Subject, Subscriber, TokenId, ask
from hub.cli.selectors import parameter_of
from hub.cli.settings_options import Config, EnvFile  # noqa: TC001 - Typer reads them
from skipfilter.text import escaped, example

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

main = app()


@main.command(
    epilog=example(
        "skipfilter explain https://example.com/users/42 --private --subject 42",
        "skipfilter explain --update urn:uuid:9a0e2b5c-…",
        "skipfilter explain sensors/1/heat --stream 'https://example.com/.well-known/mercure?match_mqtt=sensors/%2B'",
    )
)
def explain(
    topics: Annotated[list[str] | None, typer.Argument(help="Topics of an update.", show_default=False)] = None,
    private: Annotated[bool, typer.Option("--private", help="The update is private.")] = False,
    update: Annotated[
        str | None, typer.Option(metavar="ID", help="Instead of topics: the id of an update that was published.")
    ] = None,
    subject: Subject = None,
    subscriber: Subscriber = None,
    token_id: TokenId = None,
    key_id: KeyId = None,
    issuer: Issuer = None,
    stream: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="Instead of a subscriber: the URL of a stream, as a browser's network panel has it.",
        ),
    ] = None,
    match: Annotated[
        list[str] | None,
        typer.Option(metavar="[TYPE=]PATTERN", help="Instead of the URL: a pattern to subscribe to. Repeatable."),
    ] = None,
    url: Annotated[str, typer.Option("--url", help="With --match: URL of the hub.", envvar="HUB_URL")] = "",
    token: Token = "",
    token_file: TokenFile = None,
    socket: Socket = "",
    config: Config = None,
    env_file: EnvFile = None,
    as_json: Json = False,
) -> None:
    """Say why an update does not arrive, or who gets it.

    The update is one of some topics, or one in the history.  The question is about the
    open streams of a subscriber, or about a stream that would begin now, with a token
    or without one; or, if it names neither, about all.  A line says why; below it
    stand the patterns that match or, with what would make them match, those that do
    not.
    """
    given: dict[str, Any] = {
        "topics": topics or None,
        "private": private or None,
        "update": update,
        "subject": subject,
        "subscriber": subscriber,
        "token_id": token_id,
        "key_id": key_id,
        "issuer": issuer,
        "stream": f"{url}?{urlencode(list(map(parameter_of, match)))}" if match and stream is None else stream,
    }
    if match and stream is not None:
        fail("give --stream, or --match, and not both")
    if given["stream"] is not None:
        given["token"] = read_token(token, token_file, dev=False)
    elif token or token_file:
        fail("a token needs --stream or --match, which say what is subscribed to")
    answer = ask("/explain", given, socket=socket, config=config, env_file=env_file)
    typer.echo(json.dumps(answer) if as_json else "\n".join(escaped(line) for line in _lines(answer)))
    for name in answer["silent"]:
        warn(f"{name} has not answered, so what it knows is missing")
    if answer["silent"]:
        raise typer.Exit(FAILED)


def _lines(answer: Mapping[str, Any]) -> Iterator[str]:
    """Yield an answer in words: the sentence first, then each subscriber."""
    yield answer["sentence"]
    update, rows = answer["update"], answer["subscribers"]
    if "id" in update:
        privacy = "private" if update["private"] else "public"
        yield f"  update       {update['id']}, {privacy}, published {update['published']}, {' '.join(update['topics'])}"
    for row in rows:
        yield ""
        yield f"{_who(row)}: {row['fate'] or 'refused'}"
        if len(rows) > 1 and "wants" in row:
            yield f"  {row['sentence']}"
        yield from _connection(row)
        for name, label in (("wants", "matcher"), ("may_read", "grant")):
            for finding in row.get(name, ()):
                yield f"  {label:<13}{_finding(finding)}"
        if row.get("may_read") == [] and row["fate"] == "denied":
            yield "  grant        none"
        for hint in row.get("hints", ()):
            yield f"  hint         {hint}"


def _who(row: Mapping[str, Any]) -> str:
    if "subscriber" not in row:
        return "The stream"
    whose = row["issuer"] if row["subject"] is None else f"{row['subject']} ({row['issuer']})"
    return f"{row['subscriber']}  {whose}  {row['address']}"


def _connection(row: Mapping[str, Any]) -> Iterator[str]:
    if "ended" in row:
        yield f"  connection   ended {row['ended']}: {row['ended_because']}"
    elif "since" in row:
        behind = f", {row['behind']} behind" if row["behind"] else ""
        yield f"  connection   {row['state']}{behind}, since {row['since']}, on {row['process']}"
        if "position" in row:
            began = "with the oldest entry" if row["after"] is None else f"after position {row['after']}"
            yield f"  cursor       began {began}; sent what it wants up to position {row['position']}"


def _finding(finding: Mapping[str, Any]) -> str:
    text = f"{finding['type']} {finding['pattern']}"
    if finding["reason"] is None:
        return f"{text}  matches {finding['topic']}"
    near = f"; it would match {finding['near_miss']}" if finding["near_miss"] else ""
    return f"{text}  does not match {finding['topic']}: {finding['reason']}{near}"
