"""Sockets that come and go receive flights from a running hub, as the hub's tables say.

departures ─► hub ─► sockets, each with its own name among its selectors        received bytes
               └───► event log ─► tables ─► match(…, by="position")             the same updates
"""

from __future__ import annotations

import asyncio
import json
import time
from collections import defaultdict
from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING, Any

import pytest

from examples.flights import departures
from hub.auth.signing import sign_classic_token, sign_token
from hub.development import DEVELOPMENT_ISSUER, DEVELOPMENT_KEY
from hub.spark.tables import tables
from skipfilter import compile_matcher
from skipfilter.spark.jobs.matching import match
from tests.hub.event_log.test_recorder import events
from tests.hub.spark.hubs import updates_and_sessions
from tests.waiting import HANG
from tests.wire import PATH, Reply, bearer, request, subscribe

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from pathlib import Path

    from pyspark.sql import DataFrame, Row, SparkSession

    from tests.conftest import HubProcess

    Received = dict[str, set[int]]
    Granted = list[tuple[str, str]] | list[str]

NAME = "https://passengers.example/"
SILENT = "https://desk.example/"


@dataclass
class Passenger:
    """A subscriber: its number, which is also in a selector; its socket and received
    bytes.
    """

    number: int
    reply: Reply
    reading: asyncio.Task[bytes] | None
    """None if it reads nothing before it leaves."""
    came: bytes = field(default=b"", repr=False)

    async def leave(self) -> None:
        """Close the sending side, and read the rest."""
        self.reply.writer.write_eof()
        reading = self.reading or asyncio.ensure_future(self.reply.reader.read())
        self.came = await asyncio.wait_for(reading, HANG)
        await self.reply.close()


def updates_of(flights: Sequence[dict[str, str]], random: Random) -> list[dict[str, Any]]:
    """An update a flight, with a topic in the words of each matcher type; some are
    private, some have one topic.
    """
    made = []
    for number, row in enumerate(flights):
        origin, to, flight = row["origin"], row["dest"], row["carrier"] + row["flight"]
        topics = [
            f"https://flights.example/{origin}/{to}/{flight}",
            f"flights.{origin}.{to}.{row['carrier']}",
            f"{origin}/{to}/{flight}",
        ]
        chosen = topics if random.random() < 0.8 else [random.choice(topics)]
        about = {"flight": flight, "delay": row["dep_delay"], "seats": "x" * random.choice([0, 100, 1_000])}
        made.append(
            {"topic": chosen, "data": json.dumps(about), "private": random.random() < 0.3, "id": f"urn:flight:{number}"}
        )
    return made


def interest(number: int, flights: Sequence[dict[str, str]], random: Random) -> tuple[list[tuple[str, str]], Granted]:
    """Return a passenger's selectors, in one of the dialects, and the grant of its
    token.
    """
    row = random.choice(flights)
    origin, to, carrier, flight = row["origin"], row["dest"], row["carrier"], row["carrier"] + row["flight"]
    if random.random() < 0.4:
        patterns = [
            f"https://flights.example/{origin}/{{to}}/{{flight}}",
            f"https://flights.example/{origin}/{to}/{flight}",
            f"{origin}/{{to}}/{{flight}}",
            "*",
        ]
        return (
            [("topic", f"{NAME}{number}"), *(("topic", one) for one in random.sample(patterns, random.randint(1, 2)))],
            random.sample(patterns, random.randint(0, 2)),
        )
    matchers = [
        ("exact", f"flights.{origin}.{to}.{carrier}"),
        ("uritemplate", f"https://flights.example/{{from}}/{to}/{{flight}}"),
        ("urlpattern", f"https://flights.example/{origin}/:to/{carrier}:flight"),
        ("urlpattern", f"./{origin}/:to/*"),  # relative, like the third topic of a flight
        ("amqp", f"flights.{origin}.*.{carrier}"),
        ("amqp", f"flights.#.{carrier}"),
        ("mqtt", f"{origin}/+/{flight}"),
        ("mqtt", f"{origin}/#"),
        ("mqtt", "*"),
    ]
    asked = random.sample(matchers, random.randint(1, 3))
    return (
        [
            ("match", f"{NAME}{number}"),
            *(("match" if type == "exact" else f"match_{type}", one) for type, one in asked),
        ],
        random.sample(matchers, random.randint(0, 2)),
    )


def token_of(hub: HubProcess, granted: Granted, asked: list[tuple[str, str]]) -> str | None:
    if not granted:
        return None
    common: dict[str, Any] = {"publish": [], "subscribe": granted, "seconds": 600, "now": time.time()}
    if asked[0][0] == "topic":
        return sign_classic_token(DEVELOPMENT_KEY, "HS256", payload=None, **common)
    resource = f"http://localhost:{hub.port}{PATH}"
    return sign_token(DEVELOPMENT_KEY, "HS256", issuer=DEVELOPMENT_ISSUER, resource=resource, **common)


async def fly(hub: HubProcess, *, flights: int, passengers: int, slow: float, seed: int) -> list[Passenger]:
    """Publish `flights` while `passengers` come and go; return all passengers at the
    end.

    A share of them, `slow`, reads nothing before it leaves.
    """
    random = Random(seed)
    rows = departures("2013-07-04")[:flights]
    waiting = updates_of(rows, random)
    published = 0
    here: list[Passenger] = []
    gone: list[Passenger] = []

    async def publish(batch: list[dict[str, Any]]) -> None:
        body = "".join(json.dumps(update) + "\n" for update in batch).encode()
        headers = [("content-type", "application/x-ndjson"), bearer(hub.token)]
        async with await request(hub, "POST", PATH, headers, body) as reply:
            assert reply.status == 200, await reply.body()
            await reply.body()

    async def board(number: int) -> None:
        asked, granted = interest(number, rows, random)
        reads = random.random() >= slow
        after = random.choice(
            [None, None, "earliest", "of another hub", f"urn:flight:{random.randrange(published + 1)}"]
        )
        reply = await subscribe(
            hub,
            *asked,
            token=token_of(hub, granted, asked),
            last_event_id=after,
            receive_buffer=None if reads else 4_096,
        )
        assert reply.status == 200
        here.append(Passenger(number, reply, asyncio.ensure_future(reply.reader.read()) if reads else None))

    async def leave() -> None:
        passenger = here.pop(random.randrange(len(here)))
        await passenger.leave()
        gone.append(passenger)

    number = 0
    while waiting or number < passengers:
        size = random.randint(1, 25)
        batch, waiting = waiting[:size], waiting[size:]
        coming = range(number, min(passengers, number + random.randint(0, 4)))
        number = coming.stop
        going = [leave() for _ in range(random.randint(0, min(3, len(here) // 2)))]
        await asyncio.gather(*([publish(batch)] if batch else []), *map(board, coming), *going)
        published += len(batch)
    await asyncio.gather(*(leave() for _ in list(here)))
    return gone


def received_by_sockets(passengers: Iterable[Passenger]) -> Received:
    """Update -> passengers."""
    received: Received = defaultdict(set)
    for passenger in passengers:
        ids = events(passenger.came)
        assert len(ids) == len(set(ids))
        for id in ids:
            received[id].add(passenger.number)
    return received


def number_of(session: Row) -> int:
    [number] = [
        int(one["pattern"].removeprefix(NAME)) for one in session["selectors"] if one["pattern"].startswith(NAME)
    ]
    return number


def received_by_match(updates: DataFrame, sessions: DataFrame, base_url: str) -> Received:
    """Update -> passengers, by the pipeline."""
    numbers = {session["subscriber_id"]: number_of(session) for session in sessions.collect()}
    received: Received = defaultdict(set)
    for row in match(updates, sessions, "rows", by="position", base_url=base_url).collect():
        received[row["update_id"]].add(numbers[row["subscriber_id"]])
    return received


def received_one_by_one(updates: DataFrame, sessions: DataFrame, base_url: str) -> Received:
    """Update -> passengers, by asking every matcher about every topic."""
    published, received = updates.collect(), defaultdict(set)
    for session in sessions.collect():
        wanted, granted = (
            [compile_matcher(one["type"], one["pattern"], base_url=base_url) for one in session[name]]
            for name in ("selectors", "authorised")
        )
        for update in published:
            if (
                update["epoch"] == session["epoch"]
                and session["after"] < update["position"] <= session["until"]
                and any(matcher.match(topic) for matcher in wanted for topic in update["topics"])
                and (
                    not update["private"]
                    or any(matcher.match(topic) for matcher in granted for topic in update["topics"])
                )
            ):
                received[update["update_id"]].add(number_of(session))
    return received


def check(
    spark: SparkSession, hub: HubProcess, path: Path, *, flights: int, passengers: int, slow: float, seed: int
) -> Received:
    """Assert that sockets, tables and matchers agree; return the received updates."""
    flown = asyncio.run(fly(hub, flights=flights, passengers=passengers, slow=slow, seed=seed))
    hub.stop()
    tables(spark, str(path / "events"), str(path / "tables"))
    updates, sessions = updates_and_sessions(spark, path / "tables")
    assert updates.count() == flights
    assert sessions.count() == passengers
    [base_url] = {row["hub"] for row in sessions.select("hub").distinct().collect()}
    received = received_by_sockets(flown)
    assert received_one_by_one(updates, sessions, base_url) == received
    assert received_by_match(updates, sessions, base_url) == received
    return received


@pytest.mark.parametrize("workers", [pytest.param(1, marks=pytest.mark.soak), 2])
def test_the_tables_have_the_receivers_of_every_update(
    workers: int, spark: SparkSession, start_hub: Callable[..., HubProcess], tmp_path: Path
) -> None:
    hub = start_hub(
        "--workers", str(workers), HUB_EVENT_LOG=str(tmp_path / "events"), HUB_EVENT_LOG_SEGMENT_SECONDS="0.3",
        HUB_HISTORY_URL=f"sqlite:///{tmp_path}/log.db?synchronous=normal", HUB_SEND_BUFFER="4096",
        HUB_SUBSCRIPTIONS="0",
    )  # fmt: skip
    received = check(spark, hub, tmp_path, flights=400, passengers=80, slow=0.2, seed=workers)
    assert sum(map(len, received.values())) > 1_000
