"""What the jobs compute, as functions of DataFrames.

    report         what happened on a day, as tables
      ├► statistics    the fan-out of updates, in quantiles and bins
      ├► gaps          records that a hub may have lost
      └► generations   whether a result belongs to the present tables
    audit          which sessions could read a topic, by which selector
      └► matching      from updates and sessions to the outputs
           └► partition     the sessions, one range of ids at a time
                └► indexing     the ids that declare each selector
    generate       the updates and sessions of an invented day

Belongs here: plans of Spark, from tables to tables.
Does not belong here: what a worker does with a batch (`skipfilter.bulk`), where tables
are (`tables`), how a report looks (`page`), and options of commands (`cli`).
"""
