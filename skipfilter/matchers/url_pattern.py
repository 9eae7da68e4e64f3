"""A topic matches the URL Pattern that it is a URL of.

    https://example.com/books/:id          one segment
    https://*.example.com/books/*          anything
    https://example.com/books/:id(\\d+)     a regular expression

Both the pattern and the topic are read as URLs, so `https://EXAMPLE.com:443/a/../b` is `https://example.com/b`.
Relative ones are resolved against `base_url`.

The package `urlpattern` does the matching: `pip install skipfilter[urlpattern]`.  Its regular expressions do not
backtrack, but a repetition such as a{60000} makes one as large and as slow as it says.  A pattern without any
compiles in tenths of a millisecond, and takes some 100 KB: whoever takes patterns from strangers bounds their number,
and refuses regular expressions, as SelectorIndex does.

Source: the WHATWG URL Pattern Standard.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from skipfilter.errors import PatternError

if TYPE_CHECKING:
    from urlpattern import URLPattern


@dataclass(frozen=True, slots=True)
class UrlPattern:
    """Matches the topics that are URLs of `pattern`.

    Raises PatternError where the standard refuses it, and where it is relative and there is no `base_url`;
    ImportError without the package.

    >>> UrlPattern("https://example.com/books/:id").match("https://example.com/books/1")
    True
    """

    pattern: str
    base_url: str | None = None
    compiled: URLPattern = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        try:
            from urlpattern import URLPattern
        except ImportError as error:
            raise ImportError("URL Patterns need the package urlpattern: pip install skipfilter[urlpattern]") from error
        try:
            compiled = URLPattern(self.pattern, self.base_url)
        except (ValueError, TypeError) as error:  # TypeError: a lone surrogate
            reason = "it is not Unicode" if isinstance(error, TypeError) else str(error)
            raise PatternError("urlpattern", self.pattern, reason) from error
        object.__setattr__(self, "compiled", compiled)

    def match(self, topic: str) -> bool:
        try:
            return self.compiled.test(topic, self.base_url)
        except TypeError:  # a lone surrogate
            return False

    def why_not(self, topic: str) -> str:
        return "as a URL it is none of this pattern"
