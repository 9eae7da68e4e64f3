"""The history in one file, for all processes of one machine: SQLite with a write-ahead log.

    history        SqliteHistory: what `hub.history.base.History` promises
      ├► following      hands new entries to those who follow, from here and from other processes
      ├► commits        has all jobs that wait share one commit
      └► database       the file that is there now, and the threads that read and write it
           └► repair         what can be read of a damaged file goes on in a new one
                └► transaction    Writing: append, trim;  Reading: find, read;  rows
                     └► file           opens, locks and upgrades the file; which errors are damage
    wakeup         rings the bells of other processes, and listens to the own one

One thread writes.  All that has come while it was writing goes into its next transaction, so many appends share one
commit, and so does what retention forgets: the oldest entries, some at a time.  A few threads read, each with a
connection of its own, and nobody waits for another.

The tables are open to SQL: `SELECT * FROM log`.  Not for a file system of another machine: its locks need one kernel.
"""
