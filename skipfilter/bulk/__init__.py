"""Match tables of updates with tables of sessions, in Arrow and without Spark.

The result is which session received which update, or would have received it.

    matching           from updates and sessions to an output, in one process
      ├► ranges            the sessions, one range of ids at a time
      │    └► wide_selectors   widely shared selectors, and an index of them
      └► deliveries        the sessions that receive each update
           └► posting_lists · bitmaps     the ids that declare each selector

    outputs · columns     what may be asked for; what the tables are, column by column

skipfilter.spark runs the same code on a cluster, batch by batch.

Belongs here: what a worker does with batches of Arrow, and what the tables are.
Does not belong here: Spark, files and commands (`skipfilter.spark`).
The package needs NumPy and PyArrow, which the extra `spark` installs.
"""

from __future__ import annotations

from skipfilter.errors import names_extra

with names_extra("skipfilter.bulk", "spark"):
    from skipfilter.bulk.errors import BadInput, BroadcastLimit, PipelineError
    from skipfilter.bulk.matching import match

__all__ = ["BadInput", "BroadcastLimit", "PipelineError", "match"]
