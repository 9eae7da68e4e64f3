#!/bin/sh
# A page that Playwright answers itself counts as one of the internet: Chromium refuses its requests to this machine.
#
# Versions: playwright 1.65.2 for Python, Chromium 156.0.8078.108 of Debian 12 (another one: CHROMIUM=/path/to/chromium).
#
# Chromium asks the user before a page of the internet may reach the local network or this machine, and a browser without
# a window refuses.  A page of http://localhost may, because it came from this machine.  With `route.fulfill`, the same
# page came from nowhere, and Chromium takes it for one of the internet.  Its `fetch` and `import()` of a server on this
# machine fail, and the console blames CORS, although the server allows all origins.  It helps to serve the page from a
# real server, or to grant the permission `local-network-access`.
#
# Output seen, as it is checked below:
#
#     served: fetch answered, import answered
#     fulfilled: fetch TypeError, import TypeError
#     fulfilled, permission granted: fetch answered, import answered
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
cat > try.py <<'PY'
import os
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from playwright.sync_api import sync_playwright

PAGE = "<!doctype html><title>A page</title>"
ASK = """(url) => Promise.all(
  [fetch(url), import(url)].map((asked) => asked.then(() => "answered", (error) => error.name)))"""


class Server(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        is_script = self.path.endswith(".js")
        self.send_response(200)
        self.send_header("Access-Control-Allow-Origin", "*")
        self.send_header("Content-Type", "text/javascript" if is_script else "text/html")
        self.end_headers()
        self.wfile.write(b"export const one = 1;" if is_script else PAGE.encode())

    def log_message(self, *_: object) -> None:
        pass


server = ThreadingHTTPServer(("127.0.0.1", 0), Server)
server.daemon_threads = True
threading.Thread(target=server.serve_forever, daemon=True).start()
with sync_playwright() as playwright:
    browser = playwright.chromium.launch(executable_path=os.environ["CHROMIUM"], args=["--no-sandbox"])
    for how in ("served", "fulfilled", "fulfilled, permission granted"):
        context = browser.new_context()
        if "granted" in how:
            context.grant_permissions(["local-network-access"])
        page = context.new_page()
        if "fulfilled" in how:
            page.route("**/page.html", lambda route: route.fulfill(body=PAGE, content_type="text/html"))
        page.goto(f"http://localhost:{server.server_port}/page.html")
        fetched, imported = page.evaluate(ASK, f"http://127.0.0.1:{server.server_port}/module.js")
        print(f"{how}: fetch {fetched}, import {imported}")
        context.close()
    browser.close()
PY
python3 -m venv venv
venv/bin/pip install --quiet --disable-pip-version-check playwright==1.65.2
CHROMIUM=${CHROMIUM:-$(command -v chromium)} venv/bin/python try.py > seen.txt
cat seen.txt
cat > expected.txt <<'TXT'
served: fetch answered, import answered
fulfilled: fetch TypeError, import TypeError
fulfilled, permission granted: fetch answered, import answered
TXT
cmp seen.txt expected.txt
