"""`skipfilter settings`: the settings in force, the check, and the example file."""

from __future__ import annotations

import json
import re
import tomllib
from typing import TYPE_CHECKING

from hub import Settings
from hub.development import DEVELOPMENT_KEY
from hub.settings.settings import SERVER_DEFAULTS
from tests.hub.commands import run

if TYPE_CHECKING:
    from pathlib import Path

KEY = "a key of the operator, which is long enough"


def test_every_setting_is_printed_with_its_origin_unit_and_meaning(tmp_path: Path) -> None:
    (tmp_path / "hub.toml").write_text('heartbeat = "20s"\n')
    ended = run("settings", "--config", tmp_path / "hub.toml", HUB_PUBLISHER_KEY=KEY, HUB_ANONYMOUS="yes")
    assert (ended.returncode, ended.stderr) == (0, "")
    printed = re.findall(
        r"^HUB_(\w+)=(.*?)    # (.*)\n    .* \(.+\)$", ended.stdout.replace("\n    ", " \n    "), re.MULTILINE
    )
    lines = dict(re.findall(r"^HUB_(\w+)=(.*)$", ended.stdout, re.MULTILINE))
    assert [name.lower() for name in lines] == list(Settings.model_fields)
    assert printed is not None
    assert lines["HEARTBEAT"] == f"20    # heartbeat in {tmp_path}/hub.toml"
    assert lines["PUBLISHER_KEY"] == "**********    # HUB_PUBLISHER_KEY"
    assert lines["ANONYMOUS"] == "true    # HUB_ANONYMOUS"
    assert lines["HISTORY_URL"] == "sqlite:///mercure.db    # default"
    assert lines["MAX_BODY"] == "1MiB    # default"
    assert KEY not in ended.stdout
    assert "    Seconds of silence after which a stream gets a comment; 0 for never. (seconds)\n" in ended.stdout


def test_development_mode_is_an_origin_and_no_secret_is_shown() -> None:
    ended = run("settings", "--dev", "--json", HUB_HISTORY_URL="redis://:password@h")
    rows = {row["name"]: row for row in json.loads(ended.stdout)}
    assert list(rows) == list(Settings.model_fields)
    assert (rows["dev"]["value"], rows["dev"]["origin"]) == (True, "--dev")
    assert (rows["anonymous"]["value"], rows["anonymous"]["origin"]) == (True, "development mode")
    assert (rows["publisher_key"]["value"], rows["publisher_key"]["origin"]) == ("**********", "development mode")
    assert (rows["history_url"]["value"], rows["history_url"]["origin"]) == ("redis://**********@h", "HUB_HISTORY_URL")
    assert (rows["heartbeat"]["value"], rows["heartbeat"]["unit"], rows["heartbeat"]["group"]) == (
        15,
        "seconds",
        "Streams",
    )
    assert rows["cors_origins"]["value"] == ["*"]
    url = "https://user:password@idp.example/jwks?token=password"
    printed = run("settings", "--json", "--dev", HUB_PUBLISHER_JWKS_URL=url).stdout
    assert "password" not in printed
    assert "https://**********@idp.example/jwks?**********" in printed
    assert rows["classic"]["variable"] == "HUB_CLASSIC"
    assert "password" not in ended.stdout
    assert DEVELOPMENT_KEY not in ended.stdout


def test_the_check_finds_what_a_start_would_find(tmp_path: Path) -> None:
    ended = run("settings", "check", HUB_PUBLISHER_KEY=KEY, HUB_ANONYMOUS="1")
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "the settings are fine\n", "")
    (tmp_path / "env").write_text("HUB_PUBLISHER_KEY=short\nHUB_ANONYMOUS=1\n")
    ended = run("settings", "check", "--env-file", tmp_path / "env")
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr.startswith(
        f"skipfilter: HUB_PUBLISHER_KEY in {tmp_path}/env: this secret is shorter than 32 bytes"
    )
    ended = run("settings", "check")
    told = "no publisher is allowed: set HUB_PUBLISHER_KEY or HUB_ISSUERS, or HUB_DEV to try the hub"
    assert (ended.returncode, ended.stderr) == (2, f"skipfilter: {told}\n")


def test_the_example_has_every_setting_and_its_values_are_the_defaults(tmp_path: Path) -> None:
    ended = run("settings", "example")
    assert (ended.returncode, ended.stderr) == (0, "")
    assert tomllib.loads(ended.stdout) == {}  # all is commented
    lines = re.findall(r"^# ([a-z_]+ = (?:\S.*))$", ended.stdout, re.MULTILINE)
    assert [line.partition(" = ")[0] for line in lines] == list(Settings.model_fields)
    chosen = [line for line in lines if not line.endswith('= "..."') and not line.startswith("dev =")]
    (tmp_path / "hub.toml").write_text("\n".join(["dev = true", *chosen]))
    settings = {
        row["name"]: row for row in json.loads(run("settings", "--json", "--config", tmp_path / "hub.toml").stdout)
    }
    for name, field in Settings.model_fields.items():
        if f'{name} = "..."' not in lines and name not in ("dev", "issuers", *SERVER_DEFAULTS):
            assert settings[name]["value"] == (
                list(field.default) if isinstance(field.default, tuple) else field.default
            )
    assert {name: settings[name]["value"] for name in SERVER_DEFAULTS} == SERVER_DEFAULTS
    assert all(len(line) <= 88 for line in ended.stdout.splitlines())
