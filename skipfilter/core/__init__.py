"""The container of values, and for each key the subset that matches it.

    filter     SkipFilter: values, keys, and what is asked of them
      └► entries    for each key, its bitmap and its cursor
           ├► cache      which keys stay
           └► sources    what extends a bitmap: a predicate, or posting lists
                └► values     values with ids, in id order

Belongs here: ids, cursors, bitmaps, and which of them stay in memory.
Does not belong here: what a pattern means (`topics`), or a field (`fields`).
"""
