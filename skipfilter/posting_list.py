"""PostingList: ids that an index keeps, and that a filter reads.

    no id       NONE, which is shared
    one id      the id itself: most patterns have one subscriber
    several     a bitmap

A BitMap64 of one id takes some 440 bytes, an int 32.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeAlias

from pyroaring import BitMap64

from skipfilter.errors import not_copied

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

Ids: TypeAlias = int | BitMap64
"""One id, or a bitmap of any number of them."""

NONE: Final = BitMap64()
"""No ids.  It must not be changed."""


class PostingList:
    """A set of ids that changes in place, such as those of an index of your own.

    Not thread-safe: a filter calls its index under its lock.  `ids` is for reading
    only, and another object after a change.  Raises TypeError if a list is copied or
    pickled.

    >>> its = PostingList()
    >>> its.add(7), list(its), its.ids
    (None, [7], 7)
    """

    __slots__ = ("ids",)
    __reduce__ = not_copied

    def __init__(self, ids: Ids = NONE) -> None:
        self.ids: Ids = ids

    def add(self, id: int) -> None:
        """Add an id.  O(1) for the first two, and then as a roaring bitmap does."""
        ids = self.ids
        if isinstance(ids, int):
            if ids != id:
                self.ids = BitMap64((ids, id))
        elif ids:
            ids.add(id)
        else:
            self.ids = id

    def update(self, more: Ids) -> None:
        """Add ids.  Takes as long as an OR of bitmaps."""
        if isinstance(more, int):
            self.add(more)
        elif isinstance(self.ids, int) or not self.ids:
            self.ids = compact(union((self.ids, more)))
        else:
            self.ids |= more

    def keep(self, these: BitMap64) -> None:
        """Remove all ids but these.  Takes as long as an AND of bitmaps."""
        ids = self.ids
        if isinstance(ids, int):
            if ids not in these:
                self.ids = NONE
        elif ids:
            ids &= these
            self.ids = compact(ids)

    def discard(self, id: int) -> None:
        """Remove an id if it is there.  Takes as long as `add`."""
        ids = self.ids
        if isinstance(ids, int):
            if ids == id:
                self.ids = NONE
        else:
            ids.discard(id)
            if len(ids) < 2:
                self.ids = compact(ids)

    def copy(self) -> Ids:
        """Return the ids, which do not change with the list.  O(bitmap)."""
        return self.ids if isinstance(self.ids, int) else self.ids.copy()

    def min(self) -> int:
        """Return the least id.  Raises ValueError if there is none.  Takes O(1)."""
        return self.ids if isinstance(self.ids, int) else self.ids.min()

    def max(self) -> int:
        """Return the greatest id.  Raises ValueError if there is none.  Takes O(1)."""
        return self.ids if isinstance(self.ids, int) else self.ids.max()

    def __len__(self) -> int:
        return 1 if isinstance(self.ids, int) else len(self.ids)

    def __iter__(self) -> Iterator[int]:
        return iter((self.ids,) if isinstance(self.ids, int) else self.ids)


def compact(ids: BitMap64) -> Ids:
    """Return the same ids without a bitmap, if there are fewer than two."""
    return ids if len(ids) > 1 else ids.min() if ids else NONE


def as_bitmap(ids: Ids) -> BitMap64:
    """Return the same ids, as a new bitmap."""
    return BitMap64((ids,)) if isinstance(ids, int) else ids.copy()


def union(some: Iterable[Ids]) -> BitMap64:
    """Return the union of any ids, as a new bitmap."""
    found = BitMap64()
    for ids in some:
        if isinstance(ids, int):
            found.add(ids)
        else:
            found |= ids  # faster than BitMap64.union, however many there are
    return found
