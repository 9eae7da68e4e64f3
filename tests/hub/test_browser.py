"""A real Chromium: EventSource, cookies and origins in both dialects, and the debugger.

All tests share one browser; each has a new profile.
"""

from __future__ import annotations

import itertools
import json
import os
import random
import re
import signal
import subprocess
import sys
import threading
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import parse_qsl, quote, urlencode, urlsplit
from urllib.request import Request, urlopen

import httpx2
import pytest
from playwright.sync_api import expect
from starlette.responses import Response

from examples.run.producer import TEXT
from tests.asgi import NDJSON, PATH, classic_token, current_token
from tests.conftest import HubProcess, children_of
from tests.hub.browsing import Site, ask, follow, got, visitor
from tests.hub.commands import environment
from tests.redis_server import free_port
from tests.test_examples import ROOT
from tests.waiting import HANG

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from playwright.sync_api import Browser, Page, Route
    from playwright.sync_api import Request as PageRequest


@pytest.fixture(scope="module")
def desk() -> Iterator[Site]:
    """A site whose pages may publish with the cookie and may read nothing."""
    site = Site()
    yield site
    site.close()


@pytest.fixture(scope="module")
def classic_hub(shop: Site, desk: Site) -> Iterator[HubProcess]:
    """A hub that speaks both dialects."""
    hub = HubProcess(**_origins(shop, desk))
    yield hub
    hub.close()


@pytest.fixture(scope="module")
def current_hub(shop: Site, desk: Site) -> Iterator[HubProcess]:
    """A hub that speaks only the current dialect."""
    hub = HubProcess(**_origins(shop, desk), HUB_CLASSIC="0")
    yield hub
    hub.close()


@pytest.fixture(params=["classic_hub", "current_hub"])
def any_hub(request: pytest.FixtureRequest) -> HubProcess:
    hub: HubProcess = request.getfixturevalue(request.param)
    return hub


def _origins(shop: Site, desk: Site) -> dict[str, Any]:
    return {"HUB_CORS_ORIGINS": f"{shop.origin} http://*.localhost:{shop.port}", "HUB_PUBLISH_ORIGINS": desk.origin}


def current(hub: HubProcess, **claims: Any) -> str:
    return current_token(resource=hub.url, **{"publish": ["*"], "subscribe": ["*"]} | claims)


def publish(hub: HubProcess, topic: str | list[str], data: str = "", **fields: str) -> str:
    form = urlencode({"topic": topic, "data": data} | fields, doseq=True).encode()
    with urlopen(Request(hub.url, form, {"Authorization": f"Bearer {current(hub)}"})) as reply:
        id: str = reply.read().decode()
        return id


# -- the examples of hub/README.md

README = (ROOT / "hub" / "README.md").read_text("utf-8")
SECTION = README.partition("## In a browser")[2].partition("\n## ")[0]
(OTHER_CLIENT,) = re.findall(r"```js\n(import { fetchEventSource }.*?)```", README, re.DOTALL)


def as_the_readme_sets_it(token: str, **changed: str) -> str:
    """Return the cookie of the page's example, with other values."""
    [program] = re.findall(r"```python\n(.*?)```", SECTION, re.DOTALL)
    for value, other in changed.items():
        assert value in program
        program = program.replace(value, other)
    response = Response()
    exec(program, {"response": response, "token": token})
    return response.headers["set-cookie"]


def short_lived(hub: HubProcess) -> str:
    """Return a token of four seconds, which is a little more than a stream needs."""
    return current(hub, subscribe=[("uritemplate", "https://example.com/books/{id}")], seconds=4)


@pytest.mark.parametrize("anonymous", ["0", "1"])
@pytest.mark.parametrize("max_age", ["3", "3_540"])
def test_a_cookie_that_is_not_renewed_ends_the_stream_or_its_private_updates(
    start_hub: Callable[..., HubProcess], shop: Site, page: Page, anonymous: str, max_age: str
) -> None:
    hub = start_hub("--cors-origins", shop.origin, HUB_ANONYMOUS=anonymous, HUB_RETRY="0.1", HUB_SUBSCRIPTIONS="0")
    topic = "https://example.com/books/1"
    query = urlencode({"match": topic})
    while True:  # until it opens before the token expires, or the cookie is gone
        shop.visit(page, cookie=as_the_readme_sets_it(short_lived(hub), **{"3_540": max_age}))
        if follow(page, hub.url, query, withCredentials=True) == "open":
            break
    if max_age == "3_540" or anonymous == "0":
        page.wait_for_function("source.readyState === EventSource.CLOSED")
        return
    for n in itertools.count():  # private updates arrive until the token expires
        publish(hub, topic, f"private {n}", private="on")
        publish(hub, topic, f"public {n}")
        page.wait_for_function("(last) => got.some((event) => event[2] === last)", arg=f"public {n}")
        if not page.evaluate("(last) => got.some((event) => event[2] === last)", f"private {n}"):
            break
    assert page.evaluate("source.readyState") != 2


def test_fetch_event_source_comes_back_unless_it_is_refused(
    start_hub: Callable[..., HubProcess], shop: Site, page: Page, modules: Path
) -> None:
    hub = start_hub("--cors-origins", shop.origin, HUB_ANONYMOUS="0", HUB_RETRY="0.1", HUB_MAX_LIFETIME="1")
    package = modules / "node_modules/@microsoft/fetch-event-source/lib/esm"
    page.route("**/package/*", lambda route: route.fulfill(path=package / f"{Path(route.request.url).stem}.js"))
    tokens = [current(hub)]
    page.expose_function("currentToken", lambda: tokens[-1])
    page.add_init_script("window.printed = []; console.log = (text) => printed.push(text);")
    shop.visit(page)
    answers: list[int] = []
    page.on("response", lambda reply: answers.append(reply.status) if hub.url in reply.url else None)
    imported, _, script = OTHER_CLIENT.partition("\n\n")
    for value, other in (("http://localhost:3000", hub.origin), ("2_000 + 8_000 *", "20 + 80 *")):
        assert value in script
        script = script.replace(value, other)
    imported = imported.replace("@microsoft/fetch-event-source", "/package/index.js")
    page.add_script_tag(
        type="module",
        content=f"{imported} try {{ {script} }} catch (error) {{ window.failed = error.status }}",
    )

    def send(text: str) -> None:
        publish(hub, "https://example.com/books/1", text, private="on")

    while not page.evaluate("printed.length"):  # before its first event, a page has no cursor
        send("first")
    sent = 0
    while answers.count(200) < 3:  # so two streams have ended
        send(str(sent))
        page.evaluate("0")  # lets the events of the page come
        sent += 1
    page.wait_for_function("(last) => printed.at(-1) === last", arg=str(sent - 1))
    assert page.evaluate("printed.filter((text) => text !== 'first')") == [str(n) for n in range(sent)]
    # Each request has the token of its time, and one that is refused is not sent again.
    tokens.append("nonsense")
    page.wait_for_function("window.failed === 401")
    assert answers.count(401) == 1


# -- an unmodified client of 0.x


def cookie(token: str, name: str = "mercureAuthorization") -> str:
    """Return a cookie as Symfony sets it (V45)."""
    return f"{name}={token}; Path={PATH}; Secure; HttpOnly; SameSite=strict"


def test_v45_v51_v6_v50_a_client_of_0_x_reads_its_updates_from_its_cursor_on(
    classic_hub: HubProcess, shop: Site, page: Page
) -> None:
    book = "https://example.com/books/1"
    shop.visit(page, cookie(classic_token(subscribe=["https://example.com/users/foo/{?topic}"])))
    cursor = publish(classic_hub, "https://example.com/books/0", "before")
    for user, data in [("foo", "mine"), ("bar", "another's")]:
        publish(
            classic_hub, [book, f"https://example.com/users/{user}/?topic={quote(book, safe='')}"], data, private="on"
        )
    query = urlencode({"topic": "https://example.com/books/{id}", "lastEventID": cursor})
    assert follow(page, classic_hub.url, query, withCredentials=True) == "open"
    last = publish(classic_hub, book, "for all", type="message")
    assert [data for _, _, data in got(page, 2)] == ["mine", "for all"]
    assert got(page, 2)[-1] == ("message", last, "for all")


def test_v61_v60_presence_reaches_onmessage_of_a_client_of_0_x(classic_hub: HubProcess, shop: Site, page: Page) -> None:
    everybody = PATH + "/subscriptions{/topic}{/subscriber}"
    shop.visit(page, cookie(classic_token(subscribe=[everybody], payload={"name": "Ada"})))
    assert follow(page, classic_hub.url, urlencode({"topic": everybody}), withCredentials=True) == "open"
    selector = "https://example.com/{?a,b}"
    come_and_go = """
      (url) => new Promise((resolve) => {
        const source = new EventSource(url, { withCredentials: true });
        source.onopen = () => resolve(source.close());
      })
    """
    page.evaluate(come_and_go, f"{classic_hub.url}?{urlencode({'topic': selector})}")
    events = got(page, 3)  # it arrived; another one came and went
    assert {type for type, _, _ in events} == {"message"}
    _, coming, going = (json.loads(data) for _, _, data in events)
    subscriber = coming["subscriber"]
    assert coming == {
        "@context": "https://mercure.rocks/",
        "id": f"{PATH}/subscriptions/{quote(selector, safe='')}/{quote(subscriber, safe='')}",
        "type": "Subscription",
        "topic": selector,
        "subscriber": subscriber,
        "active": True,
        "payload": {"name": "Ada"},
    }
    assert going == coming | {"active": False}


def test_v63_v64_n98_a_client_of_0_x_lists_subscriptions_and_follows_from_then_on(
    classic_hub: HubProcess, shop: Site, page: Page
) -> None:
    api = classic_hub.url + "/subscriptions"
    everybody = PATH + "/subscriptions{/topic}{/subscriber}"
    # The grant also covers the list of all: the template with no variables.
    shop.visit(page, cookie(classic_token(subscribe=[everybody])))
    topic = "https://example.com/who/{is}"
    assert follow(page, classic_hub.url, urlencode({"topic": topic}), withCredentials=True) == "open"
    answer = ask(page, api)
    assert (answer["status"], answer["headers"]["content-type"]) == (200, "application/ld+json")
    document = json.loads(answer["text"])
    assert (document["@context"], document["type"]) == ("https://mercure.rocks/", "Subscriptions")
    assert topic in [one["topic"] for one in document["subscriptions"]]
    assert answer["headers"]["etag"] == f'"{document["lastEventID"]}"'
    of_topic = json.loads(ask(page, f"{api}/{quote(topic, safe='')}")["text"])
    (one,) = of_topic["subscriptions"]
    single = json.loads(ask(page, classic_hub.origin + one["id"])["text"])
    assert single == {"@context": "https://mercure.rocks/", "lastEventID": document["lastEventID"]} | one
    # 0.x did not quote its ETags.
    assert ask(page, api, headers={"If-None-Match": document["lastEventID"]})["status"] == 304
    page.evaluate("source.close()")
    shop.visit(page)
    query = urlencode({"topic": everybody, "lastEventID": document["lastEventID"]})
    assert follow(page, classic_hub.url, query, withCredentials=True) == "open"
    gone = json.loads(got(page, 1)[0][2])
    assert (gone["topic"], gone["active"]) == (topic, False)


def test_v51_n106_r33_a_browser_misses_nothing_when_connections_are_ended_and_the_hub_restarts(
    start_hub: Callable[..., HubProcess], shop: Site, page: Page
) -> None:
    hub = start_hub(HUB_MAX_LIFETIME="0.3", HUB_RETRY="0.02")
    shop.visit(page)
    assert follow(page, hub.url, urlencode({"topic": "https://example.com/rows/{id}"})) == "open"
    ids: list[str] = []
    while page.evaluate("opened") < 2:
        ids.append(publish(hub, f"https://example.com/rows/{len(ids)}", id=f"urn:{len(ids)}"))
    assert [id for _, id, _ in got(page, len(ids))] == ids
    # The hub restarts without its history, and the browser reconnects by itself.
    hub.stop()
    start_hub("--port", str(hub.port), HUB_RETRY="0.02")
    ids += [publish(hub, "https://example.com/rows/x", id=f"urn:new:{number}") for number in range(2)]
    assert [id for _, id, _ in got(page, len(ids))] == ids


# -- a client of the current dialect


def test_t90_n15_n38_n124_n126_t93_a_current_client_follows_and_sees_presence(
    any_hub: HubProcess, shop: Site, page: Page
) -> None:
    anybody = PATH + "/subscriptions/:match_type/:match/:subscriber"
    token = current(
        any_hub, publish=[], subscribe=[("urlpattern", anybody), ("mqtt", "rooms/+")], payload={"name": "Ada"}
    )
    shop.visit(page, cookie(token, "mercure_access_token"))
    matchers = [
        ("match", "urn:room"),
        ("match_urlpattern", anybody),
        ("match_urlpattern", "https://example.com/rooms/:id"),
        ("match_uritemplate", "https://example.org/rooms/{id}"),
        ("match_amqp", "rooms.*.heat"),
        ("match_mqtt", "rooms/+"),
    ]
    assert follow(page, any_hub.url, urlencode(matchers), withCredentials=True) == "open"
    arrivals = [json.loads(data) for type, _, data in got(page, len(matchers)) if type == "mercure"]
    assert [(f"match_{one['match_type']}", one["match"]) for one in arrivals] == [
        ("match_exact", "urn:room"),
        *matchers[1:],
    ]
    assert {one["subscriber"] for one in arrivals} == {arrivals[0]["subscriber"]}
    assert arrivals[-1] == {
        "id": f"{PATH}/subscriptions/mqtt/rooms%2F%2B/{quote(arrivals[0]['subscriber'], safe='')}",
        "type": "subscription",
        "match_type": "mqtt",
        "match": "rooms/+",
        "subscriber": arrivals[0]["subscriber"],
        "active": True,
        "payload": {"name": "Ada"},
    }
    topics = ["urn:room", "https://example.com/rooms/1", "https://example.org/rooms/1", "rooms.1.heat", "rooms/1"]
    ids = [publish(any_hub, topic) for topic in topics]
    assert [id for _, id, _ in got(page, len(matchers) + len(topics))[len(matchers) :]] == ids
    # It receives only the private update that it may read.
    publish(any_hub, "urn:room", private="on")
    secret = publish(any_hub, "rooms/2", private="on")
    assert got(page, len(matchers) + len(topics) + 1)[-1] == ("message", secret, "")


def test_t90_n130_n135_n136_n98_a_page_of_another_origin_lists_subscriptions(
    any_hub: HubProcess, shop: Site, page: Page
) -> None:
    shop.visit(page, cookie(current(any_hub), "mercure_access_token"))
    pattern = "https://example.com/who/:is"
    assert follow(page, any_hub.url, urlencode({"match_urlpattern": pattern}), withCredentials=True) == "open"
    answer = ask(page, any_hub.url + "/subscriptions")
    assert (answer["status"], answer["headers"]["content-type"]) == (200, "application/json")
    document = json.loads(answer["text"])
    assert (document["id"], document["type"]) == (PATH + "/subscriptions", "subscriptions")
    (one,) = [one for one in document["subscriptions"] if one["match"] == pattern]
    cursor = answer["headers"]["etag"].strip('"')
    assert answer["headers"]["link"].startswith(f'<{PATH}>; rel="mercure"; last-event-id="{cursor}"')
    assert json.loads(ask(page, any_hub.origin + one["id"])["text"]) == one
    known = {"headers": {"If-None-Match": answer["headers"]["etag"]}}
    assert ask(page, any_hub.url + "/subscriptions", **known)["status"] == 304
    # The cursor of the list continues with each later change.
    page.evaluate("source.close()")
    shop.visit(page)
    query = urlencode({"match": one["id"], "last_event_id": cursor})
    assert follow(page, any_hub.url, query, withCredentials=True) == "open"
    assert json.loads(got(page, 1)[0][2]) == one | {"active": False}


# Goes on reading into `streamed`.
QUERY = """
async ([url, body]) => {
  const headers = { "Content-Type": "application/x-www-form-urlencoded", "Cache-Control": "no-cache" };
  const response = await fetch(url, { method: "QUERY", credentials: "include", headers, body });
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  window.streamed = "";
  const read = ({ value, done }) => done || ((streamed += value), reader.read().then(read));
  reader.read().then(read);
  return [response.status, response.headers.get("Mercure-Last-Event-ID")];
}
"""


def test_n10_n12_n13_n99_n98_a_page_of_another_origin_subscribes_by_query(
    any_hub: HubProcess, shop: Site, page: Page
) -> None:
    shop.visit(page, cookie(current(any_hub), "mercure_access_token"))
    cursor = publish(any_hub, "urn:none", id="urn:ﺏ\u2028é😀")  # no header in Latin-1 can hold this cursor
    publish(any_hub, "urn:query:1", "one", private="on")
    body = urlencode({"match": "urn:query:1", "last_event_id": cursor})
    status, preceding = page.evaluate(QUERY, [any_hub.url + "?match=urn:query:2", body])
    assert (status, preceding.encode("latin-1").decode("utf-8")) == (200, cursor)
    publish(any_hub, "urn:query:2", "two")
    page.wait_for_function("streamed.includes('data: two\\n')")
    assert page.evaluate("streamed.indexOf('data: one\\n') < streamed.indexOf('data: two\\n')")


def test_n90_n154_n156_n152_n98_a_page_of_any_origin_discovers_the_metadata(
    any_hub: HubProcess, shop: Site, desk: Site, page: Page
) -> None:
    shop.visit(page)
    refused = ask(page, any_hub.url + "/subscriptions")
    assert refused["status"] == 401
    challenge = refused["headers"]["www-authenticate"]
    metadata = challenge.partition('resource_metadata="')[2].partition('"')[0]
    found = json.loads(ask(page, metadata, credentials="omit")["text"])
    assert (found["resource"], found["mercure_cookie"]) == (any_hub.url, "mercure_access_token")
    assert set(found["mercure_matcher_types_supported"]) == {"exact", "urlpattern", "uritemplate", "amqp", "mqtt"}
    # A site that may read nothing else may read the metadata too.
    desk.visit(page)
    assert json.loads(ask(page, metadata, credentials="omit")["text"]) == found
    assert ask(page, any_hub.url + "/subscriptions", credentials="omit") is None


# -- origins


def test_n97_r5_streams_with_credentials_are_for_the_origins_listed(
    any_hub: HubProcess, shop: Site, page: Page
) -> None:
    for host, answer in [("localhost", "open"), ("a.localhost", "open"), ("127.0.0.1", "refused")]:
        shop.visit(page, host=host)
        for with_credentials in (True, False):
            assert follow(page, any_hub.url, "match=urn:a", withCredentials=with_credentials) == answer, host
            page.evaluate("source.close()")


def test_n97_another_site_reads_nothing_with_the_cookie_of_a_user(any_hub: HubProcess, desk: Site, page: Page) -> None:
    desk.visit(page, cookie(current(any_hub), "mercure_access_token"))  # cookies are the same for all ports
    assert follow(page, any_hub.url, "match=*", withCredentials=True) == "refused"
    assert ask(page, any_hub.url + "/subscriptions") is None
    for options in ({"method": "QUERY", "body": "match=*"}, {"method": "POST", "body": "topic=urn:a"}):
        assert ask(page, any_hub.url, **options) is None


def test_n97_r5_any_origin_means_without_credentials(open_hub: HubProcess, shop: Site, page: Page) -> None:
    shop.visit(page)
    assert follow(page, open_hub.url, "match=urn:a", withCredentials=True) == "refused"
    assert follow(page, open_hub.url, "match=urn:a") == "open"
    page.evaluate("source.close()")


def test_n99_preflights_allow_the_headers_of_clients_and_no_others(any_hub: HubProcess, shop: Site, page: Page) -> None:
    shop.visit(page)
    asked: list[tuple[dict[str, Any], int | None]] = [
        ({"method": "HEAD", "headers": {"Last-Event-ID": "earliest", "Cache-Control": "no-cache"}}, 200),
        ({"method": "HEAD", "headers": {"If-None-Match": "x"}}, 200),
        ({"headers": {"Authorization": "Bearer x"}}, 401),
        ({"method": "QUERY", "body": "match=*", "headers": {"Content-Type": "text/plain"}}, 415),
        ({"method": "POST", "headers": {"Content-Type": "application/x-ndjson", "Authorization": "Bearer x"}}, 401),
        ({"headers": {"X-Other": "x"}}, None),
        ({"method": "PUT"}, None),
        ({"method": "DELETE"}, None),
    ]
    for options, status in asked:
        answer = ask(page, any_hub.url + "?match=urn:a", **options)
        assert (answer and answer["status"]) == status, options


# -- publishing with a cookie

# A page forges a request in the user's browser: it needs no preflight and no response.
FORGE = """
([url, body]) => fetch(url, { method: "POST", mode: "no-cors", credentials: "include", body: new URLSearchParams(body) })
"""
# The same with a form, which a click submits.
SUBMIT = """
([url, fields]) => {
  const form = document.body.appendChild(document.createElement("form"));
  Object.assign(form, { method: "POST", action: url });
  for (const [name, value] of Object.entries(fields))
    form.appendChild(Object.assign(document.createElement("input"), { name, value }));
  form.submit();
}
"""


def forge(page: Page, url: str, topic: str) -> tuple[int, int]:
    """Return the statuses that the browser saw for FORGE and SUBMIT."""
    with page.expect_response(url) as fetched:
        page.evaluate(FORGE, [url, {"topic": topic}])
    with page.expect_navigation() as submitted:
        page.evaluate(SUBMIT, [url, {"topic": topic}])
    return fetched.value.status, submitted.value.status


def test_n63_t45_v43_a_page_of_another_origin_cannot_publish_with_the_cookie(
    any_hub: HubProcess, shop: Site, desk: Site, page: Page
) -> None:
    token = current(any_hub)
    before = publish(any_hub, "urn:before")
    # A site that may read, not publish.  The cookie is sent: both hosts are localhost.
    shop.visit(page, cookie(token, "mercure_access_token"))
    assert forge(page, any_hub.url, "urn:forged") == (400, 400)
    # Another site: with a form, the browser sends a cookie that is not strict.
    shop.visit(page, cookie(token, "mercure_access_token").replace("strict", "None"))
    shop.visit(page, host="127.0.0.1")
    assert forge(page, any_hub.url, "urn:forged")[1] == 400
    # A page without an origin.
    shop.visit(page)
    page.set_content('<iframe sandbox="allow-scripts" srcdoc="<p>inside"></iframe>')
    with page.expect_response(any_hub.url) as fetched:
        page.frames[-1].evaluate(FORGE, [any_hub.url, {"topic": "urn:forged"}])
    assert fetched.value.status in (400, 401)
    # A site that may publish.
    desk.visit(page, cookie(token, "mercure_access_token"))
    assert forge(page, any_hub.url, "urn:allowed") == (200, 200)
    # The hub's own origin.
    page.goto(any_hub.url + "/debug/")
    with page.expect_response(any_hub.url) as own:
        page.evaluate(FORGE, [any_hub.url, {"topic": "urn:own"}])
    assert own.value.status == 200
    shop.visit(page)
    query = urlencode([("match", "urn:forged"), ("match", "urn:allowed"), ("match", "urn:own"), ("match", "urn:last")])
    follow(page, any_hub.url, f"{query}&last_event_id={before}", withCredentials=True)
    last = publish(any_hub, "urn:last")
    page.wait_for_function("(id) => got.some(([, given]) => given === id)", arg=last)
    assert len(got(page, 0)) == 2 + 1 + 1


# -- EventSource as a parser

LINE_ENDS = ["\n", "\r", "\r\n", "\n\r", "\r\r\n"]
PIECES = [
    *LINE_ENDS, " ", "  ", "\t", ":", ": ", "data: ", "id: x", "event: y", "retry: 1", "", "a", "ß", "漢字", "😀", "e\u0301",
    "\u2028", "\u2029", "\x85", "\x0b", "\x0c", "\x1c", "\x00", "\ufeff", "\u200d", "\U0010ffff", "}", '"', "\\", "&=%+", "x" * 5_000,
]  # fmt: skip
NAMES = ["a", "é", "漢", "😀", ":", " : ", "urn:x:", "\u2028", "\u2029", "\u00a0", "%0A", "data:", "\\", '"']


def _any_updates(seed: int, count: int) -> list[dict[str, Any]]:
    chance = random.Random(seed)
    updates = []
    for number in range(count):
        id = "".join(chance.choices(NAMES, k=chance.randrange(4)))
        updates.append(
            {
                "topic": "urn:any",
                "data": "".join(chance.choices(PIECES, k=chance.choice([0, 1, 2, 3, 5, 20]))),
                "id": f"{id.lstrip(' #')}{number}",
                "type": chance.choice([None, None, "message", "price", ": é 😀", "\u2028", "data: x"]),
                "private": chance.random() < 0.3,
            }
        )
    return updates


def test_n26_n28_n49_r21_n51_n52_event_source_reads_every_update_unchanged(
    any_hub: HubProcess, shop: Site, page: Page
) -> None:
    updates = _any_updates(seed=1, count=400)
    token = current(any_hub)
    shop.visit(page, cookie(token, "mercure_access_token"))
    types = sorted({update["type"] for update in updates if update["type"]} - {"message"})
    assert follow(page, any_hub.url, "match=urn:any", withCredentials=True, types=types) == "open"
    half = len(updates) // 2
    by_form, by_line = updates[:half], updates[half:]
    with httpx2.Client(headers={"Authorization": f"Bearer {token}"}) as client:
        for update in by_form:
            fields = {name: value for name, value in update.items() if value is not None and name != "private"}
            client.post(any_hub.url, data=fields | ({"private": "on"} if update["private"] else {})).raise_for_status()
        lines = "\n".join(map(json.dumps, by_line)).encode()
        client.post(any_hub.url, content=lines, headers={"Content-Type": "application/x-ndjson"}).raise_for_status()
    expected = [
        (update["type"] or "message", update["id"], update["data"].replace("\r\n", "\n").replace("\r", "\n"))
        for update in updates
    ]
    assert got(page, len(updates)) == expected


# -- the debugger


@pytest.fixture(scope="module")
def open_hub() -> Iterator[HubProcess]:
    """A hub as `skipfilter serve --dev` starts it."""
    hub = HubProcess()
    yield hub
    hub.close()


def visit_debugger(page: Page, hub: HubProcess) -> None:
    """Open the debugger, and wait until its script has filled in and enabled the forms.

    A test that fills in a field before would have its text mixed with the script's.
    """
    page.goto(hub.origin)
    expect(page.get_by_role("button", name="Subscribe", exact=True)).to_be_enabled()


def subscribe_in_debugger(page: Page, *patterns: str) -> list[str]:
    """Subscribe, and return the list of cursors with which the page asks for metadata.

    Without patterns, the page's own stay.
    """
    cursors: list[str] = []

    def note(request: PageRequest) -> None:
        if "metadata" in request.headers.get("prefer", ""):
            cursors.append(dict(parse_qsl(urlsplit(request.url).query)).get("last_event_id", ""))

    page.on("request", note)
    if patterns:
        page.locator("#topics").fill("\n".join(patterns))
    page.get_by_role("button", name="Subscribe", exact=True).click()
    expect(page.locator("#state")).to_have_text("subscribed")
    expect(page.locator("#signals [data-type=position]")).to_have_count(1)  # so the next update has a cursor before it
    return cursors


def test_r29_the_debugger_subscribes_by_template_and_publishes(open_hub: HubProcess, page: Page) -> None:
    visit_debugger(page, open_hub)
    assert page.url == f"{open_hub.url}/debug/"
    subscribe_in_debugger(page)
    page.get_by_label("Data").fill("a <b>new</b>\nchapter")
    page.get_by_role("button", name="Publish").click()
    expect(page.locator("#published")).to_contain_text("urn:uuid:")
    expect(page.locator("#updates li")).to_have_count(1)
    expect(page.locator("#updates pre")).to_have_text("a <b>new</b>\nchapter")
    # "message" is the default type.
    type = page.get_by_label("Type", exact=True)
    type.fill("message")
    page.get_by_role("button", name="Publish").click()
    type.fill("price")
    page.get_by_role("button", name="Publish").click()
    expect(page.locator("#updates b")).to_have_text(["price", "message", "message"])
    expect(page.locator("#updates p")).to_have_text(["https://example.com/books/1"] * 3)
    expect(page.locator("#updates em:visible")).to_have_count(0)
    type.fill("")
    # Private updates arrive too: the token is in a header, and in no cookie.
    assert page.context.cookies() == []
    page.get_by_role("checkbox", name="Private").check()
    page.get_by_label("Data").fill("a secret")
    page.get_by_role("button", name="Publish").click()
    expect(page.locator("#updates pre").first).to_have_text("a secret")
    expect(page.locator("#updates em:visible")).to_have_text(["private"])
    # A refusal is shown.
    page.get_by_label("Topics, one per line").fill("*")
    page.get_by_role("button", name="Publish").click()
    expect(page.locator("#published")).to_contain_text("'*' is reserved")


def test_the_debugger_shows_who_was_reached_if_the_hub_says_so(start_hub: type[HubProcess], page: Page) -> None:
    visit_debugger(page, start_hub(HUB_TELL_PUBLISHERS="1"))
    subscribe_in_debugger(page)
    page.get_by_role("button", name="Publish").click()
    expect(page.locator("#published")).to_contain_text("; on this process: receivers=1, without-grant=0")


def asks_for_metadata(url: str) -> bool:
    return "last_event_id" in url


def _fulfill(answer: dict[str, Any], route: Route) -> None:
    route.fulfill(**answer)


def test_r29_the_debugger_shows_topics_and_privacy_of_any_update(open_hub: HubProcess, page: Page) -> None:
    visit_debugger(page, open_hub)
    cursors = subscribe_in_debugger(page, "urn:{name}")
    publish(open_hub, ["urn:a", "urn:other"], 'x\n: {"topics":["urn:x"],"private":true}', type="any type")
    publish(open_hub, ["urn:secret", "urn:b"], id='ü 漢 "\\😀', private="on")
    shown = ["urn:secret urn:b", "urn:a urn:other"]
    expect(page.locator("#updates p")).to_have_text(shown)
    expect(page.locator("#updates li:has(em:visible) p")).to_have_text(shown[:1])
    assert cursors[0].startswith("#")
    expect(page.locator("#updates time").first).to_have_text(re.compile("^.*, .* after it was published$"))
    # Equal updates with one id, which differ in their topics.
    lines = "".join(json.dumps({"topic": f"urn:{n}", "data": "equal", "id": "urn:equal"}) + "\n" for n in (1, 2, 3))
    headers = dict([NDJSON, ("Authorization", f"Bearer {current(open_hub)}")])
    urlopen(Request(open_hub.url, lines.encode(), headers)).close()
    shown[:0] = ["urn:3", "urn:2", "urn:1"]
    expect(page.locator("#updates p")).to_have_text(shown)
    for n in (4, 5):  # the page has described those before
        publish(open_hub, f"urn:{n}", "equal", id="urn:equal")
        shown.insert(0, f"urn:{n}")
        expect(page.locator("#updates p")).to_have_text(shown)

    def late(route: Route) -> None:
        """Answer with an update of which the page does not know when it asks."""
        publish(open_hub, "urn:7", "equal", id="urn:equal")
        route.continue_()

    page.route(asks_for_metadata, late, times=1)
    publish(open_hub, "urn:6", "equal", id="urn:equal")
    shown[:0] = ["urn:7", "urn:6"]
    expect(page.locator("#updates p")).to_have_text(shown)
    # The types of EventSource's own events.
    for type in ("open", "error"):
        publish(open_hub, f"urn:{type}", type=type)
    expect(page.locator("#updates p")).to_have_text(["urn:error", "urn:open", *shown])
    expect(page.locator("#updates em:visible")).to_have_count(1)
    expect(page.locator("#state")).to_have_text("subscribed")


def test_r29_the_debugger_shows_the_topics_of_what_it_missed(open_hub: HubProcess, page: Page) -> None:
    seen = publish(open_hub, "urn:missed", id="before 漢")
    publish(open_hub, "urn:missed")
    visit_debugger(page, open_hub)
    page.locator("#cursor").fill(seen)
    cursors = subscribe_in_debugger(page, "urn:missed")
    expect(page.locator("#updates p")).to_have_text(["urn:missed"])
    assert cursors == [seen]


def test_r29_the_debugger_asks_for_no_more_than_it_shows(open_hub: HubProcess, page: Page) -> None:
    visit_debugger(page, open_hub)
    cursors = subscribe_in_debugger(page, "urn:{name}")

    def late(route: Route) -> None:
        """Answer with what the history had before many more updates."""
        answer = route.fetch()
        for number in range(250):
            publish(open_hub, f"urn:{number}")
        expect(page.locator("#count")).to_have_text("251")
        route.fulfill(response=answer)

    page.route(asks_for_metadata, late, times=1)
    publish(open_hub, "urn:first")
    expect(page.locator("#updates p").first).to_have_text("urn:249")
    expect(page.locator("#updates p")).to_have_text([f"urn:{number}" for number in reversed(range(50, 250))])
    assert cursors[1:] != []
    assert cursors[0] not in cursors[1:]


def test_r29_the_debugger_says_if_it_does_not_know_the_topics(open_hub: HubProcess, page: Page) -> None:
    visit_debugger(page, open_hub)
    subscribe_in_debugger(page, "urn:{name}")
    shown: list[str] = []
    answers: list[tuple[dict[str, Any], str]] = [
        ({"status": 429, "json": {"detail": "too many"}}, ": too many"),
        ({"body": "id: urn:x\ndata: \n\n"}, ": no metadata from this hub, or a proxy in front of it"),
        ({"body": ": all\n", "headers": {"Preference-Applied": "wait=0, metadata"}}, ""),
    ]
    for answer, reason in answers:
        page.route(asks_for_metadata, partial(_fulfill, answer), times=1)
        publish(open_hub, "urn:a")
        shown.insert(0, f"topics and privacy unknown{reason}")
        expect(page.locator("#updates p")).to_have_text(shown)
    publish(open_hub, "urn:b")
    expect(page.locator("#updates p")).to_have_text(["urn:b", *shown])


def test_r29_the_debugger_has_one_subscription(open_hub: HubProcess, page: Page) -> None:
    visit_debugger(page, open_hub)
    page.locator("#topics").fill("urn:a")
    page.evaluate("for (let n = 0; n < 3; n++) document.forms.subscribe.requestSubmit()")
    expect(page.locator("#state")).to_have_text("subscribed")
    for data in ("1", "2"):
        publish(open_hub, "urn:a", data)
    expect(page.locator("#updates p")).to_have_text(["urn:a"] * 2)

    def end(route: Route) -> None:
        """Answer after the subscription has ended."""
        page.get_by_role("button", name="Unsubscribe").click()
        route.continue_()

    page.route("**/subscriptions", end, times=1)
    with page.expect_response("**/subscriptions") as answered:
        page.get_by_role("button", name="List subscriptions").click()
    answered.value.finished()
    page.evaluate("new Promise(requestAnimationFrame)")
    expect(page.locator("#there")).to_be_hidden()
    expect(page.locator("#nobody")).to_be_hidden()


def test_r29_the_debugger_shows_a_refusal_of_a_later_stream(start_hub: Callable[..., HubProcess], page: Page) -> None:
    hub = start_hub(HUB_MAX_LIFETIME="1", HUB_RETRY="0.1")
    visit_debugger(page, hub)
    subscribe_in_debugger(page, "urn:a")
    page.route(f"{hub.url}?*", lambda route: route.fulfill(status=403, json={"detail": "no more for you"}))
    expect(page.locator("#state")).to_have_text("no more for you")
    expect(page.get_by_role("button", name="Unsubscribe")).to_be_disabled()


def test_r29_the_debugger_connects_when_the_hub_is_back(open_hub: HubProcess, page: Page) -> None:
    visit_debugger(page, open_hub)
    page.route(f"{open_hub.url}?*", lambda route: route.abort())
    page.locator("#topics").fill("urn:a")
    page.get_by_role("button", name="Subscribe", exact=True).click()
    expect(page.locator("#state")).to_have_text("connecting again… (Failed to fetch)")
    page.unroute_all()
    expect(page.locator("#state")).to_have_text("subscribed")


def test_r29_the_debugger_shows_the_reason_of_a_refusal_and_nothing_of_before(open_hub: HubProcess, page: Page) -> None:
    page.set_viewport_size({"width": 1400, "height": 800})
    visit_debugger(page, open_hub)
    subscribe_in_debugger(page)
    page.get_by_role("button", name="Publish").click()
    expect(page.locator("#updates li")).to_have_count(1)
    page.get_by_role("button", name="List subscriptions").click()
    expect(page.locator("#there tr")).to_have_count(1)
    title = page.get_by_role("heading", name="Hub debugger").bounding_box()
    page.get_by_text("Token", exact=True).click()
    page.locator("#token").fill("nonsense")
    expect(page.locator("#published")).to_have_text("")  # the answer was for another token
    page.get_by_role("button", name="Subscribe", exact=True).click()
    expect(page.locator("#state")).to_contain_text("the token is not valid here")
    expect(page.get_by_role("button", name="Unsubscribe")).to_be_disabled()
    expect(page.locator("#updates li")).to_have_count(0)
    expect(page.locator("#count")).to_have_text("0")
    expect(page.locator("#there")).to_be_hidden()
    assert page.get_by_role("heading", name="Hub debugger").bounding_box() == title
    page.get_by_role("button", name="List subscriptions").click()
    expect(page.locator("#nobody")).to_contain_text("the token is not valid here")


def test_r29_the_debugger_shows_that_a_request_has_failed(open_hub: HubProcess, page: Page) -> None:
    page.route("**/config.json", lambda route: route.abort())
    page.goto(f"{open_hub.url}/debug/")
    expect(page.locator("#state")).to_contain_text("load the page again")
    page.unroute("**/config.json")
    visit_debugger(page, open_hub)
    page.route(open_hub.url, lambda route: route.fulfill(status=502, body="<h1>a proxy's page</h1>"))
    page.get_by_role("button", name="Publish").click()
    expect(page.locator("#published")).to_contain_text("502")
    page.unroute(open_hub.url)
    page.route(open_hub.url, lambda route: route.abort())
    page.get_by_role("button", name="Publish").click()
    expect(page.locator("#published")).to_contain_text("Failed to fetch")


def test_r29_n38_the_examples_of_the_debugger_match_what_it_publishes(any_hub: HubProcess, page: Page) -> None:
    visit_debugger(page, any_hub)
    types = page.locator("#type option").evaluate_all("(options) => options.map((option) => option.value)")
    matchers = ["match", "match_urlpattern", "match_uritemplate", "match_amqp", "match_mqtt"]
    assert types in (["topic", *matchers], matchers)
    for type in types:
        page.get_by_label("Matcher type").select_option(type)
        subscribe_in_debugger(page)
        page.get_by_role("button", name="Publish").click()
        # The list has the updates of this subscription.
        expect(page.locator("#updates li")).to_have_count(1)
        expect(page.locator("#updates p")).to_have_text("https://example.com/books/1")
        # The list has the one subscription of this page.
        page.get_by_role("button", name="List subscriptions").click()
        shown = ["exact" if type == "match" else type.removeprefix("match_"), page.locator("#topics").input_value()]
        expect(page.locator("#there td")).to_contain_text([*shown, "urn:uuid:"])
        expect(page.locator("#there tr")).to_have_count(1)
    # A topic that the user typed stays.
    page.locator("#topics").fill("urn:mine")
    page.get_by_label("Matcher type").select_option("match")
    expect(page.locator("#topics")).to_have_value("urn:mine")
    page.get_by_role("button", name="Unsubscribe").click()
    page.get_by_role("button", name="List subscriptions").click()
    expect(page.locator("#nobody")).to_have_text("There are no subscriptions.")


def test_r29_the_forms_can_be_sent_once_the_script_has_loaded(open_hub: HubProcess, page: Page) -> None:
    # The script waits for the hub's settings before it listens to the forms.
    page.add_init_script(
        "const fetched = fetch, released = new Promise((release) => (window.release = release));"
        "window.fetch = (...request) => released.then(() => fetched(...request));"
    )
    page.goto(open_hub.origin)
    buttons = [page.get_by_role("button", name=name, exact=True) for name in ("Subscribe", "Publish")]
    for button in buttons:
        expect(button).to_be_disabled()
    page.evaluate("release()")
    for button in buttons:
        expect(button).to_be_enabled()


@pytest.mark.parametrize("width", [320, 1200])
def test_r29_the_debugger_fits_narrow_and_wide_windows(open_hub: HubProcess, page: Page, width: int) -> None:
    page.set_viewport_size({"width": width, "height": 800})
    visit_debugger(page, open_hub)
    page.locator("#topics").fill("https://example.com/" + "a" * 200)
    page.get_by_label("Topics, one per line").fill("https://example.com/" + "a" * 200)
    page.get_by_label("Id").fill("urn:" + "b" * 200)
    page.get_by_label("Data").fill("c" * 200)
    subscribe_in_debugger(page)
    page.get_by_role("button", name="Publish").click()
    expect(page.locator("#updates li")).to_have_count(1)
    page.get_by_role("button", name="List subscriptions").click()
    expect(page.locator("#there tr")).to_have_count(1)
    assert page.evaluate("document.documentElement.scrollWidth") <= width


@pytest.mark.parametrize("width", [320, 1200])
def test_the_debugger_says_how_to_sign_a_token_with_keys_of_the_operator(
    start_hub: Callable[..., HubProcess], page: Page, width: int
) -> None:
    hub = start_hub(HUB_PUBLISHER_KEY="a key of the operator, which is long enough")
    page.set_viewport_size({"width": width, "height": 800})
    visit_debugger(page, hub)
    command = "skipfilter token --key @FILE --classic --publish '*'"
    expect(page.locator("#sign code")).to_have_text(command)
    expect(page.locator("#sign")).to_be_visible()
    expect(page.locator("#token")).to_have_value("")
    assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_the_debugger_of_a_hub_with_well_known_keys_has_a_token(open_hub: HubProcess, page: Page) -> None:
    visit_debugger(page, open_hub)
    expect(page.locator("#token")).to_have_value(open_hub.token)
    expect(page.locator("#sign")).to_be_hidden()


def test_r91_the_debugger_shows_what_the_hub_says_of_the_stream(
    start_hub: Callable[..., HubProcess], page: Page
) -> None:
    hub = start_hub(HUB_HISTORY_UPDATES="4", HUB_SUBSCRIPTIONS="0", HUB_HEARTBEAT="0.2", HUB_RETRY="0.1")
    for n in range(9):
        publish(hub, "urn:a", str(n), id=str(n))
    visit_debugger(page, hub)
    expect(page.locator("#signals")).to_be_hidden()
    page.locator("#cursor").fill("1")
    subscribe_in_debugger(page, "urn:a")
    signals = page.locator("#signals li")
    expect(signals.nth(-2)).to_contain_text("asked: 1, lost: some, reason: unknown, last_event_id: earliest")
    expect(signals.nth(-2)).to_have_class("error")
    expect(signals.locator("b")).to_have_text(
        ["heartbeat", "position", "gap", "identity"]
    )  # the newest heartbeat alone
    expect(page.locator("#count")).to_have_text("4")
    hub.stop()
    expect(page.locator("#signals li:has-text('goodbye') span")).to_contain_text("reason: shutdown")
    expect(page.locator("#state")).to_contain_text("connecting again…")


def test_the_debugger_says_what_its_token_grants_and_when_it_expires(open_hub: HubProcess, page: Page) -> None:
    visit_debugger(page, open_hub)
    page.get_by_text("Token", exact=True).click()
    lines = page.locator("#grants li")
    tokens: list[tuple[str, list[Any]]] = [
        (open_hub.token, [re.compile("^may publish on "), re.compile("^may read private"), re.compile("expire")]),
        (
            current(open_hub, publish=["a", ("mqtt", "b/#")], subscribe=["*"], subject="ann ü", seconds=7_200),
            [
                "may publish on a, b/# (mqtt)",
                "may read private updates on all topics",
                "is for the subject ann ü",
                re.compile(r"^expires in (120 min|2 h), at .*\d"),
            ],
        ),
        (
            current(open_hub, publish=[], subscribe=[], now=1_000_000_000, seconds=1),
            ["may publish on no topic", "may read private updates on no topic", re.compile("^has expired at ")],
        ),
        (
            classic_token(subscribe=["/a/{b}"]),
            ["may publish on no topic", "may read private updates on /a/{b}", re.compile("^expires in ")],
        ),
        ("nonsense", ["is no token"]),
        ("", []),
    ]
    for token, expected in tokens:
        page.locator("#token").fill(token)
        expect(lines).to_have_text(expected)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_in_the_debugger(
    open_hub: HubProcess, browser: Browser, modules: Path, scheme: Literal["light", "dark"]
) -> None:
    with visitor(browser, color_scheme=scheme, viewport={"width": 390, "height": 800}) as context:
        page = context.new_page()
        visit_debugger(page, open_hub)
        page.get_by_text("Token", exact=True).click()
        page.locator("#cursor").fill("unknown")
        subscribe_in_debugger(page)
        page.get_by_role("checkbox", name="Private").check()
        page.get_by_role("button", name="Publish").click()
        expect(page.locator("#updates em:visible").first).to_have_text("private")
        page.get_by_role("button", name="List subscriptions").click()
        expect(page.locator("#there tr")).to_have_count(1)
        expect(page.locator("#signals b").last).to_have_text("identity")
        assert page.evaluate("document.documentElement.scrollWidth") <= 390
        page.evaluate((modules / "node_modules/axe-core/axe.min.js").read_text("utf-8"))
        found = page.evaluate("axe.run().then(({ violations }) => violations)")
        assert [(one["id"], [(node["html"], node["failureSummary"]) for node in one["nodes"]]) for one in found] == []


def test_the_debugger_can_be_used_with_the_keyboard_alone(open_hub: HubProcess, page: Page) -> None:
    visit_debugger(page, open_hub)
    reached = set()
    for _ in range(40):
        page.keyboard.press("Tab")
        reached.add(page.evaluate("document.activeElement.id || document.activeElement.textContent.trim()"))
        if page.evaluate("document.activeElement.textContent.trim()") in ("Subscribe", "Publish"):
            page.keyboard.press("Enter")
    assert {"Token", "type", "topics", "cursor", "Subscribe", "unsubscribe", "Publish", "refresh"} <= reached
    expect(page.locator("#updates li").first).to_be_visible()


# -- the run of a model in examples/run


@pytest.fixture
def run_app(tmp_path: Path) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """The example on two workers: its URL, and the process that watches them."""
    port = free_port()
    origin = f"http://127.0.0.1:{port}"
    command = [
        sys.executable,
        "-m",
        "uvicorn",
        "--factory",
        "examples.run.app:create",
        "--port",
        str(port),
        "--workers",
        "2",
    ]
    values = {"RUN_HISTORY": f"sqlite:///{tmp_path}/runs.db", "RUN_ORIGIN": origin, "RUN_TOKEN_SECONDS": "0.1"}
    process = subprocess.Popen(
        command, cwd=ROOT, env=environment(PYTHONPATH=str(ROOT), **values), stderr=subprocess.PIPE, text=True
    )
    assert process.stderr is not None
    lines: list[str] = []
    reading = threading.Thread(target=lambda: lines.extend(process.stderr or ()))
    try:
        for line in process.stderr:
            lines.append(line)
            if sum("startup complete" in line for line in lines) == 2:
                break
        reading.start()
        yield origin, process
    finally:
        process.terminate()
        process.wait(HANG)
        reading.join(HANG)
        process.stderr.close()


def test_a_run_survives_a_reload_and_the_end_of_each_worker(
    run_app: tuple[str, subprocess.Popen[str]], page: Page
) -> None:
    origin, watcher = run_app
    page.goto(origin)
    page.click("#start")
    text, state = page.locator("#text"), page.locator("#state")
    expect(text).to_contain_text("A roaring")
    page.reload()
    expect(text).to_contain_text("A roaring bitmap keeps")
    first = [pid for pid in children_of(watcher.pid) if "spawn_main" in Path(f"/proc/{pid}/cmdline").read_text()]
    assert len(first) == 2
    for pid in first:  # one of them has the stream
        os.kill(pid, signal.SIGKILL)
    expect(state).to_have_text("done")
    assert text.text_content() == TEXT + " "
    page.reload()  # a run that is over is still there
    expect(state).to_have_text("done")
    assert text.text_content() == TEXT + " "


def test_a_run_that_cannot_be_started_is_reported(run_app: tuple[str, subprocess.Popen[str]], page: Page) -> None:
    origin, _ = run_app
    page.goto(origin)
    page.route("**/runs", lambda route: route.abort())
    page.click("#start")
    expect(page.locator("#state")).to_have_text("not started: try again")


def test_a_run_that_the_history_does_not_have_is_reported(
    run_app: tuple[str, subprocess.Popen[str]], page: Page
) -> None:
    origin, _ = run_app
    page.goto(origin)
    page.click("#start")
    expect(page.locator("#state")).to_have_text("done")
    page.goto(f"{origin}/#11111111-1111-1111-1111-111111111111")
    expect(page.locator("#state")).to_have_text("no longer resumable")
