"""The history in one file, for all processes of one machine: `history.SqliteHistory`."""
