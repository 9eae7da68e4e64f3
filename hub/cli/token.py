"""`skipfilter token`: sign a token and print it."""

from __future__ import annotations

import json
import time
from typing import Annotated

import typer

from hub.auth.keys import read_key, weakness
from hub.auth.signing import sign_classic_token, sign_token
from hub.cli.app import app, fail, warn
from hub.cli.selectors import selector_of
from hub.development import DEVELOPMENT_ISSUER, DEVELOPMENT_KEY, DEVELOPMENT_URL
from hub.errors import ConfigurationError
from hub.settings.issuers import Algorithm  # noqa: TC001 - Typer reads it
from skipfilter.text import example

main = app()


@main.command(
    epilog=example(
        "skipfilter token --dev --publish '*'",
        "skipfilter token --classic --key @secret.txt --subscribe 'https://example.com/books/{id}'",
    )
)
def token(
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
        str,
        typer.Option(
            help="Key to sign with: a secret, or @ and the path of a file with a secret or a PEM key.",
            envvar="HUB_TOKEN_KEY",
        ),
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
    ttl: Annotated[float, typer.Option(help="Seconds until the token expires.", min=1)] = 3600,
) -> None:
    """Sign a token and print it.

    A pattern is an exact topic unless it begins with a matcher type, as in
    uritemplate=https://example.com/books/{id}.  In a classic token, a pattern is a
    topic or a URI template, without a type.
    """
    if dev:
        key, issuer = key or DEVELOPMENT_KEY, issuer or DEVELOPMENT_ISSUER
        audience = audience or DEVELOPMENT_URL
    try:
        if not key:
            raise ConfigurationError("a key is needed: --key, HUB_TOKEN_KEY, or --dev")
        if not classic and not (issuer and audience):
            raise ConfigurationError("a current token needs --issuer and --audience; --dev sets both")
        secret = read_key("the signing key", key)
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
    except (ConfigurationError, ValueError) as error:
        fail(error)
    if algorithm.startswith("HS") and not dev and (reason := weakness(secret)):
        warn(f"warning: a hub accepts this token in development mode only: {reason}")
    typer.echo(signed)


def _selector(text: str) -> tuple[str, str]:
    """Return the matcher type and pattern of [TYPE=]PATTERN."""
    type, pattern = selector_of(text)
    return type or "exact", pattern
