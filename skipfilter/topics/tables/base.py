"""The interface of a table: all patterns of one matcher type, found by a topic."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from skipfilter.posting_list import PostingList

if TYPE_CHECKING:
    from collections.abc import Iterable

    from skipfilter.topics.matchers import Matcher


class SelectorPostings(PostingList):
    """The ids of the values that declare one language, under whatever pattern.

    `table` is the table that holds it.  `declared` is the pattern that came first, as
    its text, or compiled as the caller has declared it.
    """

    __slots__ = ("declared", "table")

    def __init__(self, table: Table, declared: str | Matcher) -> None:
        super().__init__()
        self.table = table
        self.declared = declared

    __hash__ = object.__hash__

    @property
    def pattern(self) -> str:
        """The text of the pattern that came first."""
        return self.declared if isinstance(self.declared, str) else self.declared.pattern

    @property
    def matcher(self) -> Matcher:
        """The matcher of that pattern.  Compiles it, if it is text."""
        return self.table.compile(self.declared) if isinstance(self.declared, str) else self.declared


class Table(Protocol):
    """The patterns of one matcher type that at least one value declares.

    Equal patterns share a posting list; patterns with the same meaning may share one.
    """

    @property
    def matcher_type(self) -> str:
        """The name of the type."""
        ...

    @property
    def verified(self) -> int:
        """The number of patterns that were tested one by one so far."""
        ...

    @property
    def size(self) -> int:
        """About how many bytes the table takes, without the posting lists."""
        ...

    def compile(self, pattern: str, /) -> Matcher:
        """Return the matcher of `pattern`.

        Raises PatternError if the type refuses it.
        """
        ...

    def accepts(self, matcher: Matcher) -> bool:
        """Return whether a matcher that the caller compiled equals the table's own."""
        ...

    def declare(self, declared: str | Matcher) -> SelectorPostings:
        """Return the posting list of a pattern, and make it if it is new.

        The pattern is its text, or a matcher that the table accepts.  Raises
        PatternError if the type refuses it.
        """
        ...

    def remove(self, postings: SelectorPostings) -> None:
        """Forget a posting list without ids, and all that only it needed."""
        ...

    def find(self, topic: str) -> Iterable[SelectorPostings]:
        """Return the posting lists whose patterns match `topic`, without repeats."""
        ...

    def posting_lists(self) -> Iterable[SelectorPostings]:
        """Return all posting lists."""
        ...

    def _check(self) -> None:
        """Assert all invariants; for tests."""
        ...
