"""The sources of settings: their order, their names in messages, and their mistakes."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from hub import ConfigurationError, Settings, create_app, settings_from_environment
from hub.settings.description import descriptions
from hub.settings.settings import SECRETS
from hub.settings.sources import Sources

if TYPE_CHECKING:
    from pathlib import Path

SECRET = "a-secret-that-nobody-should-see-in-a-log"


@pytest.fixture(autouse=True)
def _in_development(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HUB_DEV", "1")


def file(path: Path, *lines: str) -> Path:
    path.write_text("".join(f"{line}\n" for line in lines))
    return path


def told(*arguments: Any, **options: Any) -> str:
    with pytest.raises(ConfigurationError) as caught:
        Sources(*arguments, **options).settings()
    assert SECRET not in repr(caught.value)
    assert caught.value.__cause__ is None
    assert caught.value.__context__ is None or caught.value.__suppress_context__
    return str(caught.value)


# -- the order


def test_the_first_source_that_has_a_value_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = file(tmp_path / "hub.toml", "heartbeat = 5", 'history_url = "sqlite:///5.db"')
    env_file = file(tmp_path / "env", "HUB_HEARTBEAT=4", f"HUB_HISTORY_URL_FILE={tmp_path}/4")
    file(tmp_path / "4", "sqlite:///4.db")
    file(tmp_path / "3", "sqlite:///3.db")
    places = {"config": config, "env_file": env_file}

    def found(**flags: Any) -> tuple[float, str, str, str]:
        sources = Sources(flags, **places)
        settings = sources.settings()
        origins = sources.origins
        return settings.heartbeat, origins["heartbeat"], settings.history_url, origins["history_url"]

    del places["env_file"]
    assert found() == (5, f"heartbeat in {config}", "sqlite:///5.db", f"history_url in {config}")
    places["env_file"] = env_file
    assert found() == (4, f"HUB_HEARTBEAT in {env_file}", "sqlite:///4.db", f"HUB_HISTORY_URL_FILE in {env_file}")
    env_file.write_text(env_file.read_text() + "HUB_HISTORY_URL=sqlite:///env-file.db\n")
    assert found()[2:] == ("sqlite:///env-file.db", f"HUB_HISTORY_URL in {env_file}")
    monkeypatch.setenv("HUB_HEARTBEAT", "3")
    monkeypatch.setenv("HUB_HISTORY_URL_FILE", f"{tmp_path}/3")
    assert found() == (3, "HUB_HEARTBEAT", "sqlite:///3.db", "HUB_HISTORY_URL_FILE")
    monkeypatch.setenv("HUB_HISTORY_URL", "sqlite:///2.db")
    assert found()[2:] == ("sqlite:///2.db", "HUB_HISTORY_URL")
    assert found(heartbeat="1s", history_url="sqlite:///1.db") == (1, "--heartbeat", "sqlite:///1.db", "--history-url")
    assert found(heartbeat=None)[0] == 3


# -- one value in each form


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("heartbeat", "40s", 40.0),
        ("heartbeat", "0.5m", 30.0),
        ("max_lifetime", "1h", 3600.0),
        ("drain", "250ms", 0.25),
        ("idle_timeout", "1m", 60),
        ("event_log_keep", "12h", 0.5),
        ("event_log_keep", "7", 7.0),
        ("history_age", "30d", 2_592_000.0),
        ("history_bytes", "64MiB", 64 * 2**20),
        ("max_body", "2MB", 2_000_000),
        ("max_body", "0", 0),
        ("cors_origins", "https://a.example,https://b.example", ("https://a.example", "https://b.example")),
        ("cors_origins", " https://a.example ,  https://b.example ", ("https://a.example", "https://b.example")),
        ("cors_origins", "https://a.example https://b.example", ("https://a.example", "https://b.example")),
        ("publish_origins", "", ()),
        ("public_urls", "https://a.example,https://b.example", ("https://a.example", "https://b.example")),
        ("publisher_key", "-----BEGIN KEY----- a, b c", "-----BEGIN KEY----- a, b c"),
    ],
)
def test_durations_sizes_and_lists_are_read_from_every_source(
    name: str, text: str, value: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    variable = f"HUB_{name.upper()}"
    config = file(tmp_path / "hub.toml", f"{name} = {json.dumps(text)}")
    env_file = file(tmp_path / "env", f"{variable}={json.dumps(text)}")
    found = [Sources({name: text}), Sources(config=config), Sources(env_file=env_file)]
    monkeypatch.setenv(variable, text)
    found.append(Sources())
    assert [getattr(sources.settings(), name) for sources in found] == [value] * 4


def test_toml_has_numbers_lists_and_tables(tmp_path: Path) -> None:
    config = file(
        tmp_path / "hub.toml",
        "heartbeat = 20",
        "anonymous = false",
        'cors_origins = ["https://a.example", "https://b.example"]',
        "[[issuers]]",
        'id = "https://issuer.example"',
        f'keys = {{ key = "{SECRET}", algorithm = "HS384" }}',
    )
    settings = Sources(config=config).settings()
    assert (settings.heartbeat, settings.anonymous) == (20, False)
    assert settings.cors_origins == ("https://a.example", "https://b.example")
    [issuer] = settings.issuers
    assert issuer.keys is not None
    assert (issuer.id, issuer.keys.key, issuer.keys.algorithm) == ("https://issuer.example", SECRET, "HS384")


def test_an_env_file_may_have_variables_of_other_programs(tmp_path: Path) -> None:
    env_file = file(tmp_path / "env", "# comment", "export HUB_HEARTBEAT=7", "HEARTBEAT=8", "DATABASE_URL=x", "")
    assert Sources(env_file=env_file).settings().heartbeat == 7


# -- secrets in files


@pytest.mark.parametrize("name", SECRETS)
def test_every_secret_can_be_in_a_file(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HUB_DEV", "1")
    for role in ("publisher", "subscriber"):  # an old key needs a new one
        if name == f"{role}_key_old":
            monkeypatch.setenv(f"HUB_{role.upper()}_KEY", SECRET[::-1])
    if name == "operator_key":
        monkeypatch.setenv("HUB_OPERATOR_PORT", "0")
    text = {"history_url": "memory://", "issuers": json.dumps([{"id": "a", "keys": {"key": SECRET}}])}.get(name, SECRET)
    monkeypatch.setenv(f"HUB_{name.upper()}_FILE", str(tmp_path / "secret"))
    for end in ("", "\n", "\r\n"):
        (tmp_path / "secret").write_bytes((text + end).encode())
        found = getattr(settings_from_environment(), name)
        keys = {"publisher_key": SECRET, "subscriber_key": SECRET} if name.endswith("_old") else {}
        keys |= {"operator_port": "0"} if name == "operator_key" else {}
        assert found == getattr(Settings(**{"dev": True, **keys, name: text}), name)  # type: ignore[arg-type]


def test_only_one_line_end_of_a_secret_is_stripped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "secret").write_bytes(b" a secret with spaces around it \n\n")
    monkeypatch.setenv("HUB_PUBLISHER_KEY_FILE", str(tmp_path / "secret"))
    assert settings_from_environment().publisher_key == " a secret with spaces around it \n"


def test_the_file_of_a_secret_that_cannot_be_read_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HUB_PUBLISHER_KEY_FILE", f"{tmp_path}/none")
    assert told() == f"HUB_PUBLISHER_KEY_FILE: {tmp_path}/none: No such file or directory"
    monkeypatch.setenv("HUB_PUBLISHER_KEY_FILE", str(tmp_path))
    assert told() == f"HUB_PUBLISHER_KEY_FILE: {tmp_path}: Is a directory"
    (tmp_path / "binary").write_bytes(SECRET.encode() + b"\xff")
    monkeypatch.setenv("HUB_PUBLISHER_KEY_FILE", f"{tmp_path}/binary")
    assert told() == f"HUB_PUBLISHER_KEY_FILE: {tmp_path}/binary: this is not UTF-8"
    monkeypatch.setenv("HUB_PUBLISHER_KEY_FILE", "/dev/zero")
    assert told() == "HUB_PUBLISHER_KEY_FILE: /dev/zero has more than 1,048,576 bytes"


# -- mistakes


def test_a_misspelt_name_is_refused_in_every_source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = file(tmp_path / "hub.toml", f'heartbeet = "{SECRET}"', f'nonsense = "{SECRET}"')
    assert told(config=config) == (
        f"{config}: heartbeet is not a setting: did you mean heartbeat?; nonsense is not a setting"
    )
    env_file = file(tmp_path / "env", f"HUB_HEARTBEET={SECRET}", f"HEARTBEET={SECRET}")
    assert told(env_file=env_file) == f"HUB_HEARTBEET in {env_file} is not a setting: did you mean HUB_HEARTBEAT?"
    monkeypatch.setenv("HUB_PUBLISHR_KEY_FILE", SECRET)
    assert told() == "HUB_PUBLISHR_KEY_FILE is not a setting: did you mean HUB_PUBLISHER_KEY_FILE?"
    monkeypatch.delenv("HUB_PUBLISHR_KEY_FILE")
    with pytest.raises(ConfigurationError, match=r"^heartbeet: there is no such setting: did you mean heartbeat\?$"):
        Settings(dev=True, heartbeet=1)  # type: ignore[call-arg]


def test_a_type_checker_knows_the_settings() -> None:
    # An ignore that is not needed is an error of mypy.
    with pytest.raises(ConfigurationError):
        Settings(ancoymous=True)  # type: ignore[call-arg]
    with pytest.raises(ConfigurationError):
        Settings(dev=True, heartbeat="often")  # type: ignore[arg-type]
    assert Settings(publisher_key="p" * 32, anonymous=True, public_urls=["https://hub.example.com"], heartbeat=3)


def test_an_error_names_the_setting_as_its_source_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reason = "'often' should be a number of seconds, as in 15, 40s or 10m, from 0s to 1d"
    config = file(tmp_path / "hub.toml", 'heartbeat = "often"')
    env_file = file(tmp_path / "env", "HUB_HEARTBEAT=often")
    assert told(config=config) == f"heartbeat in {config}: {reason}"
    assert told(env_file=env_file) == f"HUB_HEARTBEAT in {env_file}: {reason}"
    assert told({"heartbeat": "often"}) == f"--heartbeat: {reason}"
    monkeypatch.setenv("HUB_HEARTBEAT", "often")
    assert told() == f"HUB_HEARTBEAT: {reason}"
    monkeypatch.setenv("HUB_MAX_BODY", "64M")
    assert told().endswith(
        "; HUB_MAX_BODY: '64M' should be a whole number of bytes, as in 65536, 64KiB or 1MiB, from 0B to 1GiB"
    )


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("jwks_ttl", "0", "'0' should be a number of seconds, as in 15, 40s or 10m, above 0s and at most 366d"),
        ("event_log_keep", "-1", "'-1' should be a number of days, as in 7, 12h or 30d, from 0s to 36600d"),
        ("client_share", "2", "'2' should be a fraction, as in 0.02, above 0 and at most 1"),
        ("max_batch", "1.5", "'1.5' should be a whole number of updates, as in 1000, from 1 to 1,000,000"),
        ("max_connections_per_client", "x", "'x' should be a whole number of subscribers, as in 10000000, from 0 to 10,000,000"),
        ("anonymous", "yep", "'yep' should be true or false"),
        ("publisher_algorithm", "none", "'none' should be 'HS256', 'HS384', 'HS512', 'RS256', 'RS384', 'RS512', 'PS256', "
         "'PS384', 'PS512', 'ES256', 'ES384', 'ES512', 'EdDSA', 'Ed25519' or 'Ed448'"),
        ("cors_origins", "app", "'app' should be an origin, as in https://app.example.com or https://*.example.com:8443; or * "
         "or null"),
        ("issuers", f"[{SECRET}", "should be a JSON array"),
    ],
)  # fmt: skip
def test_an_error_has_the_value_the_unit_and_an_example(
    name: str, value: str, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(f"HUB_{name.upper()}", value)
    assert told() == f"HUB_{name.upper()}: {reason}"


@pytest.mark.parametrize(
    ("keys", "reason"),
    [
        ({"key": [SECRET]}, "issuers.0.keys.key: should be a text"),
        ({"key": SECRET, "algorithm": "none"}, "issuers.0.keys.algorithm: should be 'HS256', 'HS384', "),
        ({"kee": SECRET}, "issuers.0.keys.kee: there is no such setting"),
        (SECRET, "issuers.0.keys: should be an object with named members"),
        (
            {"jwks_url": "https://x/", "algorithms": ["none"]},
            "issuers.0.keys.algorithms.0: should be 'HS256', 'HS384', ",
        ),
    ],
)
def test_an_error_inside_of_an_issuer_shows_no_value(keys: Any, reason: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HUB_ISSUERS", json.dumps([{"id": "a", "keys": keys}]))
    assert told().startswith(f"HUB_{reason[:7].upper()}{reason[7:]}")


@pytest.mark.parametrize(
    ("text", "told_of"),
    [
        ("heartbeat 15", ", line 1, column 11: this is not TOML, as in heartbeat = \"15s\""),
        ("[[issuers]", ", line 1, column 10: this is not TOML, as in heartbeat = \"15s\""),
        ("a = [", ", at its end: this is not TOML, as in heartbeat = \"15s\""),
    ],
)  # fmt: skip
def test_a_file_that_is_not_toml_is_named_with_the_place(text: str, told_of: str, tmp_path: Path) -> None:
    config = tmp_path / "hub.toml"
    config.write_text(text)
    assert told(config=config) == f"{config}{told_of}"


def test_files_may_begin_with_a_byte_order_mark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As Notepad and PowerShell write them."""
    mark = b"\xef\xbb\xbf"
    (tmp_path / "hub.toml").write_bytes(mark + b'heartbeat = "7s"\n')
    assert Sources(config=tmp_path / "hub.toml").settings().heartbeat == 7
    (tmp_path / "env").write_bytes(mark + b"HUB_HEARTBEAT=8s\r\n")
    assert Sources(env_file=tmp_path / "env").settings().heartbeat == 8
    (tmp_path / "secret").write_bytes(mark + b"s" * 40 + b"\r\n")
    monkeypatch.setenv("HOME", str(tmp_path))
    for path in (f"{tmp_path}/secret", "~/secret"):
        monkeypatch.setenv("HUB_PUBLISHER_KEY_FILE", path)
        assert Sources().settings().publisher_key == "s" * 40


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    for option in ("config", "env_file"):
        path = tmp_path / "none"
        assert told(**{option: path}) == f"{path}: No such file or directory"
    (tmp_path / "binary").write_bytes(b"a = '\xff'")
    for option in ("config", "env_file"):
        assert told(**{option: tmp_path / "binary"}) == f"{tmp_path}/binary: this is not UTF-8"


def test_an_env_file_is_read_as_it_is_and_no_line_is_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PART", "expanded")
    key = "'a ${PART} key with # and $PART in it, of 32 bytes'"
    env_file = file(tmp_path / "env", f"HUB_PUBLISHER_KEY={key}", "HUB_EVENT_LOG=a${PART}")
    settings = Sources(env_file=env_file).settings()
    assert (settings.publisher_key, settings.event_log) == (key.strip("'"), "a${PART}")
    for line in (f"HUB_HEARTBEAT: {SECRET}", "HUB_HEARTBEAT", f'HUB_HEARTBEAT="{SECRET}', f"export {SECRET}"):
        file(env_file, "HUB_RETRY=1", line)
        assert told(env_file=env_file) == f"{env_file}, line 2: this is not NAME=VALUE, as in HUB_HEARTBEAT=15s"


def test_a_name_is_given_once(tmp_path: Path) -> None:
    config = file(tmp_path / "hub.toml", "cors_origins = [1]")
    sources = Sources(config=config)
    with pytest.raises(ConfigurationError) as caught, sources.named():
        sources.settings()
    assert str(caught.value) == f"cors_origins in {config}.0: 1 should be a text"


def test_an_earlier_name_is_an_origin(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HUB_TRANSPORT_URL", "memory://")
    assert Sources().origins["history_url"] == "HUB_TRANSPORT_URL"


def test_a_wrong_item_of_a_list_is_shown_alone(tmp_path: Path) -> None:
    config = file(tmp_path / "hub.toml", 'cors_origins = ["https://a.example", "app"]')
    assert told(config=config).startswith(f"cors_origins in {config}: 'app' should be an origin, as in ")


@pytest.mark.parametrize("name", ["heartbeat", "max_connections", "history_bytes", "idle_timeout", "publish_rate"])
def test_true_is_no_number(name: str, tmp_path: Path) -> None:
    config = file(tmp_path / "hub.toml", f"{name} = true")
    assert f"{name} in {config}: True should be " in told(config=config)


def test_a_text_that_may_be_a_secret_is_never_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    for url in (SECRET, f"{SECRET}@host/0", f"{SECRET}:x"):
        with pytest.raises(ConfigurationError, match=r"^history_url is not a URL that begins with") as caught:
            create_app(Settings(dev=True, history_url=url))
        assert SECRET not in str(caught.value)
    assert "should be a URL" in told({"publisher_jwks_url": f"http://user:{SECRET}@h/keys"})
    monkeypatch.setenv("HUB_PUBLISHER_KEY_FILE", "")
    assert told() == "HUB_PUBLISHER_KEY_FILE is empty: it should be the path of a file"


@pytest.mark.parametrize(
    ("name", "url", "shown"),
    [
        ("history_url", "redis://user:secret@h/0?x=secret", "redis://**********@h/0?**********"),
        ("history_url", "redis:///0?password=secret", "redis:///0?**********"),
        ("history_url", "sqlite:///a.db?synchronous=normal", "sqlite:///a.db?synchronous=normal"),
        (
            "publisher_jwks_url",
            "https://secret@idp.example/jwks?token=secret",
            "https://**********@idp.example/jwks?**********",
        ),
        ("publisher_jwks_url", "https://idp.example/@me/jwks", "https://idp.example/@me/jwks"),
    ],
)
def test_credentials_in_a_url_are_masked(name: str, url: str, shown: str) -> None:
    [setting] = [each for each in descriptions() if each.name == name]
    assert setting.shown(url) == shown


def test_an_empty_list_of_issuers_is_no_trust() -> None:
    assert Sources({"issuers": "[ ]"}).settings().has_well_known_keys
