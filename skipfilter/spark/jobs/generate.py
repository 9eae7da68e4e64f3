"""Synthetic workloads: tables of updates and sessions, which a seed defines row by row.

Every value is a column expression of the row's number, a salt and the seed.  So a row
does not depend on the partitions, the machine or the order, and no row passes through
Python.

    id ──► xxhash64(id, "room", seed) ──► u in (0, 1) ──► Zipf, exponential or
                                                          log-logistic, by inverse CDFs

    family    topic                                  declared by        selectors
    users     https://example.com/users/7            all, each its own  exact
    rooms     https://example.com/rooms/3            all, two by Zipf   exact
    feeds     https://example.com/feeds/5/81         50 %               uritemplate
    stocks    stock.s12.r4.trade                     5 %                amqp
    sensors   sensors/b12/f3/temperature             5 %                mqtt
    shops     https://shop3.example.com/items/81     2 %                urlpattern

A few subscribers also declare everything.  Each subscriber is authorised for its own
topic.  A share of the subscribers is authorised for all rooms, and the same share of
those that declare a pattern is authorised for it.  So private updates reach some
subscribers and not others.

A day is stationary.  The subscribers that are connected at its beginning have been
connected for a time of the exponential distribution that all sessions have, and stay
for another such time.  Ids are in the order of connecting.  With `rhythm`, more happens
in the middle of the day than at its ends.

Source: numbers by hash, as in Gray et al., Quickly generating billion-record synthetic
databases, 1994.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from itertools import accumulate
from typing import TYPE_CHECKING, Final, NamedTuple

from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import ArrayType

from skipfilter.spark.tables.inputs import GENERATED
from skipfilter.spark.tables.schemas import SELECTOR, SESSIONS, UPDATES

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

MICROSECOND: Final = timedelta(microseconds=1)
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class Families(NamedTuple):
    """A number for each family of topics."""

    users: float
    rooms: float
    feeds: float
    stocks: float
    sensors: float
    shops: float


# The defaults of `Workload`.
DECLARED: Final = Families(1, 1, 0.5, 0.05, 0.05, 0.02)
PUBLISHED: Final = Families(0.6, 0.2, 0.12, 0.03, 0.03, 0.02)


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """The parameters of a workload: equal ones make equal rows on every machine.

    If `rooms`, `feeds` or `words` is None, it grows with the subscribers: a room for
    each 5 of them, up to MAX_ROOMS; a feed for each 20, and a stock and a sensor for
    each 100, up to MAX_FEEDS.

    Raises ValueError if a parameter is out of range.
    """

    subscribers: int = 2_000
    updates: int = 20_000
    seed: int = 20_261_121

    start: datetime = datetime(2026, 11, 21, tzinfo=UTC)
    duration: timedelta = timedelta(days=1)
    session: timedelta = timedelta(hours=3.25)
    """The mean length of a session.  One that outlasts the duration has no end."""
    rhythm: float = 0.6
    """How much the load varies, from 0 to 1.

    With 0 it is constant.  With 1, four times as much happens in the middle of the
    duration as at either end.
    """

    rooms: int | None = None
    feeds: int | None = None
    words: int | None = None
    """The number of stocks, which is also the number of sensors."""
    shops: int = 40
    items: int = 25
    """The number of items in each feed and shop."""
    skew: float = 1.05
    """The exponent of Zipf's law for rooms, feeds, stocks, sensors and shops."""

    declared: Families = DECLARED
    """For each family, the share of the subscribers that declare a selector."""
    published: Families = PUBLISHED
    """For each family, its weight among the topics; weights need not add up to 1."""
    everything: float = 0.0005
    """The share of the subscribers that declare everything and are granted it."""
    granted: float = 0.3
    """The share of the subscribers that are granted all rooms.

    Also the share of the declared patterns that are granted.
    """
    private: float = 0.3
    """The share of private updates."""
    two_topics: float = 0.1
    """The share of updates for which two topics are drawn, which may be equal."""
    data_bytes: int = 300
    """The median number of data bytes of an update."""

    def __post_init__(self) -> None:
        shares = (*self.declared, self.everything, self.granted, self.private, self.two_topics, self.rhythm)
        sizes = (self.room_count, self.feed_count, self.word_count, self.shops, self.items, self.data_bytes)
        if self.subscribers < 0 or self.updates < 0:
            raise ValueError(f"{self.subscribers:,} subscribers, {self.updates:,} updates: must not be negative")
        if not all(0 <= share <= 1 for share in shares):
            raise ValueError(f"{shares}: a share must be from 0 to 1")
        if min(self.published) < 0 or not sum(self.published):
            raise ValueError(f"published {self.published}: must not be negative, nor all 0")
        if min(sizes) < 1 or self.skew < 0:
            raise ValueError(f"{sizes} and skew {self.skew}: sizes must be at least 1, and skew not negative")
        if self.duration < MICROSECOND or self.session < MICROSECOND:
            raise ValueError(f"a duration of {self.duration}, sessions of {self.session}: must be longer than 0")
        if self.start.utcoffset() is None:
            raise ValueError(f"start {self.start}: it has no time zone")

    @property
    def room_count(self) -> int:
        """The number of rooms: `rooms`, or its default if that is None.  Takes O(1)."""
        return max(1, min(self.subscribers // 5, MAX_ROOMS)) if self.rooms is None else self.rooms

    @property
    def feed_count(self) -> int:
        """The number of feeds: `feeds`, or its default if that is None.  Takes O(1)."""
        return max(1, min(self.subscribers // 20, MAX_FEEDS)) if self.feeds is None else self.feeds

    @property
    def word_count(self) -> int:
        """The number of stocks, and of sensors: `words`, or its default if None.

        Takes O(1).
        """
        return max(1, min(self.subscribers // 100, MAX_FEEDS)) if self.words is None else self.words


MAX_ROOMS: Final = 100_000
"""The maximum default of rooms."""
MAX_FEEDS: Final = 3_000
"""The maximum default of feeds, of stocks and of sensors."""


def generate_updates(spark: SparkSession, workload: Workload, partitions: int | None = None) -> DataFrame:
    """Return the UPDATES of `workload`, without data.

    Costs no job: the rows are computed when they are used.

    The number of partitions is that of Spark's processors by default.  The rows do not
    depend on it.
    """
    # 1. Two topics for each update.
    row = _Row(workload)
    rows = spark.range(0, workload.updates, numPartitions=partitions)
    for salt in ("topic", "second"):
        rows = row.with_topic(rows, salt)
    # 2. The size is log-logistic, around its median.
    two = row.u("topics") < workload.two_topics
    u = row.u("bytes")
    data_bytes = F.ceil(workload.data_bytes * F.pow(u / (1 - u), F.lit(0.6)))
    # 3. The time is uniform, apart from the rhythm.
    at = F.timestamp_micros(row.micros(row.rhythmic(row.u("time")) * (workload.duration // MICROSECOND)))
    table = rows.select(
        row.uuid("update").alias("update_id"),
        F.when(two & (F.col("topic") != F.col("second")), F.array("topic", "second"))
        .otherwise(F.array("topic"))
        .alias("topics"),
        (row.u("private") < workload.private).alias("private"),
        *_nulls("type string", "retry long"),
        _never_null(F.least(data_bytes, F.lit(2**20)), 1).alias("data_bytes"),
        *_nulls("data string"),
        at.alias("ts"),
        *_nulls("position long", "hub string"),
        _epoch(workload),
        _nullable(F.lit(False), F.lit(True)).alias("presence"),
        F.to_date(at).alias("dt"),
    )
    return table.to(UPDATES)


def generate_sessions(spark: SparkSession, workload: Workload, partitions: int | None = None) -> DataFrame:
    """Return the SESSIONS of `workload`, one for each subscriber, who is a person.

    Costs no job: the rows are computed when they are used.

    `partitions` is as for `generate_updates`.
    """
    row = _Row(workload)
    duration, mean = workload.duration // MICROSECOND, workload.session // MICROSECOND
    # 1. When each connects, in µs from the start.  The number connected at the start is
    #    the number that connect during the mean length of a session, so that it stays
    #    about equal.  Their offsets are negative, and exponentially distributed.
    present = round(workload.subscribers * mean / (mean + duration))
    place = row.id + row.u("connect") / 2  # half, so that rounding keeps the order
    since = F.when(row.id < present, mean * F.log(place / max(present, 1))).otherwise(
        row.rhythmic((place - present) / max(workload.subscribers - present, 1)) * duration
    )
    # 2. When each disconnects.  An exponential distribution has no memory, so a session
    #    that is connected at the start stays for another full length.
    until = F.floor(F.greatest("since", F.lit(0.0)) - mean * F.log(row.u("disconnect")))
    rows = spark.range(0, workload.subscribers, numPartitions=partitions)
    rows = rows.withColumns({"user": _text(f"{SITE}/users/", row.id), "since": since})
    rows = rows.withColumns({"until": until, "connected": F.timestamp_micros(row.micros(F.col("since")))})
    # 3. The selectors that each may declare, and whether it declares them.
    rows = row.with_selectors(rows)
    shares = workload.declared._asdict()
    declares = {family: row.u(f"declares {family}") < shares[family] for family in shares}
    granted = {family: row.u(f"granted {family}") < workload.granted for family in shares}
    all_of_it = row.u("everything") < workload.everything
    everything = _selector("everything", F.lit("*"))
    all_rooms = _selector("uritemplate", F.lit(f"{SITE}/rooms/{{id}}"))
    # 4. The lists of declared and of granted selectors.
    patterns = {"feeds": F.col("feed"), "stocks": F.col("stock"), "sensors": F.col("sensor"), "shops": F.col("shop")}
    selectors = _array(
        (declares["users"], F.col("own")),
        (declares["rooms"], F.col("room")),
        (declares["rooms"] & (F.col("room") != F.col("room 2")), F.col("room 2")),
        *((declares[family], pattern) for family, pattern in patterns.items()),
        (all_of_it, everything),
    )
    authorised = _array(
        (F.lit(True), F.col("own")),
        (granted["rooms"], all_rooms),
        *((declares[family] & granted[family], pattern) for family, pattern in patterns.items()),
        (all_of_it, everything),
    )
    table = rows.select(
        row.id.alias("subscriber_id"),
        F.col("user").alias("subscriber"),
        selectors.alias("selectors"),
        authorised.alias("authorised"),
        F.col("connected").alias("connected_from"),
        F.when(F.col("until") < duration, F.timestamp_micros(row.micros(F.col("until")))).alias("disconnected_at"),
        *_nulls("after long", "until long", "hub string"),
        _epoch(workload),
        *_nulls("node string", "number long"),
        _nullable(F.lit(SITE), F.lit("")).alias("issuer"),
        _nullable(row.id.cast("string"), F.lit("")).alias("subject"),
        F.to_date("connected").alias("dt"),
    )
    return table.to(SESSIONS)


def _epoch(workload: Workload) -> Column:
    """Return the epoch of generated rows, which names the workload."""
    name = F.lit(GENERATED + sha256(repr(workload).encode()).hexdigest()[:16])
    return _nullable(name, F.lit("")).alias("epoch")


SITE: Final = "https://example.com"
REGIONS: Final = 5
"""The number of regions of a stock, and of floors of a building with sensors."""


class _Row:
    """Column expressions that derive the values of a row from its number.

    If an expression is used several times, it becomes a column in a step of its own.
    It is then computed once, and the code that Spark generates stays small enough for
    Java's compiler, which skips methods of more than 8,000 bytes.
    """

    def __init__(self, workload: Workload) -> None:
        self.workload = workload
        self.id = F.col("id")  # the row's number, from `spark.range`

    # -- numbers

    def hash(self, salt: str) -> Column:
        """Return the hash of the row's number, a salt and the seed."""
        return F.xxhash64(self.id, F.lit(salt), F.lit(self.workload.seed))

    def u(self, salt: str) -> Column:
        """Return a number in (0, 1), never 0 or 1: 52 bits of the hash, plus a half."""
        return (F.shiftrightunsigned(self.hash(salt), 12) + 0.5) * 2.0**-52

    def zipf(self, salt: str, count: int) -> Column:
        """Return a number in range(count), by Zipf's law; 0 is likeliest."""
        return zipf(self.u(salt), F.lit(count), self.workload.skew)

    def rhythmic(self, x: Column) -> Column:
        """Return a time in (0, 1) for `x` in (0, 1), so that the middle has more times.

        Keeps the order of times.  It is a polynomial, because its value is the same on
        every machine.
        """
        return x + self.workload.rhythm * x * (1 - x) * (1 - 2 * x)

    def micros(self, offset: Column) -> Column:
        """Return µs since 1970 for an offset from the workload's start in µs."""
        return _never_null(F.floor(offset), 0) + (self.workload.start - _EPOCH) // MICROSECOND

    def uuid(self, salt: str) -> Column:
        """Return the URN of a UUID of version 8 (RFC 9562) that is made from a hash."""
        text = F.md5(_text(self.id, f" {salt} {self.workload.seed}").cast("binary"))
        parts = [text.substr(1, 8), text.substr(9, 4), _text("8", text.substr(14, 3)), _text("a", text.substr(18, 3))]
        return F.concat(F.lit("urn:uuid:"), F.concat_ws("-", *parts, text.substr(21, 12)))

    # -- topics, and selectors that match topics of the same number

    def with_topic(self, rows: DataFrame, name: str) -> DataFrame:
        """Return `rows` with the column `name`, a topic of a family drawn by weight."""
        size = self.workload
        counts = (size.subscribers or 1, size.room_count, size.feed_count, size.word_count, size.word_count, size.shops)
        *bounds, total = accumulate(size.published)
        # 1. What a topic has: a family, a number in it, and details from another hash.
        at, u, hashed = self.u(f"{name} family") * total, self.u(f"{name} number"), F.col(f"{name} hash")
        family, count, number = (F.col(f"{name} {of}") for of in ("family", "count", "number"))
        item, region = _modulo(hashed, size.items), _modulo(F.shiftright(hashed, 20), REGIONS)
        what = F.shiftright(hashed, 40)
        # 2. The text of a topic of each family, before and after its number.
        before = [f"{SITE}/users/", f"{SITE}/rooms/", f"{SITE}/feeds/", "stock.s", "sensors/b", "https://shop"]
        after = [
            F.lit(""),
            F.lit(""),
            _one_of(
                number,
                _text("/", item),
                _text("/archive/", item),
                _text("?page=", item, "&lang=en"),
                _text("/", item, "/comments"),
            ),
            _text(".r", region, ".", _one_of(what, F.lit("trade"), F.lit("quote"), F.lit("halt"))),
            _text("/f", region, "/", _one_of(what, F.lit("temperature"), F.lit("humidity"), F.lit("door"))),
            _text(".example.com/items/", item),
        ]
        # 3. Draw the family by weight, and then the number: uniformly for users, and by
        #    Zipf's law for other families.
        drawn = sum(((at >= bound).cast("int") for bound in bounds), F.lit(0))
        rows = rows.withColumns({f"{name} family": drawn, f"{name} hash": self.hash(f"{name} item")})
        rows = rows.withColumn(f"{name} count", _one_of(family, *map(F.lit, counts)))
        uniform = _never_null(F.floor(u * count), 0)
        rows = rows.withColumn(f"{name} number", F.when(family == 0, uniform).otherwise(zipf(u, count, size.skew)))
        return rows.withColumn(name, _text(_one_of(family, *map(F.lit, before)), number, _one_of(family, *after)))

    def with_selectors(self, rows: DataFrame) -> DataFrame:
        """Return `rows` with a column for each selector that a subscriber may declare.

        The columns are own, room, room 2, feed, stock, sensor and shop.
        """
        size = self.workload
        counts = {
            "room": size.room_count,
            "room 2": size.room_count,
            "feed": size.feed_count,
            "stock": size.word_count,
            "sensor": size.word_count,
            "shop": size.shops,
        }
        rows = rows.withColumns({f"{name} number": self.zipf(name, count) for name, count in counts.items()})
        feed, stock, sensor, shop = (F.col(f"{name} number") for name in ("feed", "stock", "sensor", "shop"))
        patterns = {
            "feed": _one_of(
                feed,
                _text(f"{SITE}/feeds/", feed, "/{item}"),
                _text(f"{SITE}/feeds/", feed, "{/path*}"),
                _text(f"{SITE}/feeds/", feed, "{?page,lang}"),
                _text(f"{SITE}/feeds/", feed, "/{+rest}"),
            ),
            "stock": _one_of(
                stock,
                _text("stock.s", stock, ".#"),
                _text("stock.s", stock, ".r", _modulo(stock, REGIONS), ".*"),
                _text("#.s", stock, ".*.trade"),
                _text("*.s", stock, ".*.halt"),
            ),
            "sensor": _one_of(
                sensor,
                _text("sensors/b", sensor, "/#"),
                _text("sensors/b", sensor, "/+/temperature"),
                _text("+/b", sensor, "/f", _modulo(sensor, REGIONS), "/+"),
                _text("sensors/b", sensor, "/+/door"),
            ),
            "shop": _one_of(
                shop,
                _text("https://shop", shop, ".example.com/items/:id"),
                _text("https://shop", shop, ".example.com/*"),
                _text("https://shop", shop, ".example.com/items/:id(\\d+)"),
                _text("http{s}?://shop", shop, ".:domain.com/items/*"),
            ),
        }
        types = {"feed": "uritemplate", "stock": "amqp", "sensor": "mqtt", "shop": "urlpattern"}
        exact = {name: _text(f"{SITE}/rooms/", F.col(f"{name} number")) for name in ("room", "room 2")}
        exact["own"] = F.col("user")
        return rows.withColumns(
            {name: _selector("exact", topic) for name, topic in exact.items()}
            | {name: _selector(types[name], pattern) for name, pattern in patterns.items()}
        )


def zipf(u: Column, count: Column, skew: float) -> Column:
    """Return a number in range(count) for `u` in (0, 1), nearly by Zipf's law.

    0 is the likeliest number.  This is the inverse CDF of the continuous power law
    k**-skew on [1, count + 1), rounded down.  So it needs no sum over `count`, and 0 is
    slightly rarer than by Zipf's law.
    """
    end = (count + 1).cast("double")
    if abs(skew - 1) < 1e-6:  # the other formula would be 0 / 0
        k = F.pow(end, u)
    else:
        k = F.pow(1 + u * (F.pow(end, F.lit(1 - skew)) - 1), F.lit(1 / (1 - skew)))
    # Rounding may leave the range at either end.
    return _never_null(F.greatest(F.least(F.floor(k), count), F.lit(1)), 1) - 1


def _one_of(number: Column, *columns: Column) -> Column:
    """Return the column whose index is `number` modulo the number of columns."""
    at = _modulo(number, len(columns))
    chosen = F.when(at == 0, columns[0])
    for n, column in enumerate(columns[1:-1], 1):
        chosen = chosen.when(at == n, column)
    return chosen.otherwise(columns[-1])


def _modulo(number: Column, divisor: int) -> Column:
    """Return `number` modulo `divisor`, which is never null."""
    return _never_null(F.pmod(number, F.lit(divisor)), 0)


def _text(*parts: Column | str) -> Column:
    """Return the concatenation of columns and strings, as text."""
    return F.concat(*(F.lit(part) if isinstance(part, str) else part.cast("string") for part in parts))


def _array(*elements: tuple[Column, Column]) -> Column:
    """Return the array of the selectors whose condition holds: (condition, selector).

    Uses no lambda, because Spark does not compile those.
    """
    none = F.array().cast(ArrayType(SELECTOR, containsNull=False))
    return F.concat(*(F.when(condition, F.array(element)).otherwise(none) for condition, element in elements))


def _selector(type: str, pattern: Column) -> Column:
    """Return a selector, as a column of SELECTOR."""
    return F.struct(F.lit(type).alias("type"), pattern.alias("pattern"))


def _nulls(*columns: str) -> list[Column]:
    """Return a column of nulls for each 'NAME TYPE'."""
    return [F.lit(None).cast(type).alias(name) for name, _, type in (column.partition(" ") for column in columns)]


def _nullable(column: Column, other: Column) -> Column:
    """Return `column`, which is never `other`, as a column that may be null."""
    return F.nullif(column, other)


def _never_null(column: Column, otherwise: int) -> Column:
    """Return `column`, which is never null, in a form that Spark knows is never null.

    Spark assumes that powers and remainders may be null.  `otherwise` never occurs.
    """
    return F.coalesce(column, F.lit(otherwise).cast("long"))
