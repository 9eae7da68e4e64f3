"""The sources of settings, and which source each value comes from.

    flags > environment > files of secrets > --env-file > --config > defaults

    --heartbeat 20s   HUB_HEARTBEAT=20s   HUB_PUBLISHER_KEY_FILE=/run/secrets/key
    HUB_HEARTBEAT=20s in an env file      heartbeat = "20s" in hub.toml

Belongs here: reading the sources, and naming them in messages.  What a value means is
in `settings`.
"""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import structlog
from pydantic_settings import (
    BaseSettings,
    DotEnvSettingsSource,
    EnvSettingsSource,
    SettingsConfigDict,
    TomlConfigSettingsSource,
)

from hub.errors import ConfigurationError
from hub.settings.settings import SECRETS, Settings
from hub.settings.texts import with_names
from hub.settings.variable_names import (
    PREFIX,
    RENAMED,
    file_variable,
    nearest,
    renamed_variables,
    unknown_variables,
    variable,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

log = structlog.stdlib.get_logger("hub")

SERVER_HISTORY: Final = "sqlite:///mercure.db"
"""The history of a server for which none is set."""
_MAX_SECRET_BYTES: Final = 2**20


class _Declared(Settings, BaseSettings):
    """The settings as pydantic-settings reads them; it is never instantiated."""

    model_config = SettingsConfigDict(env_prefix=PREFIX, extra="ignore")


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
        self.origins: dict[str, str] = {}
        """Setting -> how its source names it, as in HUB_PATH or "path in hub.toml"."""
        given = {name: value for name, value in (flags or {}).items() if value is not None}
        self._add(given, {name: f"--{name.replace('_', '-')}" for name in given})
        self._add_variables(EnvSettingsSource(_Declared), "")
        if env_file is not None:
            _require_readable(env_file)
            self._add_variables(DotEnvSettingsSource(_Declared, env_file=env_file), f" in {env_file}")
        if config is not None:
            _require_readable(config)
            self._add_config(config)

    def settings(self) -> Settings:
        """Return the settings; raise ConfigurationError if one is missing or wrong."""
        try:
            return Settings(**{"history_url": SERVER_HISTORY} | self.values)
        except ConfigurationError as error:
            raise ConfigurationError(self.named(str(error))) from None

    def named(self, message: str) -> str:
        """Return a message with the name of each setting as its source has it."""
        return with_names(message, Settings.model_fields, lambda name: self.origins.get(name, variable(name)))

    def _add(self, values: Mapping[str, Any], origins: Mapping[str, str]) -> None:
        """Add the values of a source; those of earlier sources take precedence."""
        self.values = {**values, **self.values}
        self.origins = {**origins, **self.origins}

    def _add_variables(self, source: EnvSettingsSource, where: str) -> None:
        """Add the variables of a source, and the files of secrets that they name."""
        variables = {name.upper(): value for name, value in source.env_vars.items()}
        for name in unknown_variables(variables, Settings.model_fields, SECRETS, where):
            log.warning("this variable is not a setting of the hub, and is ignored", name=name)
        for name, new_name in RENAMED.items():
            if name in variables:
                log.warning("this variable has a new name", name=name, new_name=new_name)
        renamed = {name.removeprefix(PREFIX).lower(): value for name, value in renamed_variables(variables).items()}
        values = renamed | {name: value for name, value in source().items() if name in Settings.model_fields}
        self._add(values, {name: f"{variable(name)}{where}" for name in values})
        for secret in SECRETS:
            name = file_variable(secret)
            if (path := variables.get(name)) is not None and secret not in values:
                self._add({secret: _secret(f"{name}{where}", path)}, {secret: f"{name}{where}"})

    def _add_config(self, path: Path) -> None:
        """Add the settings of a file in TOML."""
        try:
            values = TomlConfigSettingsSource(_Declared, toml_file=path)()
        except tomllib.TOMLDecodeError as error:
            place = re.search(r"line \d+, column \d+", str(error))
            where = f"{path}, {place[0]}" if place else f"{path}, at its end"
            raise ConfigurationError(f'{where}: this is not TOML, as in heartbeat = "15s"') from None
        wrong = [(name, nearest(name, Settings.model_fields)) for name in values if name not in Settings.model_fields]
        if wrong:
            hints = (
                f"{name} is not a setting" + (f": did you mean {meant}?" if meant else "") for name, meant in wrong
            )
            raise ConfigurationError(f"{path}: {'; '.join(hints)}")
        self._add(values, {name: f"{name} in {path}" for name in values})


def in_variables(error: ConfigurationError) -> str:
    """Return the message of an error with the variable of each setting."""
    return with_names(str(error), Settings.model_fields, variable)


def settings_from_environment(**chosen: Any) -> Settings:
    """Return the settings in HUB_… environment variables, and in the files they name.

    The arguments in `chosen` take precedence.  The items of a list are separated by
    commas or spaces; HUB_ISSUERS is a JSON array.  HUB_PUBLISHER_KEY_FILE, and the like
    for other secrets, is the path of a file.  Unknown HUB_… variables cause a warning.

    Raises ConfigurationError if a setting is missing or wrong, or if the name of a
    variable is almost the name of a setting.
    """
    return Sources(chosen).settings()


def _require_readable(path: Path) -> None:
    """Raise ConfigurationError unless a file can be read, and is UTF-8."""
    try:
        path.read_text("utf-8")
    except OSError as error:
        raise ConfigurationError(f"{path}: {error.strerror}") from None
    except UnicodeError:
        raise ConfigurationError(f"{path}: this is not UTF-8") from None


def _secret(name: str, path: str) -> str:
    """Return the text of a file, without one line end at its end.

    Raises ConfigurationError, without the content, if the file cannot be read.
    """
    try:
        with Path(path).open("rb") as file:
            content = file.read(_MAX_SECRET_BYTES + 1)
        if len(content) > _MAX_SECRET_BYTES:
            raise ConfigurationError(f"{name}: {path} has more than {_MAX_SECRET_BYTES:,} bytes")
        return content.decode("utf-8").removesuffix("\n").removesuffix("\r")
    except OSError as error:
        reason = error.strerror
    except UnicodeError:
        reason = "this is not UTF-8"
    raise ConfigurationError(f"{name}: {path}: {reason}")
