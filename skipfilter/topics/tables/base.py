"""The interface of a table: all patterns of one matcher type, found by a topic."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from pyroaring import BitMap64

if TYPE_CHECKING:
    from collections.abc import Iterable

    from skipfilter.topics.matchers import Matcher


class PostingList:
    """The ids of the values that declare one language, under whatever pattern.

    `table` is the table that holds it, and `path` is how the table finds it again.
    """

    __slots__ = ("ids", "path", "table")

    def __init__(self, table: Table, path: Any) -> None:
        self.ids = BitMap64()
        self.table = table
        self.path = path


class Table(Protocol):
    """The patterns of one matcher type that at least one value declares.

    Equal patterns share a posting list; patterns with the same meaning may share one.
    """

    @property
    def verified(self) -> int:
        """The number of patterns that were tested one by one so far."""
        ...

    def compile(self, pattern: str, /) -> Matcher:
        """Return the matcher of `pattern`.

        Raises PatternError if the type refuses it.
        """
        ...

    def accepts(self, matcher: Matcher) -> bool:
        """Return whether a matcher that the caller compiled equals the table's own."""
        ...

    def declare(self, matcher: Matcher) -> PostingList:
        """Return the posting list of a matcher of this type, and make it if it
        is new.
        """
        ...

    def remove(self, postings: PostingList) -> None:
        """Forget a posting list without ids, and all that only it needed."""
        ...

    def find(self, topic: str) -> Iterable[PostingList]:
        """Return the posting lists whose patterns match `topic`, without repeats."""
        ...

    def posting_lists(self) -> Iterable[PostingList]:
        """Return all posting lists."""
        ...

    def _check(self) -> None:
        """Assert all invariants; for tests."""
        ...
