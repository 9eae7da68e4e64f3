"""The image of examples/deploy/Dockerfile, built without Docker; and what compose.yaml
makes of it, without Compose.
"""

from __future__ import annotations

import re
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Final

import httpx2
import pytest
import yaml

from hub.auth.signing import sign_classic_token
from tests.asgi import PATH
from tests.deploy.trees import stop
from tests.hub.proxies import DEPLOY, documented_caddy
from tests.installation import VERSION
from tests.redis_server import RedisServer, free_port

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Sequence
    from contextlib import AbstractContextManager
    from pathlib import Path

    from tests.deploy.dockerfile import Image


pytestmark = [pytest.mark.deploy, pytest.mark.processes]

KEY: Final = "0123456789abcdef" * 4
"""The secret of publishers and of subscribers."""


def token(publish: Sequence[str] = ("*",), subscribe: Sequence[str] = ("*",)) -> str:
    return sign_classic_token(KEY, "HS256", publish=publish, subscribe=subscribe, seconds=86_400)


def container(image: Image, *arguments: str, **environment: str) -> AbstractContextManager[subprocess.Popen[str]]:
    """Start the image with a root that is read only, and wait until its hub serves."""
    return image.tree.serving(
        *image.entry_point,
        *(arguments or image.arguments),
        directory=image.directory,
        user=image.user,
        writable=image.directory,
        **(image.environment | environment),
    )


def test_r60_the_image_has_the_hub_and_runs_it_as_a_user(image: Image) -> None:
    assert image.run(*image.entry_point, "--version") == f"skipfilter {VERSION}\n"
    assert image.run("id", "-u").strip() == image.user == "10001"
    assert image.run("sh", "-c", "for tool in pip gcc make curl; do command -v $tool || :; done") == ""
    assert image.run("sh", "-c", "touch /opt/hub/x || echo refused").endswith("refused\n")


def test_a_container_serves_and_its_history_survives_it(image: Image) -> None:
    hub, keys = f"http://127.0.0.1:3000{PATH}", {"HUB_PUBLISHER_KEY": KEY, "HUB_SUBSCRIBER_KEY": KEY}
    headers = {"Authorization": f"Bearer {token()}"}
    with container(image, **keys) as process:
        # The health check is in the container, whose network is that of this machine.
        image.run(*image.health_check)
        assert httpx2.post(hub, data={"topic": "a", "data": "kept"}, headers=headers).status_code == 200
        assert stop(process) == 0
    with pytest.raises(AssertionError, match="refused"):
        image.run(*image.health_check)
    with container(image, **keys):
        query = {"topic": "a", "last_event_id": "earliest"}
        assert "data: kept\n" in httpx2.get(hub, params=query, headers=headers | {"Prefer": "wait=0"}).text


def test_two_hubs_of_compose_share_a_history_behind_caddy(image: Image, tmp_path: Path) -> None:
    compose = yaml.safe_load((DEPLOY / "compose.yaml").read_text("utf-8"))
    services = compose["services"]
    port, given = free_port(), {"HUB_PUBLISHER_KEY": KEY, "HUB_SUBSCRIBER_KEY": KEY, "HUB_ANONYMOUS": "true"}
    with ExitStack() as stack:
        _, *words = services["redis"]["command"]
        redis = RedisServer(
            **{name.removeprefix("--"): value for name, value in zip(words[::2], words[1::2], strict=True)}
        )
        stack.callback(redis.close)
        nodes = []
        for name in ("hub1", "hub2"):
            environment = {
                key: substituted(value, given | {"SITE": f"localhost:{port}"})
                for key, value in services[name]["environment"].items()
            }
            nodes.append(free_port())
            stack.enter_context(
                container(
                    image,
                    "serve",
                    "--port",
                    str(nodes[-1]),
                    **environment
                    | {"HUB_HISTORY_URL": f"redis://127.0.0.1:{redis.port}", "FORWARDED_ALLOW_IPS": "127.0.0.1"},
                )
            )
        stack.enter_context(documented_caddy(tmp_path, port, nodes))
        headers = {"Authorization": f"Bearer {token()}"}
        with httpx2.Client(verify=False) as client:
            for number in range(4):
                form = {"topic": "a", "data": f"update {number}"}
                answer = client.post(f"https://localhost:{port}{PATH}", data=form, headers=headers)
                assert answer.status_code == 200, answer.text
        for node in nodes:
            query = {"topic": "a", "last_event_id": "earliest"}
            stream = httpx2.get(
                f"http://localhost:{node}{PATH}",
                params=query,
                headers={"Prefer": "wait=0", "Host": f"localhost:{port}", "X-Forwarded-Proto": "https"},
            )
            assert re.findall(r"^data: (.*)$", stream.text, re.MULTILINE) == [f"update {number}" for number in range(4)]


def substituted(value: Any, variables: dict[str, str]) -> str:
    """Return a value of compose.yaml with its variables replaced, as Compose does."""

    def one(found: re.Match[str]) -> str:
        name, kind, text = found.groups()
        if kind == ":-":
            return variables.get(name) or text
        return variables[name]

    return re.sub(r"\$\{(\w+)(?:(:[-?])(.*?))?\}", one, str(value))
