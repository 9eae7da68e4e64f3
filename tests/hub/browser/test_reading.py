"""MercureSource reads a stream as the HTML standard says, however it is cut."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from tests.hub.browser.pages import wait_for
from tests.hub.browser.script import Reply
from tests.hub.test_event_stream import VECTORS, EventSource, Message, cut
from tests.waiting import HANG, wait_until

if TYPE_CHECKING:
    from playwright.sync_api import Page

    from tests.hub.browser.script import Script

STREAMS = [stream for stream, _ in VECTORS]
STREAMS += [
    b"data: \xef\xbb\xbfx\n\n\xef\xbb\xbfdata: y\n\ndata: z\n\n",
    b"data: x\r\ndata: y\r\n\r\r\ndata: z\r\n\ndata: half\r",
    b"id: 1\ndata: x\n\nid: 2\ndata: half\n",
    b"event:\ndata: x\n\nevent\ndata: y\n\n",
    b" data: x\nDATA: x\ndata : x\n\ndata: a:b:c\n\n",
    b"data:\tx\ndata:  x\ndata: x \n\n",
    "data: a\u2028b\x85c\x0bd\x0ce\n\n".encode(),
    "event: é\nid: 日\ndata: 🂡\n\n".encode(),
    b"data: \xff\xf0\x9f\n\ndata: \xe2\x82\n\n",
    b"data: nul\0\n\n",
    b"\n\n\ndata: x\n\n\n\n",
    b"x\n:\n::\ndata::\n\n",
]
PIECES = [b"data", b"event", b"id", b"retry", b":", b" ", b"\n", b"\n", b"\r", b"\r\n", b"\n\n", b"x", b"7"]
PIECES += [b"\xef\xbb\xbf", b"\0", "é".encode(), b"\xf0", b"data: y\n", b"id: 1\n"]

READ = """
async (streams) => {
  const { MercureSource } = await import("/client.js");
  const bytes = (text) => Uint8Array.from(text, (char) => char.charCodeAt());
  let seen;
  class Source extends MercureSource {
    dispatchEvent(event) {
      if (event instanceof MessageEvent) seen.push([event.lastEventId, event.type, event.data]);
      return super.dispatchEvent(event);
    }
  }
  const results = [];
  for (const chunks of streams) {
    seen = [];
    globalThis.fetch = async () => {
      const body = new ReadableStream({
        start(controller) {
          for (const chunk of chunks) controller.enqueue(bytes(chunk));
          controller.close();
        },
      });
      return new Response(body, { headers: { "Content-Type": "text/event-stream" } });
    };
    const source = new Source("/");
    await new Promise((resolve) => (source.onerror = resolve));
    results.push([source.lastEventId, seen]);
    source.close();
  }
  return results;
}
"""


def test_the_events_are_those_of_the_standard(page: Page) -> None:
    chance = random.Random(3)
    streams = STREAMS + [b"".join(chance.choices(PIECES, k=chance.randrange(40))) for _ in range(300)]
    cuts = [
        chunks
        for stream in streams
        for chunks in (
            [stream],
            cut(stream, [1]),
            cut(stream, [2, 1]),
            cut(stream, [chance.randrange(1, 9) for _ in range(3)]),
            *([stream[:place], stream[place:]] for place in range(1, len(stream)) if stream in STREAMS),
        )
    ]
    expected = []
    for chunks in cuts:
        source = EventSource()
        events = [event for chunk in chunks for event in source.feed(chunk)]
        expected.append((source.last_event_id_string, events))
    found = page.evaluate(READ, [[chunk.decode("latin-1") for chunk in chunks] for chunks in cuts])
    assert sum(len(events) for _, events in expected) > 1_000
    for chunks, (cursor, events), right in zip(cuts, found, expected, strict=True):
        assert (cursor, [Message(*event) for event in events]) == right, chunks


def test_a_page_that_takes_no_more_holds_the_server_back(page: Page, script: Script) -> None:
    """Its memory does not grow: what it has not read waits at the server."""
    count = 10_000
    padding = b":" + b"x" * 10_000  # in all, more than the buffers on the way can hold
    body = b"".join(b"%b\nid: %d\ndata: %d\n\n" % (padding, number, number) for number in range(count))
    page.evaluate(
        """async (url) => {
          await begin(url, {});
          holdBack();
        }""",
        script.add("/flood", Reply(body=body, end="flood")),
    )
    held_back, sent = script.is_held_back["/flood"], script.is_sent["/flood"]
    wait_until(lambda: held_back.is_set() or sent.is_set())
    assert not sent.is_set()
    assert page.evaluate("got") == ["0"]
    page.evaluate("goOn()")
    wait_for(page, "(count) => got.length === count", count)
    assert sent.wait(HANG)
    assert page.evaluate("got") == [*map(str, range(count))]
