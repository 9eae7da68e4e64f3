"""Completion of commands and options in a shell, by Typer."""

from __future__ import annotations

import os
from importlib import import_module
from typing import TYPE_CHECKING

import typer
import typer.main

from hub.__main__ import COMMANDS, COMPLETION

if TYPE_CHECKING:
    from collections.abc import Sequence


def main(arguments: Sequence[str]) -> None:
    """Print completions, or the script that makes a shell ask for them.

    Only the module of the command in the line is imported; of the others, the names are
    enough.
    """
    if len(arguments) == 2:  # `--show-completion SHELL`; otherwise Typer finds out which shell it is
        os.environ[COMPLETION], arguments = f"source_{arguments[1]}", []
    names = typer.Typer(rich_markup_mode=None)
    for name, command in COMMANDS.items():
        names.command(name, help=command.help)(_nothing)
    group = typer.main.get_command(names)
    assert isinstance(group, typer.core.TyperGroup)
    line = os.environ.get("_TYPER_COMPLETE_ARGS") or os.environ.get("COMP_WORDS", "")
    if (name := next(iter(line.split()[1:]), "")) in COMMANDS:
        group.add_command(typer.main.get_command(import_module(f"hub.cli.{name}").main), name)
    group.main(list(arguments), prog_name="skipfilter")


def _nothing() -> None:
    """Stand for a command of which only the name is needed."""
