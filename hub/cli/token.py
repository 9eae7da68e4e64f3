"""`hub token`: sign a token, and print it."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Annotated

import typer

from hub.auth.signing import sign_classic_token, sign_token
from hub.errors import ConfigurationError
from hub.issuers import Algorithm  # noqa: TC001 - Typer reads it
from hub.protocol.topics import MATCHER_TYPES
from hub.settings import DEVELOPMENT_ISSUER, DEVELOPMENT_KEY


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


def _selector(text: str) -> tuple[str, str]:
    type, separator, pattern = text.partition("=")
    return (type, pattern) if separator and type in MATCHER_TYPES else ("exact", text)
