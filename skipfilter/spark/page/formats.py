"""Formats: numbers, times and text as the page shows them.

The package humanize writes words, as in 1.2 million; columns of figures need units.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from skipfilter.text import escaped

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from skipfilter.spark.jobs.statistics import Per

LONGEST: Final = 120
"""The maximum number of characters of a topic that the page shows."""


def topic(topic: str) -> str:
    """Return a topic with invisible characters escaped.

    If it is longer than LONGEST characters, it is cut and ends with an ellipsis.
    """
    seen = escaped(topic[: LONGEST + 1])
    return seen if len(seen) <= LONGEST else f"{seen[:LONGEST]}…"


def whole(number: float | None) -> str:
    """Return a number without decimals: 1,234, or – for None."""
    return "–" if number is None else f"{number:,.0f}"


def decimal(number: float | None) -> str:
    """Return a number with one decimal: 1.2, or – for None."""
    return "–" if number is None else f"{number:,.1f}"


def short(number: float | None) -> str:
    """Return a number with three digits and a unit: 1.23 M, or – for None.

    Numbers below 10,000 have all their digits and no unit.
    """
    return whole(number) if number is None or number < 1e4 else _scaled(number, ("", "k", "M", "G", "T"))


def size(number: float | None) -> str:
    """Return a number of bytes with three digits and a unit: 1.23 MB, or – for None."""
    return "–" if number is None else _scaled(number, ("B", "kB", "MB", "GB", "TB", "PB"))


def _scaled(number: float, units: Sequence[str]) -> str:
    for unit in units[:-1]:
        if number < 999.5:
            return f"{number:.3g}\N{NO-BREAK SPACE}{unit}"
        number /= 1_000
    return (
        f"{number:,.3g}\N{NO-BREAK SPACE}{units[-1]}"
        if number < 999.5
        else f"{number:,.0f}\N{NO-BREAK SPACE}{units[-1]}"
    )


def duration(seconds: float | None) -> str:
    """Return a length of time in its two largest units: 1 h 5 min, or – for None."""
    if seconds is None:
        return "–"
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    parts = [(days, "d"), (hours, "h"), (minutes, "min"), (rest, "s")]
    first = next((at for at, (count, _) in enumerate(parts) if count), 3)
    return " ".join(f"{count}\N{NO-BREAK SPACE}{unit}" for count, unit in parts[first : first + 2])


def clock(time: datetime) -> str:
    """Return a date and time, without the seconds if they are 0."""
    return f"{time:%Y-%m-%d %H:%M:%S}" if time.second else f"{time:%Y-%m-%d %H:%M}"


def bin_label(time: datetime, per: Per, one_day: bool) -> str:
    """Return the label of the bin that begins at `time`.

    If there are several days, the label at midnight is the day and not 00:00.
    """
    formats = {
        "second": "%H:%M:%S",
        "minute": "%H:%M",
        "hour": "%H:%M",
        "day": "%d\N{NO-BREAK SPACE}%b",
        "month": "%b\N{NO-BREAK SPACE}%Y",
    }
    midnight = not one_day and time.hour == time.minute == time.second == 0 and formats.get(per, "").startswith("%H")
    return f"{time:{formats['day'] if midnight else formats.get(per, '%Y')}}"


def period(start: datetime | None, end: datetime | None) -> str:
    """Return the beginning and end of the report, or "No updates." if it has none."""
    if start is None or end is None:
        return "No updates."
    return f"{clock(start.replace(microsecond=0))} to {clock(end.replace(microsecond=0))} UTC"


FILTERS: Final = {each.__name__: each for each in (clock, decimal, duration, short, size, topic, whole)}
"""The functions that the template uses, by name."""
