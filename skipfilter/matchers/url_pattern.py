"""A topic matches the URL Pattern that it is a URL of.

    https://example.com/books/:id          one segment
    https://*.example.com/books/*          anything
    https://example.com/books/:id(\\d+)     a regular expression

Both the pattern and the topic are read as URLs, so `https://EXAMPLE.com:443/a/../b` is `https://example.com/b`.
Relative ones are resolved against `base_url`.

The package `urlpattern` does the matching: `pip install skipfilter[urlpattern]`.  Its regular expressions do not
backtrack, but a topic costs its length times the size of what the pattern becomes: a{60000} is as large as it says,
a class of Unicode such as \\w takes hundreds of kilobytes, and `*` and `:name` are regular expressions, too.  So a
pattern is refused, unless it is trusted with `regexp_groups=True`, where it is not small:

    at most 12    of  * + ? :  outside of parentheses and  * + ? . [ \\  inside, together
            64    characters inside
             2    backslashes inside, \\d aside
            no    { inside

What a backslash escapes does not count.  Most patterns compile in tenths of a millisecond and take some 100 KB.

Source: the WHATWG URL Pattern Standard.
"""

from __future__ import annotations

from dataclasses import InitVar, dataclass, field
from typing import TYPE_CHECKING, Final

from skipfilter.errors import PatternError

if TYPE_CHECKING:
    from urlpattern import URLPattern

MAX_SIGNS: Final = 12
"""What repeats or chooses: each may be one more place of the pattern to be at, at every byte of a topic."""
MAX_REGEXPS: Final = 64
"""Characters of all regular expressions together."""
MAX_CLASSES: Final = 2
"""Backslashes in them, \\d aside: most of the others are classes with many ranges."""


@dataclass(frozen=True, slots=True)
class UrlPattern:
    """Matches the topics that are URLs of `pattern`.

    Raises PatternError where the standard refuses it, where it is relative and there is no `base_url`, and where
    it is not small, without `regexp_groups`; ImportError without the package.

    >>> UrlPattern("https://example.com/books/:id").match("https://example.com/books/1")
    True
    """

    pattern: str
    base_url: str | None = None
    regexp_groups: InitVar[bool] = field(default=False, kw_only=True)
    compiled: URLPattern = field(init=False, repr=False, compare=False)

    def __post_init__(self, regexp_groups: bool) -> None:
        if not regexp_groups:
            _check_small(self.pattern)
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


def _check_small(pattern: str) -> None:
    """Raise PatternError where `pattern` is not small.  Its parentheses are those of the standard's tokenizer."""
    signs = regexps = classes = repeats = depth = 0
    chars = iter(pattern)
    for char in chars:
        escaped = next(chars, "") if char == "\\" else ""
        depth -= depth > 0 and char == ")"
        signs += char in ("*+?.[\\" if depth else "*+?:")
        if depth:
            regexps += 1 + len(escaped)
            classes += escaped not in ("", "d")
            repeats += char == "{"
        depth += char == "("
    if signs > MAX_SIGNS:
        reason = f"it has more than {MAX_SIGNS} of * + ? : outside of parentheses and * + ? . [ \\ inside"
    elif regexps > MAX_REGEXPS:
        reason = f"its regular expressions have more than {MAX_REGEXPS} characters"
    elif classes > MAX_CLASSES:
        reason = f"its regular expressions have more than {MAX_CLASSES} backslashes, \\d aside"
    elif repeats:
        reason = "its regular expressions have a {"
    else:
        return
    raise PatternError("urlpattern", pattern, reason)
