"""The options of all commands that read settings."""

from __future__ import annotations

from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hub.cli.app import fail
from hub.errors import ConfigurationError
from hub.settings.sources import Sources

if TYPE_CHECKING:
    from collections.abc import Iterator

Config = Annotated[
    Path | None,
    typer.Option("--config", metavar="FILE", help="Settings in TOML; `skipfilter settings example` prints one."),
]
EnvFile = Annotated[
    Path | None,
    typer.Option("--env-file", metavar="FILE", help="Variables, as lines HUB_NAME=VALUE."),
]
Dev = Annotated[
    bool | None,
    typer.Option(
        "--dev/--no-dev", help="Development mode: well-known keys, and subscribers need no token.", show_default=False
    ),
]


@contextmanager
def settings_sources(config: Path | None, env_file: Path | None, **flags: Any) -> Iterator[Sources]:
    """Yield the sources of settings.

    An error in a setting or a file, here or inside of the context, ends the command
    with a sentence, which names each setting as its source does.
    """
    try:
        sources = Sources(flags, config=config, env_file=env_file)
        try:
            with sources.named():
                yield sources
        finally:
            sources.report()
    except (ConfigurationError, OSError) as error:
        fail(error)
