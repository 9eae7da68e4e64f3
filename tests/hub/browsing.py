"""A real Chromium: sites whose pages it shows, and pages that follow a hub."""

from __future__ import annotations

import subprocess
import threading
from contextlib import contextmanager
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, urlencode, urlsplit

from playwright.sync_api import expect

from tests.waiting import HANG, wait_until

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from playwright.sync_api import Browser, BrowserContext, Page

FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]

expect.set_options(timeout=HANG * 1000)

# Returns "open" or "refused".  `got` has the events, `opened` counts the connections.
FOLLOW = """
window.got = [];
window.opened = 0;
window.follow = (url, { withCredentials = false, types = [] } = {}) => {
  window.source = new EventSource(url, { withCredentials });
  const keep = (event) => got.push([event.type, event.lastEventId, event.data]);
  for (const type of ["message", "mercure", ...types]) source.addEventListener(type, keep);
  return new Promise((resolve) => {
    source.onopen = () => { opened++; resolve("open"); };
    source.onerror = () => source.readyState === EventSource.CLOSED && resolve("refused");
  });
};
"""

# Returns what a page may read of a response, or null if the browser hides all of it.
ASK = """
async ([url, options]) => {
  const response = await fetch(url, { credentials: "include", ...options }).catch(() => null);
  return response && { status: response.status, headers: Object.fromEntries(response.headers), text: await response.text() };
}
"""


class LocalServer:
    """A server on its own port, with a thread for each request."""

    def __init__(self, handler: Callable[..., BaseHTTPRequestHandler], tls: ssl.SSLContext | None = None) -> None:
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        if tls is not None:
            self._server.socket = tls.wrap_socket(self._server.socket, server_side=True)
        self._thread = threading.Thread(target=self._server.serve_forever)
        self._thread.start()
        self.port = self._server.server_address[1]
        self.scheme = "http" if tls is None else "https"
        self.origin = f"{self.scheme}://localhost:{self.port}"

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class Site(LocalServer):
    """A server of empty pages.

    `?cookie=` sets a cookie, and a POST the one that `renew` returns.
    """

    renew: Callable[[], str]

    def __init__(self, tls: ssl.SSLContext | None = None) -> None:
        super().__init__(partial(_Page, self), tls)

    def visit(self, page: Page, cookie: str = "", host: str = "localhost") -> None:
        page.goto(f"{self.scheme}://{host}:{self.port}/{'?' + urlencode({'cookie': cookie}) if cookie else ''}")


class _Page(BaseHTTPRequestHandler):
    def __init__(self, site: Site, *arguments: Any) -> None:
        self._site = site
        super().__init__(*arguments)

    def do_POST(self) -> None:
        self.send_response(204)
        self.send_header("Set-Cookie", self._site.renew())
        self.end_headers()

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/html; charset=utf-8")
        for cookie in parse_qs(urlsplit(self.path).query).get("cookie", []):
            self.send_header("Set-Cookie", cookie)
        self.end_headers()
        self.wfile.write(b"<!doctype html><title>A page</title>")

    def log_message(self, format: str, *args: Any) -> None:
        pass


@contextmanager
def _without_errors(context: BrowserContext) -> Iterator[None]:
    errors: list[str] = []
    context.on("weberror", lambda error: errors.append(str(error.error)))
    yield
    assert not errors, errors


@contextmanager
def visitor(browser: Browser, **options: Any) -> Iterator[BrowserContext]:
    """A new profile; an error in the scripts of its pages fails the test."""
    with browser.new_context(**options) as context:
        context.add_init_script(FOLLOW)
        with _without_errors(context):
            yield context


@contextmanager
def people_browser(browser: Browser, chromium: str, directory: Path) -> Iterator[BrowserContext]:
    """A Chromium as people have it: its tabs may be hidden and frozen.

    Those of Playwright's own browsers never are.
    """
    # With the window that Chromium opens at its start, connecting sometimes hangs.
    own = ["--headless", "--no-startup-window", "--remote-debugging-port=0", f"--user-data-dir={directory}"]
    told = directory / "DevToolsActivePort"
    with subprocess.Popen([chromium, *own, *FLAGS], stderr=subprocess.DEVNULL) as process:
        try:
            wait_until(lambda: told.exists() and len(told.read_text().splitlines()) == 2)
            port, path = told.read_text().splitlines()
            connected = browser.browser_type.connect_over_cdp(f"ws://127.0.0.1:{port}{path}", no_defaults=True)
            [context] = connected.contexts
            with _without_errors(context):
                yield context
        finally:
            process.kill()


def freeze(page: Page) -> Callable[[], None]:
    """Freeze a page of `people_browser`.  Returns what thaws it."""
    devtools = page.context.new_cdp_session(page)

    def set_state(state: str) -> None:
        devtools.send("Page.setWebLifecycleState", {"state": state})

    set_state("frozen")
    return partial(set_state, "active")


def follow(page: Page, url: str, query: str, **options: Any) -> str:
    answer: str = page.evaluate("([url, options]) => follow(url, options)", [f"{url}?{query}", options])
    return answer


def ask(page: Page, url: str, **options: Any) -> Any:
    return page.evaluate(ASK, [url, options])


def got(page: Page, count: int) -> list[tuple[str, str, str]]:
    """Wait for `count` events and return all that came."""
    page.wait_for_function("(count) => got.length >= count", arg=count)
    return [tuple(event) for event in page.evaluate("got")]
