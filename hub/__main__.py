"""The command `skipfilter`, which is also `python -m hub`.

    skipfilter serve --port 3000
               │     └─ the rest is read by the module of the command, in `hub.cli`
               └─ a name in COMMANDS

This module imports the standard library only, and a command imports what it needs.  So
its help is quick, and works without any extra.
"""

from __future__ import annotations

import os
import signal
import sys
from importlib import import_module
from io import TextIOWrapper
from typing import TYPE_CHECKING, Any, Final, NamedTuple, NoReturn

if TYPE_CHECKING:
    from collections.abc import Sequence


class Command(NamedTuple):
    """A command: the extra that has its packages, and its line in the help."""

    extra: str
    help: str


COMMANDS: Final = {
    "serve": Command("hub", "serve a hub"),
    "publish": Command("hub", "publish an update, or a file of them"),
    "subscribe": Command("hub", "print the updates that a hub sends"),
    "token": Command("hub", "sign a token, or explain one"),
    "settings": Command("hub", "print the settings in force, check them, or print an example file"),
    "verify": Command("hub", "check a running hub from outside"),
    "explain": Command("hub", "say why an update did not arrive, or who got it"),
    "top": Command("hub", "show how busy the hub is, and with what"),
    "connections": Command("hub", "print who is connected"),
    "kick": Command("hub", "end the streams of a user now"),
    "revoke": Command("hub", "refuse a user's tokens from now on, and end their streams"),
    "log": Command("hub", "say who received what, from the event log"),
    "history": Command("hub", "look at the history of a hub, prune it, or copy it"),
    "spark": Command("hub,spark", "match updates with subscribers on Spark, and read the log of a hub"),
}
"""All commands by name.  The module of each is in `hub.cli` and has the same name."""

_HELP: Final = """\
Usage: skipfilter COMMAND [OPTIONS]

Push live updates to browsers, and find out afterwards who received them.

{commands}

  skipfilter COMMAND --help          print the options of a command, and an example
  skipfilter --version               print the version
  skipfilter --install-completion    let the shell complete commands and options
  skipfilter --show-completion bash  print the script for that, or for zsh, fish, powershell

Example: skipfilter serve --dev

Exit status: 0 if all is done; 1 if the work failed, or a check found a fault; 2 if the
command could not begin, because an argument, a setting or a package is wrong or missing;
130 if Ctrl-C ended the work.
"""
COMPLETION: Final = "_SKIPFILTER_COMPLETE"
"""The variable with which a shell asks for completions."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a command, and exit with its status."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):  # a console may lack signs that are in an update
            stream.reconfigure(errors="backslashreplace")
    try:
        _run(list(sys.argv[1:] if arguments is None else arguments))
        sys.stdout.flush()
    except KeyboardInterrupt:  # before a command could handle it
        sys.exit(130)
    except OSError as error:
        if error.filename is None:  # stdout cannot be written, and Python must not try again at its end
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        where = "" if error.filename is None else f"{error.filename}: "
        print(f"skipfilter: {where}{error.strerror or error}", file=sys.stderr)
        sys.exit(1)


def _run(words: list[str]) -> None:
    """Run a command."""
    first = words[0] if words else "--help"
    if COMPLETION in os.environ or first in ("--install-completion", "--show-completion"):
        try:
            import_module("hub.cli.completion").main(words)
        except ImportError as error:
            _exit_without(_missing(error, "completion", "hub"))
    elif first in ("-h", "--help"):
        width = max(map(len, COMMANDS))
        print(_HELP.format(commands="\n".join(f"  {name:<{width}}  {each.help}" for name, each in COMMANDS.items())))
    elif first == "--version":
        from importlib.metadata import version

        print(f"skipfilter {version('skipfilter')}")
    elif first in COMMANDS:
        if first == "serve":
            _keep_hang_up()
        _run_command(first, words[1:])
    else:
        from difflib import get_close_matches

        near = get_close_matches(first, COMMANDS, 1)
        hint = f"did you mean {near[0]}?" if near else "skipfilter --help lists the commands"
        print(f"skipfilter: there is no command {first!r}: {hint}", file=sys.stderr)
        sys.exit(2)


def _keep_hang_up() -> None:
    """Have SIGHUP do nothing until the server handles it, unless it is ignored."""
    number = getattr(signal, "SIGHUP", None)
    if number is not None and signal.getsignal(number) is signal.SIG_DFL:
        signal.signal(number, lambda *_: None)


def _run_command(name: str, words: list[str]) -> None:
    """Run a command.

    If a package of its extra is missing, its help is what COMMANDS says of it, and how
    to install the package.
    """
    extra, does = COMMANDS[name]
    try:
        command: Any = import_module(f"hub.cli.{name}").main
        command(words, prog_name=f"skipfilter {name}")
    except ImportError as error:
        needed = _missing(error, name, extra)
        if words[-1:] not in (["-h"], ["--help"]):
            _exit_without(needed)
        print(f"Usage: skipfilter {name} ...\n\n  {does[:1].upper()}{does[1:]}.\n\nTo see its options: {needed}")


def _missing(error: ImportError, what: str, extra: str) -> str:
    """Return the message that a package of an extra is missing."""
    package = (error.name or "hub").partition(".")[0]
    if package in ("hub", "skipfilter"):  # a mistake of this project
        raise error
    from skipfilter.text import missing

    return missing(what, package, extra)


def _exit_without(needed: str) -> NoReturn:
    """Exit because a package is missing."""
    print(f"skipfilter: {needed}", file=sys.stderr)
    sys.exit(2)


if __name__ == "__main__":
    main()
