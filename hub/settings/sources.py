"""The sources of settings, and which source each value comes from.

    flags > environment > files of secrets > --env-file > --config > defaults

    --heartbeat 20s   HUB_HEARTBEAT=20s   HUB_PUBLISHER_KEY_FILE=/run/secrets/key
    HUB_HEARTBEAT=20s in an env file      heartbeat = "20s" in hub.toml

Belongs here: reading the sources, and naming them in messages.  What a value means is
in `settings`.
"""

from __future__ import annotations

import os
import re
import tomllib
from contextlib import contextmanager
from io import StringIO
from typing import TYPE_CHECKING, Any, Final

import structlog
from dotenv.parser import parse_stream
from pydantic_settings import (
    BaseSettings,
    EnvSettingsSource,
    SettingsConfigDict,
)

from hub.errors import ConfigurationError
from hub.settings.secret_files import read_secret
from hub.settings.settings import SECRETS, SERVER_DEFAULTS, Settings
from hub.settings.texts import with_names
from hub.settings.variable_names import (
    PREFIX,
    RENAMED,
    file_variable,
    nearest,
    unknown_variables,
    variable,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

log = structlog.stdlib.get_logger("hub")

_MAX_SECRET_BYTES: Final = 2**20


class _Declared(Settings, BaseSettings):
    """The settings as pydantic-settings reads them; it is never instantiated."""

    model_config = SettingsConfigDict(env_prefix=PREFIX, extra="ignore")


class _Named(ConfigurationError):
    """An error whose message has the names of the sources."""


class Sources:
    """The values that the sources give, and where each comes from.

    `flags` are settings by name, which take precedence; None stands for a flag that is
    not given.  `config` is the path of a file in TOML, and `env_file` that of a file
    with variables.

    Raises ConfigurationError if a file cannot be read, or if a name is almost that of a
    setting; in TOML, any name that is none.
    """

    def __init__(
        self, flags: Mapping[str, Any] | None = None, *, config: Path | None = None, env_file: Path | None = None
    ) -> None:
        self.values: dict[str, Any] = {}
        """What is given, by setting."""
        self._notes: list[tuple[str, dict[str, str]]] = []  # the warnings that are not logged yet
        self.origins: dict[str, str] = {}
        """Setting -> how its source names it, as in HUB_PATH or "path in hub.toml"."""
        given = {name: value for name, value in (flags or {}).items() if value is not None}
        self._add(given, {name: f"--{name.replace('_', '-')}" for name in given})
        self._add_variables(os.environ, "")
        if env_file is not None:
            self._add_variables(_read_variables(env_file), f" in {env_file}")
        if config is not None:
            self._add_config(config)

    def settings(self) -> Settings:
        """Return the settings; raise ConfigurationError if one is missing or wrong."""
        with self.named():
            return Settings(**{**SERVER_DEFAULTS, **self.values})

    def report(self) -> None:
        """Log warnings about the variables.

        The settings say how lines are logged, so this is done when they are known.
        """
        for event, fields in self._notes:
            log.warning(event, **fields)
        self._notes.clear()

    @contextmanager
    def named(self) -> Iterator[None]:
        """Name each setting as its source does, in an error inside of the context."""
        try:
            yield
        except _Named:
            raise
        except ConfigurationError as error:
            raise _Named(
                with_names(str(error), Settings.model_fields, lambda name: self.origins.get(name, variable(name)))
            ) from None

    def _add(self, values: Mapping[str, Any], origins: Mapping[str, str]) -> None:
        """Add the values of a source; those of earlier sources take precedence."""
        self.values = {**values, **self.values}
        self.origins = {**origins, **self.origins}

    def _add_variables(self, environment: Mapping[str, str], where: str) -> None:
        """Add the variables of a source, and the files of secrets that they name."""
        variables = {name.upper(): value for name, value in environment.items()}
        for name in unknown_variables(variables, Settings.model_fields, SECRETS, where):
            self._notes.append(("this variable is not a setting of the hub, and is ignored", {"name": name}))
        source = EnvSettingsSource(_Declared)
        source.env_vars = {name.lower(): value for name, value in variables.items()}
        values = source()
        self._add(values, {name: f"{variable(name)}{where}" for name in values})
        for old, new in RENAMED.items():
            if old in variables:
                self._notes.append(("this variable has a new name", {"name": old, "new_name": new}))
                name = new.removeprefix(PREFIX).lower()
                self._add({name: variables[old]}, {name: f"{old}{where}"})
        for secret in SECRETS:
            name = file_variable(secret)
            if (path := variables.get(name)) is not None and secret not in values:
                self._add({secret: _secret(f"{name}{where}", path)}, {secret: f"{name}{where}"})

    def _add_config(self, path: Path) -> None:
        """Add the settings of a file in TOML."""
        try:
            values = tomllib.loads(_text_of(path))
        except tomllib.TOMLDecodeError as error:
            place = re.search(r"line \d+, column \d+", str(error))
            where = f"{path}, {place[0]}" if place else f"{path}, at its end"
            raise _Named(f'{where}: this is not TOML, as in heartbeat = "15s"') from None
        wrong = [(name, nearest(name, Settings.model_fields)) for name in values if name not in Settings.model_fields]
        if wrong:
            hints = (
                f"{name} is not a setting" + (f": did you mean {meant}?" if meant else "") for name, meant in wrong
            )
            raise _Named(f"{path}: {'; '.join(hints)}")
        self._add(values, {name: f"{name} in {path}" for name in values})


def settings_from_environment(**chosen: Any) -> Settings:
    """Return the settings in HUB_… environment variables, and in the files they name.

    The arguments in `chosen` take precedence.  The items of a list are separated by
    commas or spaces; HUB_ISSUERS is a JSON array.  HUB_PUBLISHER_KEY_FILE, and the like
    for other secrets, is the path of a file.  Unknown HUB_… variables cause a warning.

    Raises ConfigurationError if a setting is missing or wrong, or if the name of a
    variable is almost the name of a setting.
    """
    sources = Sources(chosen)
    try:
        return sources.settings()
    finally:
        sources.report()


def _read_variables(path: Path) -> dict[str, str]:
    """Return the variables in a file, without expanding anything in their values.

    Raises ConfigurationError if a line is not NAME=VALUE; the line is not shown.
    """
    found = {}
    for binding in parse_stream(StringIO(_text_of(path))):
        if binding.error or (binding.key is not None and binding.value is None):
            raise _Named(f"{path}, line {binding.original.line}: this is not NAME=VALUE, as in HUB_HEARTBEAT=15s")
        if binding.key is not None and binding.value is not None:
            found[binding.key] = binding.value
    return found


def _text_of(path: Path) -> str:
    """Return the text of a file; raise ConfigurationError if it cannot be read."""
    try:
        return path.read_text("utf-8-sig")
    except OSError as error:
        raise _Named(f"{path}: {error.strerror}") from None
    except UnicodeError:
        raise _Named(f"{path}: this is not UTF-8") from None


def _secret(name: str, path: str) -> str:
    """Return the text of a file, without one line end at its end.

    Raises ConfigurationError, without the content, if the file cannot be read.
    """
    if not path:
        raise _Named(f"{name} is empty: it should be the path of a file")
    try:
        return read_secret(path, _MAX_SECRET_BYTES)
    except OSError as error:
        reason = error.strerror
    except UnicodeError:
        reason = "this is not UTF-8"
    except ValueError:
        raise _Named(f"{name}: {path} has more than {_MAX_SECRET_BYTES:,} bytes") from None
    raise _Named(f"{name}: {path}: {reason}")
