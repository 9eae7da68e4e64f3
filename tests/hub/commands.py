"""Runs the commands of `skipfilter`, in this process or in one of their own."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from contextlib import contextmanager
from importlib import import_module
from typing import TYPE_CHECKING, Any

from typer.testing import CliRunner

from hub.__main__ import COMMANDS
from tests.waiting import HANG

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from typer.testing import Result


def environment(**variables: str) -> dict[str, str]:
    """Return the variables of this process, without those of a hub, and `variables`.

    A hub has no socket for commands in the working directory, which tests share.
    """
    others = {key: value for key, value in os.environ.items() if not key.startswith("HUB_")}
    return others | {"HUB_OPERATOR_SOCKET": ""} | variables


def invoke(name: str, *arguments: object, stdin: str | bytes | None = None, **variables: str | None) -> Result:
    """Run a command in this process."""
    assert name in COMMANDS
    unset: dict[str, str | None] = {key: None for key in os.environ if key.startswith("HUB_")}
    main = import_module(f"hub.cli.{name}").main
    words = [*map(str, arguments)]
    options: dict[str, Any] = {"env": unset | variables, "catch_exceptions": False, "prog_name": f"skipfilter {name}"}
    return CliRunner().invoke(main, words, input=stdin, **options)


def run(
    name: str, *arguments: object, stdin: str | bytes | None = None, **variables: str | None
) -> subprocess.CompletedProcess[str]:
    """Run a command in this process, with the result of a process of its own."""
    ended = invoke(name, *arguments, stdin=stdin, **variables)
    return subprocess.CompletedProcess([name, *map(str, arguments)], ended.exit_code, ended.stdout, ended.stderr)


@contextmanager
def uvicorn_hub(*arguments: str, **variables: str) -> Iterator[Callable[[], str]]:
    """Run `uvicorn hub:app` on a free port, in development mode, and then stop it; yield
    a function that returns its output so far, of all its processes.
    """
    own = environment(HUB_DEV="1", HUB_HISTORY_URL="memory://", **variables)
    with tempfile.TemporaryFile("w+") as out:
        server = subprocess.Popen(
            [sys.executable, "-m", "uvicorn", "hub:app", "--port", "0", *arguments],
            env=own,
            stdout=out,
            stderr=subprocess.STDOUT,
        )

        def output() -> str:
            out.seek(0)
            return out.read()

        try:
            yield output
        finally:
            server.terminate()
            server.wait(HANG)


def process(*arguments: str, stdin: str = "", **variables: str) -> subprocess.CompletedProcess[str]:
    """Run `skipfilter` in a process of its own."""
    return subprocess.run(
        [sys.executable, "-m", "hub", *arguments],
        env=environment(**variables),
        input=stdin,
        capture_output=True,
        text=True,
        timeout=HANG,
        check=False,
    )
