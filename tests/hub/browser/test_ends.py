"""MercureSource where streams end, beside the browser's own EventSource: when it comes
back, with which cursor, and what its page is told.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.hub.browser.script import Reply, Script

if TYPE_CHECKING:
    from playwright.sync_api import Page

FIRST = b"retry: 10\nid: 1\ndata: a\n\n"
HTML = {"Content-Type": "text/html"}

WAYS: dict[str, list[Reply]] = {
    "204 at first": [Reply(204, {})],
    "204 after a stream": [Reply(body=FIRST), Reply(204, {})],
    "a clean end": [Reply(body=FIRST), Reply(body=b"id: 2\ndata: b\n\n")],
    "an end without an event": [Reply(body=b"retry: 10\n\n"), Reply(body=FIRST)],
    "an end without an id": [Reply(body=b"retry: 10\ndata: a\n\n"), Reply(body=b"data: b\n\n")],
    "a cut body": [Reply(body=FIRST, end="cut"), Reply(body=b"data: b\n\n")],
    "a reset body": [Reply(body=FIRST, end="reset"), Reply(body=b"data: b\n\n")],
    "no answer, later": [Reply(body=FIRST), Reply(end="reset"), Reply(body=b"data: b\n\n")],
    "half an event": [Reply(body=FIRST + b"id: 2\ndata: half"), Reply(body=b"data: b\n\n")],
    "half an event after CR": [Reply(body=FIRST + b"id: 2\ndata: half\r"), Reply(body=b"data: b\n\n")],
    "a line more than half an event": [Reply(body=FIRST + b"id: 2\ndata: half\n"), Reply(body=b"data: b\n\n")],
    "an id without an event": [Reply(body=FIRST + b"id: 2\n\n"), Reply(body=b"data: b\n\n")],
    "an empty id": [Reply(body=FIRST + b"id\ndata: b\n\n"), Reply(body=b"data: c\n\n")],
    "an id with NUL": [Reply(body=FIRST + b"id: 2\0\ndata: b\n\n"), Reply(body=b"data: c\n\n")],
    "the retry is kept": [Reply(body=FIRST), Reply(body=b"data: b\n\n"), Reply(body=b"data: c\n\n")],
    "another media type": [Reply(headers=HTML, body=FIRST)],
    "no media type": [Reply(headers={}, body=FIRST)],
    "another media type, later": [Reply(body=FIRST), Reply(headers=HTML, body=FIRST)],
    "a charset": [
        Reply(headers={"Content-Type": "text/event-stream;charset=windows-1252"}, body="data: é\n\n".encode())
    ],
    "capital letters": [Reply(headers={"Content-Type": "Text/Event-Stream"}, body=FIRST)],
    "403": [Reply(403, HTML), Reply(body=FIRST)],
    "404, later": [Reply(body=FIRST), Reply(404, HTML), Reply(body=FIRST)],
    "401 without a token": [Reply(401, HTML), Reply(body=FIRST)],
    "a redirect, each time": [
        Reply(307, {"Location": "target"}),
        Reply(body=FIRST),
        Reply(301, {"Location": "target"}),
        Reply(body=b"data: b\n\n"),
    ],
    "500 at first": [Reply(500, HTML), Reply(body=FIRST)],
    "502, later": [Reply(body=FIRST), Reply(502, HTML), Reply(body=b"data: b\n\n")],
    "503 and Retry-After": [Reply(body=FIRST), Reply(503, HTML | {"Retry-After": "0"}), Reply(body=b"data: b\n\n")],
    "429 and Retry-After": [Reply(body=FIRST), Reply(429, HTML | {"Retry-After": "0"}), Reply(body=b"data: b\n\n")],
}
"""Ways in which a stream ends."""

GOES_ON = {
    "a charset": (["", ""], ["é"]),  # which the standard ignores
    "500 at first": (["", "", "1"], ["a"]),
    "502, later": (["", "1", "1", "1"], ["a", "b"]),
    "503 and Retry-After": (["", "1", "1", "1"], ["a", "b"]),
    "429 and Retry-After": (["", "1", "1", "1"], ["a", "b"]),
}
"""Where the EventSource of Chromium gives up: the cursors and the data of a MercureSource."""

WATCH = """
async ([kind, url]) => {
  const { MercureSource } = await import("/client.js");
  const source = new { EventSource, MercureSource }[kind](url);
  const data = [];
  source.onmessage = (event) => {
    data.push([event.data, event.lastEventId]);
    fetch(`${url}/read`);
  };
  await new Promise((resolve) => source.addEventListener("error", () => source.readyState === 2 && resolve()));
  return data;
}
"""


@pytest.mark.parametrize("way", WAYS)
def test_a_stream_ends_as_for_an_event_source(way: str, page: Page, script: Script) -> None:
    seen = {}
    for kind in ("EventSource", "MercureSource"):
        path = f"/{kind}/{list(WAYS).index(way)}"
        url = script.add(path, *WAYS[way])
        script.replies[f"/{kind}/target"] = script.replies[path]
        script.asked[f"/{kind}/target"] = script.asked[path]
        script.queries[f"/{kind}/target"] = script.queries[path]
        data = page.evaluate(WATCH, [kind, url])
        seen[kind] = script.cursors(path), data
    cursors, data = seen["MercureSource"]
    assert {request["accept"] for request in script.asked[path]} == {"text/event-stream"}
    if way in GOES_ON:
        assert seen["EventSource"] != seen["MercureSource"]
        assert (cursors, [text for text, _ in data]) == GOES_ON[way]
    else:
        assert seen["EventSource"] == seen["MercureSource"]
