"""HUB_ variables: names close to a setting are refused, other unknown ones logged."""

from __future__ import annotations

import re
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import typer.main
from structlog.testing import capture_logs

import hub.cli
from hub import ConfigurationError, Settings, settings_from_environment
from hub.__main__ import COMMANDS
from hub.settings.settings import SECRETS
from hub.settings.variable_names import unknown_variables

if TYPE_CHECKING:
    from collections.abc import Iterator

SECRET = "a-secret-that-nobody-should-see-in-a-log"


def unknown(*names: str) -> list[str]:
    return unknown_variables(dict.fromkeys(names, SECRET), Settings.model_fields, SECRETS)


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("HUB_ANONYMOS", "HUB_ANONYMOUS"),
        ("HUB_ANONYMUOS", "HUB_ANONYMOUS"),
        ("HUB_DVE", "HUB_DEV"),
        ("hub_heartbeet", "HUB_HEARTBEAT"),
        ("HUB_ISSUER", "HUB_ISSUERS"),
        ("HUB_MAX_BODYS", "HUB_MAX_BODY"),
        ("HUB_MAX_CONNECTION", "HUB_MAX_CONNECTIONS"),
        ("HUB_MAX_CONNECTIONS_PER_CLIENTS", "HUB_MAX_CONNECTIONS_PER_CLIENT"),
        ("HUB_MAX_CONECTION_PER_CLIENT", "HUB_MAX_CONNECTIONS_PER_CLIENT"),
        ("HUB_MAX_CLIENT_CONNECTIONS", "HUB_MAX_CONNECTIONS_PER_CLIENT"),
        ("HUB_CONNECTIONS_PER_CLIENT", "HUB_MAX_CONNECTIONS_PER_CLIENT"),
        ("HUB_CONNECTIONS_RATE_PER_CLIENT", "HUB_CONNECTION_RATE_PER_CLIENT"),
        ("HUB_PER_CLIENT_CONNECTION_RATE", "HUB_CONNECTION_RATE_PER_CLIENT"),
        ("HUB_PUBLISHERS_KEYS", "HUB_PUBLISHER_KEY"),
        ("HUB_MAX_LIFETIME_SECONDS", "HUB_MAX_LIFETIME"),
        ("HUB_TRANSPORTURL", "HUB_HISTORY_URL"),
    ],
)
def test_a_variable_that_is_almost_a_setting_is_refused(name: str, meant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, SECRET)
    with pytest.raises(ConfigurationError) as caught:
        settings_from_environment(dev=True)
    assert str(caught.value) == f"{name.upper()} is not a setting: did you mean {meant}?"


def test_every_setting_is_known_and_refused_with_an_extra_letter() -> None:
    names = [f"HUB_{name.upper()}" for name in Settings.model_fields]
    assert unknown(*names) == unknown(*map(str.lower, names)) == []
    for name in names:
        for near in (f"{name}X", f"{name[:-2]}{name[-1]}{name[-2]}"):
            with pytest.raises(ConfigurationError, match=f"^{near} is not a setting: did you mean HUB_"):
                unknown(near)


def test_an_earlier_name_is_read_after_the_present_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HUB_TRANSPORT_URL", "sqlite:///earlier.db")
    with capture_logs() as logs:
        assert settings_from_environment(dev=True).history_url == "sqlite:///earlier.db"
    assert [(line["name"], line["new_name"]) for line in logs] == [("HUB_TRANSPORT_URL", "HUB_HISTORY_URL")]
    monkeypatch.setenv("hub_history_url", "sqlite:///present.db")
    assert settings_from_environment(dev=True).history_url == "sqlite:///present.db"
    chosen = settings_from_environment(dev=True, history_url="memory://")
    assert chosen.history_url == "memory://"


def test_all_variables_that_are_almost_settings_are_named_in_one_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HUB_MAX_BATCHES", "1")
    monkeypatch.setenv("HUB_ANONYMOS", "1")
    with pytest.raises(ConfigurationError) as caught:
        settings_from_environment(dev=True)
    assert str(caught.value) == (
        "HUB_ANONYMOS is not a setting: did you mean HUB_ANONYMOUS?; "
        "HUB_MAX_BATCHES is not a setting: did you mean HUB_MAX_BATCH?"
    )


@pytest.mark.parametrize("service", ["HUB", "HUB_REDIS"])
def test_variables_of_kubernetes_services_and_of_commands_are_ignored(
    service: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for end, value in {
        "SERVICE_HOST": "10.0.0.1",
        "SERVICE_PORT": "3000",
        "SERVICE_PORT_HTTP": "3000",
        "PORT": "tcp://10.0.0.1:3000",
        "PORT_3000_TCP": "tcp://10.0.0.1:3000",
        "PORT_3000_TCP_ADDR": "10.0.0.1",
        "PORT_3000_TCP_PORT": "3000",
        "PORT_3000_TCP_PROTO": "tcp",
    }.items():
        monkeypatch.setenv(f"{service}_{end}", value)
    monkeypatch.setenv("HUB_TOKEN", SECRET)
    monkeypatch.setenv("HUB_TOKEN_KEY", SECRET)
    settings_from_environment(dev=True)
    assert caplog.records == []


def test_n163_unknown_variables_are_logged_without_their_values(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("HUB_PORT", "HUB_NAME", "HUB_NONSENSE", "HUB_"):
        monkeypatch.setenv(name, SECRET)
    monkeypatch.setenv("HUBBUB", SECRET)
    settings_from_environment(dev=True)
    lines = [record.getMessage() for record in caplog.records]
    assert lines == [
        f'event="this variable is not a setting of the hub, and is ignored" name={name}'
        for name in ("HUB_", "HUB_NAME", "HUB_NONSENSE", "HUB_PORT")
    ]


def test_every_variable_that_a_command_reads_is_known() -> None:
    mains = [import_module(f"hub.cli.{name}").main for name in COMMANDS]
    read = {name for main in mains for parameter in parameters(typer.main.get_command(main)) for name in parameter}
    assert read == {"HUB_URL"}
    # The others are read after the options, because an option takes precedence.
    code = "".join(path.read_text("utf-8") for path in Path(hub.cli.__path__[0]).glob("*.py"))
    read |= set(re.findall(r'environ\.get\("(HUB_\w+)"', code))
    assert read == {"HUB_TOKEN", "HUB_TOKEN_FILE", "HUB_TOKEN_KEY", "HUB_URL"}
    assert unknown(*read) == []


def parameters(command: Any) -> Iterator[list[str]]:
    """Yield the variables of each parameter of a command and its subcommands."""
    for parameter in command.params:
        yield [parameter.envvar] if isinstance(parameter.envvar, str) else parameter.envvar or []
    for below in getattr(command, "commands", {}).values():
        yield from parameters(below)
