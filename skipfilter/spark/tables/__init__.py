"""Where the tables are, and what is in them.

    local      mistakes that show in directories, before Spark has started
    leftovers  which hidden directories belong to a process that has ended
    files      reads and replaces tables; a replacement that fails loses nothing
    inputs     what the tables of updates and of sessions have in common
    schemas    the tables, column by column

Belongs here: paths, columns and their types.
Does not belong here: what is computed from the rows (`jobs`).
"""
