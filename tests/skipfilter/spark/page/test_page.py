"""skipfilter.spark.page: one file that loads nothing, shows the figures, and stays
small.
"""

from __future__ import annotations

import subprocess
from datetime import UTC, datetime, timedelta
from functools import cache
from html.parser import HTMLParser
from typing import TYPE_CHECKING, Any

import pytest

from skipfilter.spark.jobs.report import report
from skipfilter.spark.jobs.statistics import per_of
from skipfilter.spark.page.content import BARS, CELLS, MOMENTS, POINTS, TOPICS, Content, collect
from skipfilter.spark.page.document import render
from skipfilter.spark.page.formats import LONGEST, short
from tests.waiting import HANG

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

START = datetime(2026, 1, 31, tzinfo=UTC)
EVIL = "<script>alert(1)</script>\"'&$x_1$ %s \x00\u202e\u2028"


def content(bins: int = 24, topics: list[str] | None = None, private: int = 300) -> Content:
    """The content of a day."""
    times = [START + timedelta(hours=n) for n in range(bins)]
    names = ["https://example.com/1", EVIL, "é" * 500] if topics is None else topics
    return Content(
        overview={
            "start": START, "end": START + timedelta(hours=bins), "updates": 1_000, "presence_updates": 0,
            "unknown": 0, "deliveries": 1_234_567,
            "published_bytes": 10_000, "delivered_bytes": 2_345_678, "topics": 77, "sessions": 500, "subscribers": 444,
            "people": 321, "unnamed": 12,
        },
        growth=3.0,
        per="hour",
        traffic=[
            {"time": time, "updates": 10, "private_updates": 3, "deliveries": n * 100, "published_bytes": 7, "delivered_bytes": n}
            for n, time in enumerate(times)
        ],
        churn=[{"time": time, "connected": n, "disconnected": 1, "peak": n + 5} for n, time in enumerate(times)],
        moments=[{"time": time, "connected": n, "disconnected": 1, "peak": n + 5} for n, time in enumerate(times)],
        fanout={"updates": 1_000, "unknown": 0, "deliveries": 9, "mean": 3.25, "p50": 1, "p90": 7, "p99": 40, "p999": 60, "max": 61},
        distribution=[{"fanout": n, "updates": 1_000 >> n, "deliveries": n} for n in range(8)],
        topics=[{"topic": name, "deliveries": 99 - n, "updates": 5, "private_updates": 1} for n, name in enumerate(names)],
        heat_per="hour",
        heat=[{"topic": name, "time": time, "deliveries": 3} for name in names for time in times[:CELLS]],
        private={"updates": 1_000, "private": private, "share": private / 1_000, "unknown": 0, "to_nobody": 120,
                 "unauthorised": 20, "presence": 0},
        selectors=[{"role": "subscribed", "type": "mqtt", "sessions": 4, "selectors": 5, "distinct": 3}],
        lengths={"sessions": 500, "still_connected": 9, "mean": 5.0, "p50": 61, "p90": 3_700, "p99": 90_000, "p999": 90_001, "max": 0},
        capacity=[
            {"measure": "deliveries", "per": "second", "peak": 7, "at": START, "planned": 21.0},
            {"measure": "delivered bytes", "per": "minute", "peak": 7_000_000, "at": START, "planned": 21_000_000.0},
        ],
        gaps=[f"deliveries of {EVIL} may be missing"],
        unchecked="",
    )  # fmt: skip


NOBODY = content()._replace(
    overview=dict.fromkeys(content().overview, 0) | {"start": None, "end": None},
    traffic=[], churn=[], moments=[], distribution=[], topics=[], heat=[], selectors=[],
    fanout=dict.fromkeys(content().fanout) | {"updates": 0, "unknown": 0},
    private=dict.fromkeys(content().private, 0) | {"share": None},
    lengths=dict.fromkeys(content().lengths) | {"sessions": 0, "still_connected": 0},
    capacity=[{"measure": "connections", "per": "moment", "peak": 0, "at": None, "planned": 0.0}], gaps=[],
)  # fmt: skip


CONTENTS = {
    "a day": content(),
    "an hour": content(bins=1),
    "no topics": content(topics=[]),
    "nothing private": content(private=0),
    "nobody": NOBODY,
}


@cache
def page_of(name: str) -> str:
    """Return the page of a content.  Drawing it takes a second."""
    return render(CONTENTS[name], EVIL)


class Read(HTMLParser):
    """The elements and the visible text of a page; fails if elements are not closed in
    order.
    """

    VOID = ("meta", "link", "br")

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[str] = []
        self._open: list[str] = []
        self.feed(text)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        if "style" not in self._open:
            self.text.append(data)


@pytest.mark.parametrize("name", CONTENTS)
def test_the_page_is_well_formed_and_its_ids_are_unique(name: str) -> None:
    read = Read(page_of(name))
    ids = [attributes["id"] for _, attributes in read.elements if "id" in attributes]
    assert len(set(ids)) == len(ids)
    named = [
        attributes.get(name) for _, attributes in read.elements for name in ("aria-labelledby", "aria-describedby")
    ]
    assert {id for several in named if several for id in several.split()} <= set(ids)


@pytest.mark.parametrize("name", ["a day", "nobody"])
def test_the_page_loads_nothing_from_elsewhere(name: str) -> None:
    text = page_of(name)
    read = Read(text)
    assert not {tag for tag, _ in read.elements} & {
        "script",
        "link",
        "img",
        "iframe",
        "object",
        "embed",
        "base",
        "a",
        "form",
    }
    for _, attributes in read.elements:
        assert not attributes.keys() & {"src", "onload", "onclick", "action", "srcset"}
        assert all((attributes.get(name) or "#").startswith("#") for name in ("href", "xlink:href"))
    assert "@import" not in text
    assert "default-src 'none'" in text
    links = text.replace("http://www.w3.org/", "").replace("https://example.com/", "")
    assert "http:" not in links
    assert "https:" not in links
    assert text.count("url(") == text.count("url(#")


def test_text_of_the_data_stays_text() -> None:
    text = page_of("a day")
    read = Read(text)
    assert "<script" not in text
    assert "\x00" not in text.partition("</header>")[2]
    assert "\u202e" not in text.partition("</header>")[2]
    shown = "<script>alert(1)</script>\"'&$x_1$ %s \\x00\\u202e\\u2028"
    assert shown in read.text  # in the table
    assert read.text.count(shown) == 2  # and in the heat map


def notice_of(page: str) -> str:
    """Return the text of the notice, which stands before the figures."""
    notice = page[page.index("<aside") : page.index("</aside>")]
    assert page.index("</h1>") < page.index(notice) < page.index('<dl class="tiles">')
    return " ".join(Read(notice + "</aside>").text)


def test_deliveries_that_cannot_be_checked_are_named_before_the_figures() -> None:
    page = render(NOBODY._replace(unchecked="2026-01-31"), "t")
    shown = notice_of(page)
    assert "The deliveries cannot be checked" in shown
    assert "Those of 2026-01-31 were matched by an earlier version" in shown
    assert "Figures are exact, if the deliveries belong to these updates and sessions." in page


def test_possible_gaps_are_shown_before_the_figures() -> None:
    text = page_of("a day")
    shown = notice_of(text)
    assert "Something may be missing" in shown
    assert "deliveries of <script>alert(1)</script>\"'&$x_1$ %s \\x00\\u202e\\u2028 may be missing" in shown
    assert "Figures are exact, except for what may be missing." in text
    assert "<aside" not in page_of("nobody")
    assert "Figures are exact." in page_of("nobody")


def test_a_long_topic_is_cut() -> None:
    text = "".join(Read(page_of("a day")).text)
    assert "é" * LONGEST + "…" in text
    assert "é" * (LONGEST + 1) not in text


def test_plots_exist_for_wide_and_narrow_pages_with_descriptions() -> None:
    read = Read(page_of("a day"))
    plots = [attributes for tag, attributes in read.elements if tag == "svg"]
    assert [plot["class"] for plot in plots] == ["wide", "narrow"] * 3
    assert all(plot["role"] == "img" and plot["aria-labelledby"] for plot in plots)
    assert "width" not in plots[0]
    assert sum(tag == "title" for tag, _ in read.elements) == 1 + len(plots)


def test_plots_only_have_colours_of_the_style_sheet() -> None:
    text = page_of("a day")
    plots = text.partition("<main>")[2]
    assert "var(--a)" in plots
    assert "#" not in plots.replace("url(#", "").replace('href="#', "").replace("&#", "")
    assert "prefers-color-scheme: dark" in text
    for variable in ("ink", "muted", "grid", "a", "b", "c"):
        assert text.count(f"--{variable}: #") == 2  # light and dark


def test_figures_agree_with_the_content() -> None:
    text = " ".join(" ".join(Read(page_of("a day")).text).split())
    for told in (
        "1.23 M",
        "2.35 MB",
        "30%",
        "180 (60.0%)",
        "of 500 sessions, 321 people",
        "sessions without a name 12",
        "100 (33.3%)",
        "at 3 × subscribers",
        "21 MB",
        "1 d 1 h",
    ):
        assert told in text, told


def test_the_same_report_makes_the_same_file() -> None:
    assert render(content(), EVIL) == page_of("a day")


def test_the_largest_page_has_a_bounded_size() -> None:
    topics = [f"{n}" * 200 for n in range(TOPICS)]
    largest = content(bins=BARS, topics=topics)
    moments = [{"time": START + timedelta(minutes=n), "peak": n * n % 997} for n in range(POINTS)]
    assert len(render(largest._replace(moments=moments), "Title")) < 800_000


@pytest.mark.parametrize(
    ("days", "per", "fine"),
    [
        (0, "second", "second"),
        (1, "hour", "minute"),
        (30, "day", "hour"),
        (1_000, "month", "day"),
        (9_000, "year", "month"),
    ],
)
def test_the_length_of_bins_follows_the_period(days: int, per: str, fine: str) -> None:
    length = timedelta(days=days)
    assert (per_of(length, BARS), per_of(length, MOMENTS)) == (per, fine)


@pytest.mark.parametrize(
    ("number", "text"),
    [(0, "0"), (999, "999"), (9_999, "9,999"), (12_345, "12.3\xa0k"), (999_999, "1\xa0M"), (1e6, "1\xa0M"), (2.5e12, "2.5\xa0T"), (None, "–")],
)  # fmt: skip
def test_short_numbers(number: float | None, text: str) -> None:
    assert short(number) == text


def test_a_real_report_becomes_a_page(spark: SparkSession, tmp_path: Path, chromium: str) -> None:
    every: Any = [("everything", "*")]
    updates = [(f"u{n}", [EVIL, f"/{n % 40}"], n % 2 == 0, 10, START + timedelta(minutes=n)) for n in range(200)]
    sessions = [(0, "urn:0", every, every, START, None), (1, "urn:1", every, [], START, START + timedelta(hours=1))]
    selectors = "array<struct<type:string,pattern:string>>"
    tables = (
        spark.createDataFrame(
            updates, "update_id string, topics array<string>, private boolean, data_bytes long, ts timestamp"
        ),
        spark.createDataFrame(
            sessions,
            f"subscriber_id long, subscriber string, selectors {selectors}, authorised {selectors}, "
            "connected_from timestamp, disconnected_at timestamp",
        ),
        spark.createDataFrame([(row[0], row[4], 1) for row in updates], "update_id string, ts timestamp, fanout long"),
    )
    with report(*tables) as made:
        what = collect(made)
    assert (what.per, len(what.traffic), len(what.topics)) == ("hour", 4, TOPICS)
    assert sum(row["deliveries"] for row in what.traffic) == 200
    assert what.overview["start"] == START  # in UTC, in any time zone of the machine
    assert max(row["peak"] for row in what.moments) == 2
    assert len(what.moments) == 200
    path = tmp_path / "report.html"
    path.write_text(render(what, "Title"), "utf-8")
    # Chromium shows a topic that looks like a script as text, and lays the page out
    # without an error.
    ended = subprocess.run(
        [chromium, "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path}", "--dump-dom", path.as_uri()],
        capture_output=True, text=True, check=True, timeout=HANG,
    )  # fmt: skip
    assert "<script" not in ended.stdout
    assert "&lt;script&gt;" in ended.stdout
