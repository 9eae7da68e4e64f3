"""`skipfilter token`: sign a token and print it, or explain one."""

from __future__ import annotations

import json
import os
import sys
import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from hub.auth.authorizer import Authorizer
from hub.auth.claims import read
from hub.auth.hints import token_hints
from hub.auth.keys import read_key, weakness
from hub.auth.signing import sign_classic_token, sign_token
from hub.cli.app import FAILED, app, fail, require_no_options, run, warn
from hub.cli.selectors import selector_of
from hub.cli.settings_options import Config, Dev, EnvFile, settings_sources
from hub.development import DEVELOPMENT_ISSUER, DEVELOPMENT_KEY, DEVELOPMENT_URL
from hub.errors import ConfigurationError, InvalidToken
from hub.node.matchers import MatcherCompiler
from hub.protocol.data import to_json
from hub.protocol.topics import CLASSIC
from hub.settings import YEAR, Settings
from hub.settings.issuers import Algorithm  # noqa: TC001 - Typer reads it
from hub.settings.quantities import duration, parse_duration
from skipfilter.text import escaped, example

if TYPE_CHECKING:
    from hub.auth.authorizer import Explanation
    from hub.auth.grant import Action
    from hub.settings.sources import Sources

_MAX_TTL: Final = 100 * YEAR
_MAX_TOKEN: Final = 2**24
"""The maximum number of characters of a token that are read."""

main = app(
    invoke_without_command=True,
    epilog=example(
        "skipfilter token --dev --publish '*'",
        "skipfilter token --classic --key @secret.txt --subscribe 'https://example.com/books/{id}'",
        "skipfilter token decode --dev TOKEN",
    ),
)


@main.callback()
def token(
    context: typer.Context,
    dev: Annotated[
        bool, typer.Option("--dev", help="Use the key, issuer and address of `skipfilter serve --dev`.")
    ] = False,
    classic: Annotated[
        bool,
        typer.Option(
            "--classic", help="Sign a classic token, with a `mercure` claim, for hubs and clients of version 0.x."
        ),
    ] = False,
    key: Annotated[
        str, typer.Option(help="Key to sign with, or else HUB_TOKEN_KEY: a secret, or @ and the path of its file.")
    ] = "",
    algorithm: Annotated[Algorithm, typer.Option(help="Algorithm to sign with.")] = "HS256",
    issuer: Annotated[str, typer.Option(help="`iss`: the issuer, which the hub must trust.")] = "",
    audience: Annotated[str, typer.Option(help="`aud`: the hub's URL, or its resource identifier.")] = "",
    publish: Annotated[
        list[str],
        typer.Option(help="[TYPE=]PATTERN of topics that may be published to; `*` is every topic. Repeatable."),
    ] = [],  # noqa: B006
    subscribe: Annotated[
        list[str], typer.Option(help="[TYPE=]PATTERN of topics whose private updates may be read. Repeatable.")
    ] = [],  # noqa: B006
    payload: Annotated[
        str, typer.Option(help="JSON payload of the subscriptions, which readers of presence updates see.")
    ] = "null",
    subject: Annotated[str, typer.Option(help="`sub`: the subject of the token.")] = "",
    ttl: Annotated[str, typer.Option(help="Time until the token expires, as in 90s, 12h or 30d.")] = "1h",
) -> None:
    """Sign a token and print it.

    A pattern is an exact topic unless it begins with a matcher type, as in
    uritemplate=https://example.com/books/{id}.  In a classic token, a pattern is a
    topic or a URI template, without a type.
    """
    if context.invoked_subcommand is not None:
        require_no_options(context)
        return
    if dev:
        issuer, audience = issuer or DEVELOPMENT_ISSUER, audience or DEVELOPMENT_URL
    key = key or (DEVELOPMENT_KEY if dev else os.environ.get("HUB_TOKEN_KEY", ""))
    try:
        if not key:
            raise ConfigurationError("a key is needed: --key, HUB_TOKEN_KEY, or --dev")
        secret = read_key("the signing key", key)
        seconds, about, now = _seconds(ttl), _json(payload), time.time()
        if classic:
            _require_untyped(publish + subscribe)
            signed = sign_classic_token(
                secret,
                algorithm,
                publish=publish,
                subscribe=subscribe,
                payload=about,
                subject=subject or None,
                seconds=seconds,
                now=now,
            )
        else:
            if not (issuer and audience):
                raise ConfigurationError("a current token needs --issuer and --audience; --dev sets both")
            signed = sign_token(
                secret,
                algorithm,
                issuer=issuer,
                resource=audience,
                publish=map(_selector, publish),
                subscribe=map(_selector, subscribe),
                payload=about,
                subject=subject or None,
                seconds=seconds,
                now=now,
            )
    except (ConfigurationError, ValueError) as error:
        fail(error)
    if algorithm.startswith("HS") and not dev and (reason := weakness(secret)):
        warn(f"warning: a hub accepts this token in development mode only: {reason}")
    granted = [_selector(text) for text in publish + subscribe]
    for hint in token_hints(read(signed), [(CLASSIC, text) for _, text in granted] if classic else granted):
        warn(f"warning: {hint}")
    typer.echo(signed)


def _seconds(ttl: str) -> float:
    """Return the seconds of --ttl."""
    seconds = parse_duration(ttl)
    if not 1 <= seconds <= _MAX_TTL:
        raise ConfigurationError(f"--ttl {ttl!r} is not from 1s to {duration(_MAX_TTL)}")
    return seconds


def _require_untyped(patterns: list[str]) -> None:
    """Raise ConfigurationError for a pattern that a classic token cannot have."""
    if typed := [text for text in patterns if selector_of(text)[0]]:
        raise ConfigurationError(f"a classic pattern has no type: {typed[0]!r}")


def _json(payload: str) -> Any:
    """Return the value of --payload."""
    try:
        return json.loads(payload)
    except (ValueError, RecursionError):
        raise ConfigurationError(f"--payload {payload!r:.80} is not JSON") from None


def _selector(text: str) -> tuple[str, str]:
    """Return the matcher type and pattern of [TYPE=]PATTERN."""
    type, pattern = selector_of(text)
    return type or "exact", pattern


# -- what a token says


@main.command(
    epilog=example("skipfilter token decode --dev TOKEN", "skipfilter token decode --config hub.toml < token")
)
def decode(
    token: Annotated[str, typer.Argument(help="The token; by default, what stdin has.", show_default=False)] = "",
    url: Annotated[
        str, typer.Option("--url", help="URL of the hub that the token is for.", envvar="HUB_URL")
    ] = DEVELOPMENT_URL,
    config: Config = None,
    env_file: EnvFile = None,
    dev: Dev = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Print what a token says, and each reason for which a hub would refuse it.

    The hub is the one that `skipfilter serve` would start with the same settings.
    Without settings, the token is only printed.  The exit status is 1 if the hub
    refuses the token for publishing and for subscribing.
    """
    text = (token or sys.stdin.read(_MAX_TOKEN)).strip().removeprefix("Bearer ")
    try:
        with settings_sources(config, env_file, dev=dev) as sources:
            settings, told = _settings(sources)
            found = run(_explain(text, settings or Settings(dev=True), url))
    except InvalidToken as error:
        fail(f"this is not a token that a hub can read: {error.reason}", FAILED)
    accepted = None if settings is None else {action: not reasons for action, reasons in found.faults.items()}
    if as_json:
        typer.echo(json.dumps(_as_json(found, accepted), indent=2))
    else:
        lines = [*_says(found), "", *([told] if settings is None else _verdict(found))]
        typer.echo(escaped("\n".join(lines), keep="\n"))
    raise typer.Exit(FAILED if accepted and not any(accepted.values()) else 0)


def _settings(sources: Sources) -> tuple[Settings | None, str]:
    """Return the settings of the hub; or None, and why there are none."""
    settings = sources.settings()
    try:
        with sources.named():
            settings.require_publishers()
    except ConfigurationError as error:
        if not settings.has_keys("subscriber"):
            if sources.values:
                raise
            return None, f"Not checked, because no hub's settings are given: {error}"
    return settings, ""


async def _explain(token: str, settings: Settings, url: str) -> Explanation:
    origin = "/".join(url.split("/")[:3])
    authorizer = Authorizer(settings, MatcherCompiler(settings.url), clock=time.time)
    try:
        return await authorizer.explain(token, resource=settings.resource_at(origin))
    finally:
        await authorizer.aclose()


def _says(found: Explanation) -> list[str]:
    """Return what the token says, as lines."""
    lines = [
        f"Dialect    {'current' if found.is_current else 'classic'}",
        f"Header     {to_json(found.header)}",
        f"Claims     {json.dumps(found.claims, indent=2, ensure_ascii=False)}",
        f"Expires    {_expiry(found.claims.get('exp'))}",
    ]
    for action, selectors in found.allowed.items():
        patterns = [pattern if type in ("exact", CLASSIC) else f"{type}={pattern}" for type, pattern in selectors]
        lines.append(f"{action.capitalize():<11}{', '.join(patterns) or 'nothing'}")
    lines += [f"Ignored    {reason}" for reason in found.ignored]
    return lines + [f"Warning    {hint}" for hint in found.hints]


def _verdict(found: Explanation) -> list[str]:
    """Return whether the hub accepts the token, and why not, as lines."""
    lines = []
    for action, reasons in found.faults.items():
        lines.append(f"To {action}, this hub {'refuses' if reasons else 'accepts'} it{':' if reasons else ''}")
        lines += [f"  - {reason}" for reason in reasons]
    return lines


def _expiry(time_of: object) -> str:
    """Return when a token expires, in words."""
    if time_of is None:
        return "never"
    try:
        moment = datetime.fromtimestamp(float(str(time_of)), UTC)
    except (ValueError, OverflowError, OSError):
        return f"{time_of!r:.80}, which is no time"
    left = moment.timestamp() - time.time()
    how = f"in {left:,.0f} s" if left > 0 else f"{-left:,.0f} s ago"
    return f"{moment:%Y-%m-%d %H:%M:%S} UTC, {how}"


def _as_json(found: Explanation, accepted: dict[Action, bool] | None) -> dict[str, Any]:
    """Return an explanation as an object of JSON."""
    return {
        "dialect": "current" if found.is_current else "classic",
        "header": found.header,
        "claims": found.claims,
        "allowed": {
            action: [{"match_type": type, "match": pattern} for type, pattern in selectors]
            for action, selectors in found.allowed.items()
        },
        "ignored": found.ignored,
        "hints": found.hints,
        "accepted": accepted,
        "faults": None if accepted is None else found.faults,
    }
