"""Inputs: what the tables of updates and of sessions have in common.

One query of both tables finds it, because every command needs it first.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from pyspark.sql import functions as F  # noqa: N812

from skipfilter.spark.errors import BadInput

if TYPE_CHECKING:
    from collections.abc import Collection
    from typing import Self

    from pyspark.sql import DataFrame

    from skipfilter.bulk.matching import By

GENERATED: Final = "generated "
"""The beginning of the epoch of generated rows, which names their workload."""


class Inputs(NamedTuple):
    """The tables of updates and of sessions, and how they can be matched."""

    updates: DataFrame
    sessions: DataFrame
    by: By
    """How they are matched by default.

    It is "position" if there are updates and every row has one, otherwise "time".
    """
    hubs: list[str]
    """The URLs of the sessions' hubs, in order."""

    @classmethod
    def of(cls, updates: DataFrame, sessions: DataFrame) -> Self:
        """Return the inputs.  Runs one job, which reads a few columns of both tables.

        Raises BadInput if only one of the tables is from a run of `generate`.
        """
        tables = {"updates": (updates, "position"), "sessions": (sessions, "after")}
        summaries = [
            table.agg(
                F.lit(name).alias("name"),
                F.count("*").alias("rows"),
                F.count(position).alias("placed"),
                F.collect_set("hub").alias("hubs"),
                F.collect_set(F.coalesce("epoch", F.lit(""))).alias("epochs"),
            )
            for name, (table, position) in tables.items()
        ]
        found = {summary.name: summary for summary in summaries[0].unionAll(summaries[1]).collect()}
        require_one_run(*(found[name].epochs for name in tables))
        is_placed = found["updates"].rows > 0 and all(found[name].rows == found[name].placed for name in tables)
        return cls(updates, sessions, "position" if is_placed else "time", sorted(found["sessions"].hubs))

    def hub(self) -> str | None:
        """Return the URL of the sessions' hub, or None if no session has one.

        Raises BadInput if there are several.
        """
        if len(self.hubs) > 1:
            raise BadInput(
                f"sessions: they belong to several hubs, {self.hubs[0]} and {self.hubs[1]}: choose one with --base-url"
            )
        return self.hubs[0] if self.hubs else None


def require_one_run(published: Collection[str], connected: Collection[str]) -> None:
    """Raise BadInput if only one of the tables is from this run of `generate`.

    Takes the epochs of the updates and of the sessions.  If a run fails between its
    tables, they are of different workloads.
    """
    made = [{epoch for epoch in epochs if epoch.startswith(GENERATED)} for epochs in (published, connected)]
    # A table without rows fits any other.
    if published and connected and made[0] != made[1]:
        raise BadInput("updates and sessions are not of one run of `generate`, which writes both")
