"""A hub behind nginx, with the lines of hub/README.md, over HTTP/1.1 and HTTP/2."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

import pytest

from tests.hub.proxies import nginx, readme_locations
from tests.hub.signing import certified
from tests.redis_server import free_port
from tests.waiting import HANG
from tests.wire import FORM, PATH, bearer

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

    from tests.conftest import HubProcess

pytestmark = [pytest.mark.anyio, pytest.mark.processes]


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
    port = free_port()
    hub = start_hub(HUB_PUBLIC_URLS=f"https://localhost:{port}")
    url = f"https://localhost:{port}{PATH}"
    own, key = certified(tmp_path)
    lines = f"ssl_certificate {own}; ssl_certificate_key {key};\n{readme_locations(hub.port, tmp_path)[0]}"
    with nginx(tmp_path, port, f"server {{ listen 127.0.0.1:{port} ssl http2; {lines} }}"):
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


async def test_the_password_of_a_site_leaves_out_the_hub(start_hub: Callable[..., HubProcess], tmp_path: Path) -> None:
    port = free_port()
    hub = start_hub(HUB_PUBLIC_URLS=f"https://localhost:{port}")
    url = f"https://localhost:{port}"
    passwords = tmp_path / "passwords"
    passwords.write_text("alice:{PLAIN}secret\n")
    own, key = certified(tmp_path)
    lines = f"ssl_certificate {own}; ssl_certificate_key {key};\n{readme_locations(hub.port, passwords)[1]}"
    with nginx(tmp_path, port, f"server {{ listen 127.0.0.1:{port} ssl; root {tmp_path}; {lines} }}"):

        async def status(*arguments: str) -> bytes:
            async with curl("-w", "%{http_code}", "-o", "/dev/null", *arguments) as answer:
                return await answer.read()

        assert await status(f"{url}/passwords") == b"401"
        assert await status("-u", "alice:secret", f"{url}/passwords") == b"200"
        token = ": ".join(bearer(hub.token))
        assert await status("-H", token, "-d", "topic=a", f"{url}{PATH}") == b"200"
        async with curl("-u", "alice:secret", "-d", "topic=a", f"{url}{PATH}") as answer:
            assert b"let it leave out the path of the hub" in await answer.read()
