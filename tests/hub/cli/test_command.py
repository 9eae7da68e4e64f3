"""The command `skipfilter`: help, version, completion, and what each command imports."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import pytest
import typer.main

from hub.__main__ import COMMANDS, main
from skipfilter.text import INSTALL
from tests.hub.commands import environment, process

if TYPE_CHECKING:
    from collections.abc import Iterator

IMPORTED = """
import sys
before = set(sys.modules)
from hub.__main__ import main
try:
    main(sys.argv[1:])
except SystemExit as exit:
    assert exit.code in (None, 0), exit.code
print("\\n" + " ".join(sorted(set(sys.modules) - before)))
"""
SERVER = {"starlette", "uvicorn", "uvloop", "sse_starlette"}
"""Packages that only a server needs."""
LOADED_BY_NONE = {
    "serve": {"pyarrow", "redis", "re2"},
    "token": SERVER,
    "publish": SERVER | {"pydantic_settings"},
    "subscribe": SERVER | {"pydantic_settings"},
    "verify": SERVER,
    "history": SERVER,
}
"""Packages that the help of a command must not import."""


def imported(*arguments: str) -> set[str]:
    """Return the modules that a command imports."""
    ended = subprocess.run(
        [sys.executable, "-c", IMPORTED, *arguments], env=environment(), capture_output=True, text=True, check=True
    )
    return set(ended.stdout.splitlines()[-1].split())


def packages(modules: set[str]) -> set[str]:
    return {module.partition(".")[0] for module in modules} - sys.stdlib_module_names


@pytest.mark.processes
@pytest.mark.parametrize("arguments", [[], ["-h"], ["--help"]], ids=str)
def test_help_imports_the_standard_library_only(arguments: list[str]) -> None:
    loaded = imported(*arguments)
    assert {module for module in loaded if packages({module})} == {"hub", "hub.__main__"}
    assert loaded & {"asyncio", "argparse", "json", "logging", "importlib.metadata"} == set()


@pytest.mark.processes
@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_imports_only_what_it_needs(name: str) -> None:
    others = set(COMMANDS) - {name}
    loaded = imported(name, "--help")
    assert loaded & {f"hub.cli.{other}" for other in others} == set()
    needless = LOADED_BY_NONE.get(name, set()) | (set() if name == "spark" else {"pyspark", "numpy", "pandas"})
    assert packages(loaded) & needless == set()


def test_the_help_lists_every_command_and_the_exit_codes(capsys: pytest.CaptureFixture[str]) -> None:
    main(["--help"])
    told = capsys.readouterr().out
    for name, command in COMMANDS.items():
        assert re.search(rf"^  {name} +{re.escape(command.help)}$", told, re.MULTILINE)
    assert "Exit status: 0 if" in told
    assert "Example: skipfilter serve --dev" in told
    main([])
    assert capsys.readouterr().out == told


def test_the_version_is_that_of_the_package(capsys: pytest.CaptureFixture[str]) -> None:
    main(["--version"])
    assert capsys.readouterr().out == f"skipfilter {version('skipfilter')}\n"


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("serv", "there is no command 'serv': did you mean serve?"),
        ("zzz", "there is no command 'zzz': skipfilter --help lists the commands"),
        ("--dev", "there is no command '--dev': skipfilter --help lists the commands"),
    ],
)
def test_a_command_that_does_not_exist_is_named(words: str, told: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([words])
    assert (ended.value.code, capsys.readouterr()) == (2, ("", f"skipfilter: {told}\n"))


@pytest.mark.parametrize(("name", "package", "extra"), [("serve", "typer", "hub"), ("spark", "pyspark", "hub,spark")])
@pytest.mark.processes
def test_a_command_without_its_packages_names_the_extra(name: str, package: str, extra: str) -> None:
    needed = f"{name} needs {package}: {INSTALL.format(extra=extra)}\n"
    ended = without([package], name, "generate", "day")
    assert (ended.returncode, ended.stdout, ended.stderr) == (2, "", f"skipfilter: {needed}")
    ended = without([package, "typer"], name, "--help")
    does = COMMANDS[name].help
    needed = needed.replace(package, "typer")
    assert (ended.returncode, ended.stderr) == (0, "")
    assert ended.stdout == (
        f"Usage: skipfilter {name} ...\n\n  {does[:1].upper()}{does[1:]}.\n\nTo see its options: {needed}"
    )


def without(packages: list[str], *words: str) -> subprocess.CompletedProcess[str]:
    """Run a command as if packages were not installed."""
    program = f"import sys; sys.modules.update(dict.fromkeys({packages})); from hub.__main__ import main; main()"
    command = [sys.executable, "-c", program, *words]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("words", [("spark",), *(("spark", name) for name in ("tables", "match", "publish"))])
@pytest.mark.processes
def test_the_help_of_spark_needs_neither_spark_nor_the_hub(words: tuple[str, ...]) -> None:
    packages = "pyspark", "py4j", "pyarrow", "pandas", "numpy", "rich", "starlette", "structlog", "httpx2"
    ended = without(list(packages), *words, "--help")
    assert (ended.returncode, ended.stderr) == (0, "")
    assert "Example" in ended.stdout


# -- the help of each command


def commands(command: Any, *names: str) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield the words and the object of a command, and of all commands below it."""
    yield names, command
    for name, below in getattr(command, "commands", {}).items():
        yield from commands(below, *names, name)


ALL: dict[tuple[str, ...], Any] = {
    names: found
    for name in COMMANDS
    for names, found in commands(typer.main.get_command(import_module(f"hub.cli.{name}").main), name)
}


def help_of(words: tuple[str, ...], capsys: pytest.CaptureFixture[str], option: str = "--help") -> str:
    with pytest.raises(SystemExit) as ended:
        main([*words, option])
    assert ended.value.code == 0
    return capsys.readouterr().out


@pytest.mark.parametrize("words", ALL, ids=" ".join)
def test_every_help_has_an_example_that_can_be_copied(
    words: tuple[str, ...], capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("HUB_HISTORY_URL", raising=False)
    for name in ("chapter.json", "updates.ndjson"):  # a file that does not exist is an error
        (tmp_path / name).touch()
    told = help_of(words, capsys)
    assert help_of(words, capsys, "-h") == told
    assert told.startswith(f"Usage: skipfilter {' '.join(words)} ")
    examples = re.split(r"^ *Examples?:\n", told, flags=re.MULTILINE)[1].splitlines()
    own = [line for line in examples if f"skipfilter {' '.join(words)}" in line]
    assert own != []
    for line in own:
        program, *arguments = shlex.split(line)
        if program != "skipfilter":  # spark-submit
            continue
        for sign in {"<", ">"} & set(arguments):  # a shell redirects
            arguments = arguments[: arguments.index(sign)]
        command = ALL[words[:1]]
        context = command.make_context(words[0], arguments[1:])
        while context._protected_args:  # a group, and the command below it
            name, *_ = context._protected_args
            context = command.commands[name].make_context(name, context.args, parent=context)
            command = context.command
        context.close()


# -- completion


@pytest.mark.processes
@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("skipfilter se", {"serve", "settings"}),
        ("skipfilter ", set(COMMANDS)),
        ("skipfilter serve --dev", {"--dev", "--dev-anywhere"}),
        ("skipfilter history st", {"stats"}),
        ("skipfilter token --algorithm EdD", {"EdDSA"}),
    ],
)
def test_a_shell_completes_commands_and_options(line: str, expected: set[str]) -> None:
    words = line.split(" ")
    asked = {"COMP_WORDS": line, "COMP_CWORD": str(len(words) - 1), "_SKIPFILTER_COMPLETE": "complete_bash"}
    ended = process(**asked)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert set(ended.stdout.split()) == expected


@pytest.mark.processes
@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_for_a_shell_can_be_printed(shell: str) -> None:
    ended = process("--show-completion", shell)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert f"_SKIPFILTER_COMPLETE=complete_{shell}" in ended.stdout


@pytest.mark.processes
@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize(
    "words", [["settings", "--dev"], ["token", "--dev", "--publish", "*"], ["--help"]], ids=" ".join
)
def test_output_that_cannot_be_written_is_one_sentence(words: list[str], unbuffered: str) -> None:
    with Path("/dev/full").open("w") as full:
        ended = subprocess.run(
            [sys.executable, "-m", "hub", *words],
            env=environment(PYTHONUNBUFFERED=unbuffered),
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert (ended.returncode, ended.stderr) == (1, "skipfilter: No space left on device\n")


def test_an_error_of_a_file_names_it_and_leaves_stdout_alone(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def fail(_: object) -> NoReturn:
        raise FileNotFoundError(2, "No such file or directory", "/none/file")

    monkeypatch.setattr("hub.__main__._run", fail)
    with pytest.raises(SystemExit) as ended:
        main([])
    print("still there", flush=True)
    assert ended.value.code == 1
    assert capfd.readouterr() == ("still there\n", "skipfilter: /none/file: No such file or directory\n")
