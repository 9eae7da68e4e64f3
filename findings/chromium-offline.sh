#!/bin/sh
# Taken offline by Playwright, Chromium keeps an EventSource that is open, and its events go on to arrive.
#
# Versions: playwright 1.65.2 for Python, Chromium 156.0.8078.108 of Debian 12 (another one: CHROMIUM=/path/to/chromium).
#
# After `context.set_offline(True)`, navigator.onLine is false and a new request fails, as on a computer without a
# network.  But a stream that was open before stays open, without an error.  So a test that takes a page offline to see
# what it misses sees that it misses nothing: the server must end the stream, or the test must cut the connection.
#
# Output seen, as it is checked below:
#
#     online: false, a new request: TypeError, the open stream: ["before","while offline"]
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
cat > try.py <<'PY'

import os
import queue
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from playwright.sync_api import sync_playwright

EVENTS: queue.Queue[str] = queue.Queue()


class Server(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream" if self.path == "/stream" else "text/html")
        self.end_headers()
        while self.path == "/stream":
            self.wfile.write(f"data: {EVENTS.get()}\n\n".encode())
            self.wfile.flush()

    def log_message(self, *_: object) -> None:
        pass


server = ThreadingHTTPServer(("127.0.0.1", 0), Server)
server.daemon_threads = True
threading.Thread(target=server.serve_forever, daemon=True).start()
with sync_playwright() as playwright:
    browser = playwright.chromium.launch(executable_path=os.environ["CHROMIUM"], args=["--no-sandbox"])
    context = browser.new_context()
    page = context.new_page()
    page.goto(f"http://127.0.0.1:{server.server_port}/")
    page.evaluate("() => { window.got = []; new EventSource('/stream').onmessage = (event) => got.push(event.data); }")
    EVENTS.put("before")
    page.wait_for_function("got.length === 1")
    context.set_offline(True)
    online = page.evaluate("navigator.onLine")
    request = page.evaluate("fetch('/').then(() => 'answered', (error) => error.name)")
    EVENTS.put("while offline")
    page.wait_for_function("got.length === 2")
    got = page.evaluate("JSON.stringify(got)")
    print(f"online: {str(online).lower()}, a new request: {request}, the open stream: {got}")
    browser.close()
PY
python3 -m venv venv
venv/bin/pip install --quiet --disable-pip-version-check playwright==1.65.2
CHROMIUM=${CHROMIUM:-$(command -v chromium)} venv/bin/python try.py > seen.txt
cat seen.txt
cat > expected.txt <<'TXT'
online: false, a new request: TypeError, the open stream: ["before","while offline"]
TXT
cmp seen.txt expected.txt
