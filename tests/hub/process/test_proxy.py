"""A hub behind nginx, with the lines of hub/README.md, over HTTP/1.1 and HTTP/2."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import re
import socket
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from tests.waiting import HANG
from tests.wire import FORM, PATH, bearer

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from tests.conftest import HubProcess

pytestmark = [pytest.mark.anyio, pytest.mark.processes]

PAGE = (Path(__file__).parents[3] / "hub" / "README.md").read_text("utf-8")


def certificate(directory: Path) -> str:
    """Write a key and a certificate for localhost; return nginx's lines for them."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
    now, day = datetime.datetime.now(datetime.UTC), datetime.timedelta(days=1)
    builder = x509.CertificateBuilder(name, name, key.public_key(), 1, now - day, now + day)
    (directory / "cert.pem").write_bytes(builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM))
    (directory / "key.pem").write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    return f"ssl_certificate {directory}/cert.pem; ssl_certificate_key {directory}/key.pem;"


@contextlib.asynccontextmanager
async def nginx(directory: Path, port: int, location: str) -> AsyncIterator[None]:
    """Run nginx with TLS and HTTP/2 on `port`, with a location for the hub."""
    temporary = "".join(
        f"{kind}_temp_path {directory}/{kind}; " for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    (directory / "nginx.conf").write_text(
        f"""
        daemon off; master_process off; pid {directory}/pid; error_log stderr;
        events {{ }}
        http {{
            access_log off; {temporary}
            server {{ listen 127.0.0.1:{port} ssl http2; {certificate(directory)} {location} }}
        }}
        """
    )
    process = await asyncio.create_subprocess_exec("nginx", "-p", directory, "-c", directory / "nginx.conf")
    try:
        async with asyncio.timeout(HANG):
            while True:
                assert process.returncode is None
                with contextlib.suppress(OSError):
                    _, writer = await asyncio.open_connection("127.0.0.1", port)
                    writer.close()
                    break
                await asyncio.sleep(0.02)
        yield
    finally:
        process.terminate()
        await process.wait()


@contextlib.asynccontextmanager
async def curl(*arguments: str) -> AsyncIterator[asyncio.StreamReader]:
    """Run curl, and yield its output."""
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec("curl", "-sSNk", *arguments, stdout=pipe)
    assert process.stdout is not None
    try:
        async with asyncio.timeout(HANG):
            yield process.stdout
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()


async def test_nginx_passes_on_the_port_of_a_public_url(start_hub: Callable[..., HubProcess], tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    hub = start_hub(HUB_PUBLIC_URLS=f"https://localhost:{port}")
    [location] = re.findall(r"```nginx\n(.*?)```", PAGE, re.DOTALL)
    url = f"https://localhost:{port}{PATH}"
    async with nginx(tmp_path, port, location.replace("127.0.0.1:3000", f"127.0.0.1:{hub.port}")):
        for version, name in (("--http1.1", b"1.1"), ("--http2", b"2")):
            async with curl(version, "-i", f"{url}?topic=a") as stream:
                assert await stream.readline() == b"HTTP/%s 200 %s\r\n" % (name, b"OK" if name == b"1.1" else b"")
                headers = [value for header in (FORM, bearer(hub.token)) for value in ("-H", ": ".join(header))]
                async with curl(version, *headers, "-d", "topic=a", "-d", "data=now", url) as answer:
                    assert (await answer.read()).startswith(b"urn:uuid:")
                # It arrives at once, so nothing on the way holds it back.
                async for line in stream:
                    if line == b"data: now\n":
                        break
                else:
                    pytest.fail("the stream has ended")
            # Another host, or the same one without its port, is not this hub.
            async with curl(version, "-H", "Host: localhost", "-w", "%{http_code}", "-o", "/dev/null", url) as answer:
                assert await answer.read() == b"421"
