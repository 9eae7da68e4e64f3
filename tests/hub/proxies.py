"""nginx and Caddy in front of hubs, with TLS and HTTP/2, as the pages configure them."""

from __future__ import annotations

import contextlib
import os
import re
import socket
import ssl
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tests.hub.signing import certified
from tests.waiting import HANG

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

DEPLOY: Final = Path(__file__).parents[2] / "examples" / "deploy"


def tls(directory: Path) -> ssl.SSLContext:
    """Return what a server on localhost needs for TLS."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*certified(directory))
    return context


@contextlib.contextmanager
def nginx(directory: Path, port: int, configuration: str) -> Iterator[None]:
    """Run nginx with the lines of a file below /etc/nginx/conf.d, which use `port`."""
    temporary = "".join(
        f"{kind}_temp_path {directory}/{kind}; " for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    (directory / "nginx.conf").write_text(
        f"daemon off; master_process off; pid {directory}/pid; error_log stderr; events {{ }}\n"
        f"http {{ access_log off; {temporary}\n{configuration}\n}}"
    )
    with _serving(port, "nginx", "-p", str(directory), "-c", str(directory / "nginx.conf")):
        yield


@contextlib.contextmanager
def documented_nginx(directory: Path, port: int, nodes: Sequence[int]) -> Iterator[None]:
    """Run nginx with examples/deploy/nginx.conf, on other ports and with a certificate of
    its own.
    """
    certificate, key = certified(directory)
    text = (DEPLOY / "nginx.conf").read_text("utf-8")
    others = {
        "listen 443": f"listen 127.0.0.1:{port}",
        "server_name hub.example.com": "server_name localhost",
        "/etc/ssl/hub.pem": certificate,
        "/etc/ssl/hub.key": key,
        **{f"127.0.0.1:{3000 + index}": f"127.0.0.1:{node}" for index, node in enumerate(nodes)},
    }
    for before, after in others.items():
        assert text.count(before) == 1, before
        text = text.replace(before, after)
    with nginx(directory, port, text):
        yield


@contextlib.contextmanager
def documented_caddy(directory: Path, port: int, nodes: Sequence[int]) -> Iterator[None]:
    """Run Caddy with examples/deploy/Caddyfile, and a certificate of its own."""
    (directory / "Caddyfile").write_text(
        f"{{\n admin off\n auto_https disable_redirects\n skip_install_trust\n}}\nimport {DEPLOY}/Caddyfile\n"
    )
    environment = {
        "HOME": str(directory),
        "XDG_DATA_HOME": str(directory),
        "SITE": f"localhost:{port}",
        "HUBS": " ".join(f"127.0.0.1:{node}" for node in nodes),
    }
    with _serving(port, "caddy", "run", "--config", str(directory / "Caddyfile"), **environment):
        yield


def readme_locations(node: int, passwords: Path) -> tuple[str, str]:
    """Return the location of hub/README.md, for a hub on another port; and the two
    locations of a site with passwords.
    """
    page = (DEPLOY.parents[1] / "hub" / "README.md").read_text("utf-8")
    alone, protected = re.findall(r"```nginx\n(.*?)```", page, re.DOTALL)
    alone = alone.replace("127.0.0.1:3000", f"127.0.0.1:{node}")
    lines = alone.partition("{")[2].rpartition("}")[0]
    protected = protected.replace("# and the lines above", lines).replace("/etc/nginx/htpasswd", str(passwords))
    return alone, protected


@contextlib.contextmanager
def _serving(port: int, *command: str, **environment: str) -> Iterator[None]:
    """Run a proxy, and wait until it has its certificate."""
    process = subprocess.Popen(command, env=os.environ | environment)
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    try:
        deadline = time.monotonic() + HANG
        while True:
            assert process.poll() is None, f"{command[0]} has ended"
            assert time.monotonic() < deadline
            with (
                contextlib.suppress(OSError),
                socket.create_connection(("127.0.0.1", port), HANG) as tcp,
                context.wrap_socket(tcp, server_hostname="localhost"),
            ):
                break
            time.sleep(0.02)
        yield
    finally:
        process.terminate()
        process.wait()
