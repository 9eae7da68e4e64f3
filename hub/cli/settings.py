"""`skipfilter settings`: the settings in force, and where each comes from."""

from __future__ import annotations

import json
import textwrap
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hub.cli.app import app, require_no_options
from hub.cli.settings_options import Config, Dev, EnvFile, settings_sources
from hub.settings.description import descriptions, groups
from skipfilter.text import example

if TYPE_CHECKING:
    from hub.settings import Settings
    from hub.settings.description import Description
    from hub.settings.sources import Sources

main = app(
    invoke_without_command=True,
    epilog=example(
        "skipfilter settings --config hub.toml",
        "skipfilter settings check --config hub.toml",
        "skipfilter settings example > hub.toml",
    ),
)

_WIDTH = 88


@main.callback()
def show(
    context: typer.Context,
    config: Config = None,
    env_file: EnvFile = None,
    dev: Dev = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Print the settings that `skipfilter serve` would have with the same options.

    For each setting: the value, where it comes from, the unit and the meaning.  Secrets
    are masked.
    """
    if context.invoked_subcommand is not None:
        require_no_options(context)
        return
    with settings_sources(config, env_file, dev=dev) as sources:
        settings = sources.settings()
    if as_json:
        rows = [_as_json(each, settings, sources) for each in descriptions()]
        typer.echo(json.dumps(rows, indent=2, ensure_ascii=False))
        return
    for title, members in groups().items():
        typer.echo(f"{title}\n")
        for each in members:
            _print(each, settings, sources)


@main.command(epilog=example("skipfilter settings check --env-file production.env"))
def check(config: Config = None, env_file: EnvFile = None, dev: Dev = None) -> None:
    """Check the settings and the keys, for continuous integration; serve nothing.

    The exit status is 0 if a hub would start with them, and 2 if not.  Files and
    servers that the settings name are not opened, except for keys.
    """
    from hub.http.embedding import server_app

    with settings_sources(config, env_file, dev=dev) as sources:
        server_app(sources.settings())
    typer.echo("the settings are fine")


@main.command("example", epilog=example("skipfilter settings example > hub.toml"))
def print_example() -> None:
    """Print a file for --config, with all settings as comments."""
    lines = ["# The settings of a hub: skipfilter serve --config hub.toml"]
    for title, settings in groups().items():
        lines += ["", "", f"# -- {title.lower()}"]
        for each in settings:
            meaning = f"{each.plain(str)} ({each.unit})"
            lines += ["", *textwrap.wrap(meaning, _WIDTH, initial_indent="# ", subsequent_indent="# ")]
            lines.append(f"# {each.name} = {_toml(each)}")
    typer.echo("\n".join(lines))


def _print(setting: Description, settings: Settings, sources: Sources) -> None:
    """Print a setting in a few lines."""
    value = setting.shown(getattr(settings, setting.name))
    typer.echo(f"{setting.variable}={value}    # {_origin(setting, settings, sources)}")
    for line in textwrap.wrap(f"{setting.plain()} ({setting.unit})", _WIDTH - 4):
        typer.echo(f"    {line}")
    typer.echo()


def _as_json(setting: Description, settings: Settings, sources: Sources) -> dict[str, Any]:
    """Return a setting as an object of JSON."""
    value = getattr(settings, setting.name)
    return {
        "name": setting.name,
        "variable": setting.variable,
        "value": setting.shown(value) if setting.is_secret or isinstance(value, str) else value,
        "origin": _origin(setting, settings, sources),
        "unit": setting.unit,
        "group": setting.group,
        "meaning": setting.plain(),
    }


def _origin(setting: Description, settings: Settings, sources: Sources) -> str:
    """Return the source of a value; it is "development mode" if that chose it."""
    if setting.name in sources.origins:
        return sources.origins[setting.name]
    return "default" if getattr(settings, setting.name) == setting.server_default else "development mode"


def _toml(setting: Description) -> str:
    """Return the default of a setting in TOML; "..." stands for one that has none."""
    value = setting.server_default
    if isinstance(value, tuple):
        return "[]"
    text = "..." if value is None else setting.shown(value)
    return json.dumps(text) if isinstance(value, str | None) or setting.unit == "bytes" else text
