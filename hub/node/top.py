"""Top: how busy a hub is, in the answers of all its processes together.

Belongs here: how answers become one.  Does not belong here: what one process counts
(`watch`), and how an answer is shown.
"""

from __future__ import annotations

from heapq import nlargest
from itertools import chain
from typing import TYPE_CHECKING, Any, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

ROWS: Final = 50
"""Rows of each kind in an answer, at most."""
DIGITS: Final = 3
"""Decimal places of a rate."""


class Top(NamedTuple):
    """How busy a hub is: all numbers of events are those of a second."""

    seconds: int
    """How many seconds they are the mean of, at most; 0 if counting begins with this
    question."""
    processes: int
    streams: int
    live: int
    """The streams that have been sent all that they want."""
    updates: float
    deliveries: float
    bytes: float
    delay: float
    """The seconds until an update was written to all live streams: the mean of all
    updates, at the process where it is longest."""
    worst_delay: float
    """The longest one."""
    refusals: Mapping[str, float]
    topics: Sequence[Mapping[str, Any]]
    """Those with most deliveries: `topic`, `updates`, the `streams` that get it now,
    `deliveries` and `bytes`.  An update on several topics counts for the first."""
    clients: Sequence[Mapping[str, Any]]
    """Those with most streams, and with most bytes: `issuer`, `subject`, `address`,
    `streams`, `bytes`, and how many entries of the history one is `behind` at most.  A
    client is a subject or, without one, an address.  `bytes` are those of what was
    published for it, even if they still wait to be sent."""
    slowest: Sequence[Mapping[str, Any]]
    """The streams that are furthest behind: `subscriber`, `process`, `issuer`,
    `subject`, `address`, `state` and `behind`."""
    silent: Sequence[str]
    """The names of the processes that have not answered."""


def merge(answers: Sequence[Mapping[str, Any]], silent: Sequence[str]) -> Top:
    """Return the answers of all processes as one.

    Streams and deliveries add up.  An update is dispatched by each process, so the
    largest number counts.
    """

    def total(name: str) -> Any:
        return round(sum(answer[name] for answer in answers), DIGITS)

    def largest(name: str) -> Any:
        return max((answer[name] for answer in answers), default=0)

    refusals: dict[str, float] = {}
    for answer in answers:
        for reason, rate in answer["refusals"].items():
            refusals[reason] = round(refusals.get(reason, 0.0) + rate, DIGITS)
    clients = _united(answers, "clients", ["issuer", "subject", "address"], ["behind"])
    most = [nlargest(ROWS, clients, key=lambda row: (row[name], row["streams"])) for name in ("streams", "bytes")]
    return Top(
        seconds=largest("seconds"),
        processes=len(answers),
        streams=total("streams"),
        live=total("live"),
        updates=largest("updates"),
        deliveries=total("deliveries"),
        bytes=total("bytes"),
        delay=largest("delay"),
        worst_delay=largest("worst_delay"),
        refusals=dict(sorted(refusals.items(), key=lambda item: item[1], reverse=True)),
        topics=nlargest(ROWS, _united(answers, "topics", ["topic"], ["updates"]), key=deliveries),
        clients=list({id(row): row for row in chain(*most)}.values()),
        slowest=nlargest(ROWS, chain(*(answer["slowest"] for answer in answers)), key=lambda row: int(row["behind"])),
        silent=silent,
    )


def _united(
    answers: Iterable[Mapping[str, Any]], name: str, keys: Sequence[str], largest: Sequence[str]
) -> list[dict[str, Any]]:
    """Return the rows of all answers, with one for each key.

    Numbers add up, but for those of which the largest counts.
    """
    rows: dict[tuple[Any, ...], dict[str, Any]] = {}
    for answer in answers:
        for row in answer[name]:
            key = tuple(row[name] for name in keys)
            if (known := rows.get(key)) is None:
                rows[key] = dict(row)
                continue
            for column in row.keys() - set(keys):
                one, other = known[column], row[column]
                known[column] = max(one, other) if column in largest else round(one + other, DIGITS)
    return list(rows.values())


def deliveries(row: Mapping[str, Any]) -> tuple[float, float]:
    """Return by what the rows of topics are ordered."""
    return row["deliveries"], row["updates"]
