"""A URL Pattern matches URLs.

    https://example.com/books/:id          one segment
    https://*.example.com/books/*          any text
    https://example.com/books/:id(\\d+)     a regular expression

Both the pattern and the topic are normalised as URLs, so `https://EXAMPLE.com:443/a/../b`
is `https://example.com/b`.  Relative ones are resolved against `base_url`.

The package `urlpattern`, of the extra of that name, does the matching.  Its
regular expressions do not backtrack, but a topic costs its length times the size of the
compiled pattern: a{60000} is as large as it says, a Unicode class such as \\w takes
hundreds of kilobytes, and `*` and `:name` are regular expressions too.  So a pattern
must be small, unless the caller trusts it and sets `regexp_groups`:

    at most 12    of  * + ? :  outside of parentheses and  * + ? . [ \\ inside, together
            64    characters inside of parentheses
             2    backslashes inside, not counting \\d
            no    { inside

A character after a backslash does not count.  Most patterns compile in tenths of a
millisecond and take some 100 KB.

Source: the WHATWG URL Pattern Standard.
"""

from __future__ import annotations

from dataclasses import InitVar, dataclass, field
from typing import TYPE_CHECKING, Final

from skipfilter.errors import PatternError
from skipfilter.text import missing

if TYPE_CHECKING:
    from urlpattern import URLPattern

MAX_SIGNS: Final = 12
"""The maximum number of signs that repeat or choose.

At each byte of a topic, each of them may be one more state of the pattern.
"""
MAX_REGEXPS: Final = 64
"""The maximum number of characters of all regular expressions together."""
MAX_CLASSES: Final = 2
"""The maximum number of backslashes in them, without \\d; most are classes of many
ranges."""


@dataclass(frozen=True, slots=True)
class UrlPattern:
    """Matches the topics that are URLs of `pattern`.

    Raises PatternError if the standard refuses the pattern, if it is relative and there
    is no `base_url`, or if it is not small and `regexp_groups` is False; ImportError if
    the package `urlpattern` is missing.
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
            raise ImportError(missing("a URL Pattern", "urlpattern", "urlpattern")) from error
        try:
            compiled = URLPattern(self.pattern, self.base_url)
        except (ValueError, TypeError) as error:  # TypeError: a lone surrogate
            reason = "it is not Unicode" if isinstance(error, TypeError) else str(error)
            raise PatternError("urlpattern", self.pattern, reason) from error
        object.__setattr__(self, "compiled", compiled)

    def match(self, topic: str) -> bool:
        """Return whether `topic` is a URL that the pattern matches."""
        try:
            return self.compiled.test(topic, self.base_url)
        except TypeError:  # a lone surrogate
            return False

    def why_not(self, topic: str) -> str:
        """Return that the URL does not match; the package gives no reason."""
        return "as a URL it is none of this pattern"


def _check_small(pattern: str) -> None:
    """Raise PatternError if `pattern` is not small.

    Parentheses are found as the tokenizer of the standard finds them.
    """
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
