"""The parts that all commands share: how they are declared, and how they fail."""

from __future__ import annotations

import signal
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, NoReturn, TypeAlias, TypeVar

import typer

from skipfilter.text import escaped

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator

T = TypeVar("T")

FAILED: Final = 1
"""The exit status if the work failed, or a check found a fault."""
CANNOT_BEGIN: Final = 2
"""The exit status if an argument, a setting or a package is wrong or missing."""
INTERRUPTED: Final = 130
"""The exit status after Ctrl-C."""

Note: TypeAlias = "Callable[[float | None, int, str], None]"
"""Shows a step: the share that is done, if it is known, the updates, and a text."""


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
    typer.echo(f"skipfilter: {escaped(message)}", err=True)


def fail(message: object, status: int = CANNOT_BEGIN) -> NoReturn:
    """Print a message to stderr, and end the command."""
    warn(str(message))
    raise typer.Exit(status)


def run(work: Coroutine[Any, Any, T]) -> T:
    """Return the result of a coroutine; end the command after Ctrl-C."""
    import asyncio  # not every command needs it

    # The handler of asyncio waits for the work, which may be reading from a terminal.
    before = signal.signal(signal.SIGINT, _interrupt)
    try:
        return asyncio.run(work)
    except KeyboardInterrupt:
        raise typer.Exit(INTERRUPTED) from None
    finally:
        signal.signal(signal.SIGINT, before)


def _interrupt(number: int, frame: object) -> NoReturn:  # noqa: ARG001
    raise KeyboardInterrupt


def require_no_options(context: typer.Context) -> None:
    """End the command if options were given before the name of a command below it.

    They would be ignored: each command has options of its own.
    """
    for name in context.params:
        source = context.get_parameter_source(name)
        if source is not None and source.name == "COMMANDLINE":
            below = f"{context.command_path} {context.invoked_subcommand}"
            fail(f"give the options of {below!r} after its name, as in: {below} --{name.replace('_', '-')} ...")


@contextmanager
def progress() -> Iterator[Note]:
    """Yield a function that shows a step, if stderr is a terminal."""
    if not sys.stderr.isatty():
        yield lambda *_: None
        return
    from rich.console import Console  # the import takes a tenth of a second
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = TimeElapsedColumn(), BarColumn(), TextColumn("{task.description}")
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task("", total=None)

        def note(share: float | None, updates: int, text: str) -> None:
            rate = updates / (bar.tasks[0].elapsed or 1)
            description = f"{updates:,} updates, {rate:,.0f} a second{text}" if updates else text
            bar.update(task, completed=share or 0, total=share and 1, description=description)

        yield note
