"""Near misses: with which small change would a pattern match a topic?

    exact   http://a.com/user/42    https://a.com/user/42    with 'https' for 'http'
    exact   http://a.com/user/42    http://a.com/users/42    with 'users' for 'user'
    exact   http://a.com/user/id    http://a.com/user/42     with {id} for id

Guesses are cheap texts.  A guess counts only if its pattern, compiled, matches the
topic: so no near miss is false, and no rule of matching stands here.

Belongs here: the mistakes that people make with patterns.
Does not belong here: why a pattern does not match (`why_not` of each matcher).
"""

from __future__ import annotations

from difflib import SequenceMatcher
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote

from skipfilter.text import shown

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from skipfilter.topics.matchers import Matcher

    Guess = tuple[str, str, str, str]
    """What the change is, and the matcher type, pattern and topic to try."""

MAX_GUESSES: Final = 64
"""Guesses that are compiled for one explanation, at most."""
MAX_LENGTH: Final = 2_000
"""Characters of a pattern, and of a topic, beyond which nothing is guessed."""
MAX_WORDS: Final = 32
"""Words that a pattern, and a topic, may have for guesses about words."""
MAX_SHIFT: Final = 2
"""Words by which the place of a similar word may differ, at most: a wildcard may stand
for several, or none."""
MAX_WORD: Final = 32
"""Characters of a word that is compared with others, at most."""
_SIMILAR: Final = 0.7
"""How similar two words are if one may stand for the other by mistake; 1 is equal."""
_EDGES: Final = frozenset("/.:?&=#")
"""Characters between words."""
_NAMES: Final = frozenset(["id", "key", "name", "slug", "uuid"])
"""Words that hardly stand in a topic, but often in the braces of a template."""


def near_miss(matcher_type: str, pattern: str, topic: str, compile: Callable[[str, str], Matcher | None]) -> str | None:
    """Return the change with which a pattern that does not match `topic` would, as in
    "with 'https' for 'http'"; None if there is no such small change.

    `compile` returns the matcher of a type and a pattern, or None if there is none.
    Compiles and tests up to MAX_GUESSES patterns.
    """
    if len(pattern) > MAX_LENGTH or len(topic) > MAX_LENGTH:
        return None
    tried: set[tuple[str, str, str]] = set()
    for change, its_type, its_pattern, its_topic in _guesses(matcher_type, pattern, topic):
        if len(tried) == MAX_GUESSES:
            break
        if (guess := (its_type, its_pattern, its_topic)) in tried:
            continue
        tried.add(guess)
        try:
            matcher = compile(its_type, its_pattern)
        except (ValueError, ImportError):  # a PatternError, or that of a user's own type
            continue
        if matcher is not None and matcher.match(its_topic):
            return change
    return None


def _guesses(matcher_type: str, pattern: str, topic: str) -> Iterator[Guess]:
    """Yield guesses, the more special ones first."""
    # 1. What a shell, a URL or a form has done to the pattern.
    if pattern != (stripped := pattern.strip()):
        yield "without the space around it", matcher_type, stripped, topic
    if pattern != (decoded := unquote(pattern)):
        yield "if it were decoded: it is encoded once too often", matcher_type, decoded, topic
    if " " in pattern:
        spaceless = pattern.replace(" ", "+")
        for type in _types(matcher_type, spaceless):
            yield "with '+' for ' ': in a URL, + must be written %2B", type, spaceless, topic
    if matcher_type == "mqtt" and pattern.endswith("/"):
        yield "with # at its end: in a URL, # must be written %23", matcher_type, f"{pattern}#", topic
    for sign, written in (("&", "%26"), ("#", "%23")):
        if topic.startswith(pattern + sign):
            change = f"with {shown(topic[len(pattern) :])} at its end: in a URL, {sign} must be written {written}"
            yield change, matcher_type, topic, topic
    # 2. Another type.
    for type in _types(matcher_type, pattern):
        if type != matcher_type:
            yield f"with the matcher type {type}", type, pattern, topic
    if matcher_type == "uritemplate" and "{" in pattern:
        yield "with {+…} for {…}, which takes slashes", matcher_type, _reserved(pattern), topic
    # 3. The two ends.
    ending = pattern[:-1] if pattern.endswith("/") else f"{pattern}/"
    yield f"{'without the' if pattern.endswith('/') else 'with a'} slash at its end", matcher_type, ending, topic
    scheme, mark, rest = topic.partition("://")
    if mark:
        own, own_mark, own_rest = pattern.partition("://")
        if own_mark and own != scheme:
            yield f"with {shown(scheme)} for {shown(own)}", matcher_type, f"{scheme}://{own_rest}", topic
        origin = f"{scheme}://{rest.partition('/')[0]}"
        if not own_mark:
            missing = origin if pattern.startswith("/") else f"{origin}/"
            yield f"with {shown(missing)} before it", matcher_type, missing + pattern, topic
    elif "://" in pattern:
        start = pattern.index("://") + 3
        slash = pattern.find("/", start)
        if slash > 0:
            for end in (slash, slash + 1):
                yield f"without {shown(pattern[:end])} before it", matcher_type, pattern[end:], topic
    # 4. Case, and percent-encoding.
    if pattern != pattern.lower() or topic != topic.lower():
        yield "if the case of letters did not count", matcher_type, pattern.lower(), topic.lower()
    if "%" in pattern or "%" in topic:
        yield "if both had the same percent-encoding", matcher_type, unquote(pattern), unquote(topic)
    # 5. Words.
    yield from _word_guesses(matcher_type, pattern, topic)


def _word_guesses(matcher_type: str, pattern: str, topic: str) -> Iterator[Guess]:
    """Yield guesses that change a word of the pattern into one of the topic."""
    words, others = _split(pattern), _split(topic)
    if max(len(words), len(others)) > 2 * MAX_WORDS:
        return
    # Words side by side, if both have the same separators.
    differing = [n for n, (a, b) in enumerate(zip(words, others, strict=False)) if a != b]
    is_aligned = len(words) == len(others) and all(n % 2 == 0 for n in differing)
    # a. A similar word, at about the same place.
    for n, word in enumerate(words):
        for other in dict.fromkeys(others[max(0, n - 2 * MAX_SHIFT) : n + 2 * MAX_SHIFT + 1]):
            if n % 2 == 0 and word != other and _are_similar(word, other):
                yield f"with {shown(other)} for {shown(word)}", matcher_type, _with(words, {n: other}), topic
    if not is_aligned:
        return
    # b. Braces around all words that differ.
    if all(_may_be_name(words[n], others[n]) for n in differing):
        braced = {n: f"{{{words[n]}}}" for n in differing}
        bare = ", ".join(words[n] for n in differing)
        change = (
            f"with {', '.join(braced.values())} for {bare}, as a URI template: "
            "shells, and curl without -g, take braces away"
        )
        yield change, "uritemplate", _with(words, braced), topic
    # c. The only word that differs.
    if len(differing) == 1:
        (n,) = differing
        if words[n] and others[n]:
            yield f"with {shown(others[n])} for {shown(words[n])}", matcher_type, _with(words, {n: others[n]}), topic


def _types(matcher_type: str, pattern: str) -> list[str]:
    """Return a matcher type, and those whose signs a pattern has."""
    found = [matcher_type]
    if "{" in pattern:
        found.append("uritemplate")
    if "://" in pattern and ("*" in pattern or "/:" in pattern):
        found.append("urlpattern")
    elif "/" in pattern and ("+" in pattern or "#" in pattern):
        found.append("mqtt")
    elif "." in pattern and ("*" in pattern or "#" in pattern):
        found.append("amqp")
    return found


def _reserved(template: str) -> str:
    """Return a template whose simple expressions take reserved characters, too."""
    first, *rest = template.split("{")
    return first + "".join("{" + ("" if part[:1] in "+#./;?&" else "+") + part for part in rest)


def _are_similar(word: str, other: str) -> bool:
    if not (2 < len(word) <= MAX_WORD and 2 < len(other) <= MAX_WORD) or word.isdigit() or other.isdigit():
        return False
    matcher = SequenceMatcher(None, word.lower(), other.lower(), autojunk=False)
    ratios = matcher.real_quick_ratio, matcher.quick_ratio, matcher.ratio
    return all(ratio() >= _SIMILAR for ratio in ratios)


def _may_be_name(word: str, other: str) -> bool:
    """Return whether a word may have been the name in the braces of a template."""
    return word.isidentifier() and (word in _NAMES or any(char.isdigit() for char in other))


def _split(text: str) -> list[str]:
    """Return the words of a text and, between them, the single characters that separate
    them: words have even indices.
    """
    words = [""]
    for char in text:
        if char in _EDGES:
            words += [char, ""]
        else:
            words[-1] += char
    return words


def _with(words: list[str], changed: dict[int, str]) -> str:
    """Return the text of words, some of them changed."""
    return "".join(changed.get(n, word) for n, word in enumerate(words))
