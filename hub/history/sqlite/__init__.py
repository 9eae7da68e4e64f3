"""A history in one file, for all processes of one machine: SQLite with a write-ahead
log.

    history        SqliteHistory: the contract of `hub.history.base.History`
      ├► following      yields new entries, of this process and of others
      ├► commits        groups all waiting jobs into one commit
      └► database       the file that is at the path now, and the threads that use it
           └► repair         copies the readable part of a damaged file into a new one
                └► transaction    Writing: append, trim; Reading: find, read
                     └► file           opens, locks, upgrades the file; defines damage
    wakeup         rings the bells of other processes, and listens to this one's

One thread writes.  All jobs that arrive while it writes go into its next transaction,
so many appends share one commit.  Each transaction also forgets some of the oldest
entries.  A few threads read, each on its own connection, and none waits for another.

The tables are open to SQL:  `SELECT * FROM log`.  The file must not be on a file system
that several machines share: its locks need one kernel.
"""
