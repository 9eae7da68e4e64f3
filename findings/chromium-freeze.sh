#!/bin/sh
# Playwright freezes no page of Chromium, unless it has connected with `no_defaults`; the command to freeze has no error.
#
# Versions: playwright 1.65.2 for Python, Chromium 156.0.8078.108 of Debian 12 (another one: CHROMIUM=/path/to/chromium).
#
# `Page.setWebLifecycleState` of the DevTools protocol freezes a page, as a browser does with a tab in the background: its
# timers stop, and it gets the events `freeze` and `resume`.  Playwright emulates a focused page in each page, so that all
# are visible.  A visible page does not freeze: the command succeeds, the timers go on, and no event comes.  So a test of
# what a frozen page misses sees that it misses nothing.  The same holds for a browser that `connect_over_cdp` has found.
# With `no_defaults=True`, Playwright leaves the browser as it is: a new tab without a window is hidden, and it freezes.
#
# Output seen, as it is checked below:
#
#     launched: visible, events: none, timers: go on
#     connected: visible, events: none, timers: go on
#     connected, no_defaults: hidden, events: freeze resume, timers: stop
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
cat > try.py <<'PY'
import os
import subprocess
import time
from pathlib import Path

from playwright.sync_api import Browser, BrowserContext, sync_playwright

CHROMIUM = os.environ["CHROMIUM"]
COUNT = """() => {
  window.ticks = 0;
  window.events = [];
  setInterval(() => ticks++, 100);
  for (const type of ["freeze", "resume"]) document.addEventListener(type, () => events.push(type));
}"""


def show(how: str, context: BrowserContext) -> None:
    page = context.new_page()
    page.goto("about:blank")
    page.evaluate(COUNT)
    devtools = context.new_cdp_session(page)
    devtools.send("Page.setWebLifecycleState", {"state": "frozen"})
    time.sleep(3)
    devtools.send("Page.setWebLifecycleState", {"state": "active"})
    page.wait_for_timeout(500)
    state = page.evaluate("document.visibilityState")
    events = " ".join(page.evaluate("events")) or "none"
    print(f"{how}: {state}, events: {events}, timers: {'go on' if page.evaluate('ticks') > 20 else 'stop'}", flush=True)


with sync_playwright() as playwright:
    browser: Browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
    show("launched", browser.new_context())
    browser.close()
    folder = Path("profile").absolute()
    command = [CHROMIUM, "--headless", "--no-sandbox", "--no-startup-window", "--remote-debugging-port=0"]
    with subprocess.Popen([*command, f"--user-data-dir={folder}"], stderr=subprocess.DEVNULL) as process:
        told = folder / "DevToolsActivePort"
        while not (told.exists() and len(told.read_text().splitlines()) == 2):
            time.sleep(0.1)
        port, path = told.read_text().splitlines()
        url = f"ws://127.0.0.1:{port}{path}"
        for how, options in (("connected", {}), ("connected, no_defaults", {"no_defaults": True})):
            browser = playwright.chromium.connect_over_cdp(url, **options)
            show(how, browser.contexts[0])
            browser.close()
        process.kill()
PY
python3 -m venv venv
venv/bin/pip install --quiet --disable-pip-version-check playwright==1.65.2
CHROMIUM=${CHROMIUM:-$(command -v chromium)} venv/bin/python try.py > seen.txt
cat seen.txt
cat > expected.txt <<'TXT'
launched: visible, events: none, timers: go on
connected: visible, events: none, timers: go on
connected, no_defaults: hidden, events: freeze resume, timers: stop
TXT
cmp seen.txt expected.txt
