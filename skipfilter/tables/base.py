"""What an index asks of a table: the patterns of one matcher type, found by the topics that match them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from pyroaring import BitMap64

if TYPE_CHECKING:
    from collections.abc import Iterable

    from skipfilter.matchers import Matcher


class PostingList:
    """Where `table` keeps the ids that want one language, whatever pattern says it.

    `path` is how the table finds it again to remove it.
    """

    __slots__ = ("ids", "path", "table")

    def __init__(self, table: Table, path: Any) -> None:
        self.ids = BitMap64()
        self.table = table
        self.path = path


class Table(Protocol):
    """The patterns of one matcher type that somebody wants.

    Patterns of one language may share a posting list, and equal patterns do.  `verified` counts the patterns that were
    asked one by one so far.
    """

    verified: int

    def compile(self, pattern: str, /) -> Matcher: ...

    def accepts(self, matcher: Matcher) -> bool:
        """Whether `matcher`, which somebody else has compiled, is what `compile` makes of its pattern."""
        ...

    def declare(self, matcher: Matcher) -> PostingList:
        """The posting list of a matcher of this type, made if need be."""
        ...

    def remove(self, postings: PostingList) -> None:
        """Forget a posting list, whose ids are all gone, and everything that was there for it alone."""
        ...

    def find(self, topic: str) -> Iterable[PostingList]:
        """The posting lists whose patterns match `topic`, each once."""
        ...

    def posting_lists(self) -> Iterable[PostingList]:
        """All of them."""
        ...

    def _check(self) -> None:
        """Assert every invariant; for tests."""
        ...
