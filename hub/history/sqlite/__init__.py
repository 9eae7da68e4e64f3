"""A history in one SQLite file, for all processes of one machine.

    history        SqliteHistory: the contract of `hub.history.base.History`
      ├► following      yields new entries, of this process and of others
      ├► commits        runs all waiting jobs in one commit
      └► database       the file that is at the path now, and the threads that use it
           └► repair         copies the readable part of a damaged file into a new one
                └► transaction    Writing: append, trim; ReadTransaction: find, read
                     └► file           opens, locks, upgrades the file; defines damage
    wakeup         notifies other processes of new entries, and is notified by them

One thread writes.  All jobs that arrive while it writes run in its next transaction, so
that many appends share one commit.  Each transaction also forgets some of the oldest
entries.  A few threads read, each on its own connection, and do not wait for each other
or for the writer: the database has a write-ahead log.

The tables can be read with SQL:  `SELECT * FROM log`.  The file must not be on a file
system that several machines share, because its locks work within one kernel only.
"""
