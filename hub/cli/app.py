"""The parts that all commands share: how they are declared, and how they fail."""

from __future__ import annotations

from typing import Any, Final, NoReturn

import typer

FAILED: Final = 1
"""The exit status if the work failed, or a check found a fault."""
CANNOT_BEGIN: Final = 2
"""The exit status if an argument, a setting or a package is wrong or missing."""


def app(**options: Any) -> typer.Typer:
    """Return an application of Typer, to which commands are added.

    Its help is plain text, and `-h` asks for it too.
    """
    return typer.Typer(
        add_completion=False,  # `hub.cli.completion` does it for all commands together
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
        **options,
    )


def warn(message: str) -> None:
    """Print a message to stderr."""
    typer.echo(f"skipfilter: {message}", err=True)


def fail(message: object, status: int = CANNOT_BEGIN) -> NoReturn:
    """Print a message to stderr, and end the command."""
    warn(str(message))
    raise typer.Exit(status)
