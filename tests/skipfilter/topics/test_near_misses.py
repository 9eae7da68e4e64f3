"""Near misses: each is a change with which the pattern does match, and people's usual
mistakes are found.
"""

from __future__ import annotations

import random
from difflib import SequenceMatcher
from functools import partial

import pytest

from skipfilter import Exact, PatternError, SelectorIndex, SkipFilter, compile_matcher
from skipfilter.topics import near_misses
from skipfilter.topics.near_misses import MAX_GUESSES, MAX_LENGTH, near_miss

BASE = "https://e.com/hub"
compile = partial(compile_matcher, base_url=BASE)


def miss(matcher_type: str, pattern: str, topic: str) -> str | None:
    assert not compile(matcher_type, pattern).match(topic)
    return near_miss(matcher_type, pattern, topic, compile)


@pytest.mark.parametrize(
    ("matcher_type", "pattern", "topic", "change"),
    [
        ("exact", "http://a.com/b/1", "https://a.com/b/1", "with 'https' for 'http'"),
        ("uritemplate", "https://a.com/b/{id}", "http://a.com/b/1", "with 'http' for 'https'"),
        ("exact", "https://a.com/b", "https://a.com/b/", "with a slash at its end"),
        ("uritemplate", "https://a.com/{b}/", "https://a.com/b", "without the slash at its end"),
        ("exact", "https://a.com/user/42", "https://a.com/users/42", "with 'users' for 'user'"),
        ("uritemplate", "/user/{id}/mail", "/users/42/mail", "with 'users' for 'user'"),
        ("mqtt", "sensor/+/temp", "sensors/1/temp", "with 'sensors' for 'sensor'"),
        ("amqp", "stocks.*.nyse", "stock.ibm.nyse", "with 'stock' for 'stocks'"),
        ("urlpattern", "https://a.com/user/:id", "https://a.com/users/1", "with 'users' for 'user'"),
        ("exact", "https://a.com/Users/1", "https://a.com/users/1", "if the case of letters did not count"),
        ("exact", "a%2Fb", "a%2fb", "if the case of letters did not count"),
        ("exact", "https://a.com/é", "https://a.com/%C3%A9", "if both had the same percent-encoding"),
        ("exact", "https://a.com/a%2Fb", "https://a.com/a/b", "if it were decoded: it is encoded once too often"),
        ("exact", "https%3A%2F%2Fa.com%2F1", "https://a.com/1", "if it were decoded: it is encoded once too often"),
        ("exact", "/books/1 ", "/books/1", "without the space around it"),
        ("exact", "/books/{id}", "/books/1", "with the matcher type uritemplate"),
        ("exact", "sensors/#", "sensors/1/temp", "with the matcher type mqtt"),
        ("exact", "stock.#", "stock.ibm", "with the matcher type amqp"),
        ("uritemplate", "https://a.com/books/:id", "https://a.com/books/1", "with the matcher type urlpattern"),
        ("exact", "/books/1", "https://a.com/books/1", "with 'https://a.com' before it"),
        ("exact", "books/1", "https://a.com/books/1", "with 'https://a.com/' before it"),
        ("exact", "https://a.com/books/1", "/books/1", "without 'https://a.com' before it"),
        ("exact", "https://a.com/books/1", "books/1", "without 'https://a.com/' before it"),
        ("exact", "https://a.com:443/b", "https://a.com:8443/b", "with '8443' for '443'"),
        ("exact", "https://a.com/b/1", "https://a.com/b/2", "with '2' for '1'"),
        ("mqtt", "sensors/", "sensors/1", "with # at its end: in a URL, # must be written %23"),
        ("mqtt", "sensors/ /temp", "sensors/1/temp", "with '+' for ' ': in a URL, + must be written %2B"),
        ("exact", "/f{ path}", "/f/a", "with '+' for ' ': in a URL, + must be written %2B"),
        ("exact", "/a?b=1", "/a?b=1&c=2", "with '&c=2' at its end: in a URL, & must be written %26"),
        ("exact", "/a", "/a#b", "with '#b' at its end: in a URL, # must be written %23"),
        (
            "exact",
            "https://a.com/books/id",
            "https://a.com/books/42",
            "with {id} for id, as a URI template: shells, and curl without -g, take braces away",
        ),
        (
            "exact",
            "/users/user/books/id",
            "/users/u1/books/42",
            "with {user}, {id} for user, id, as a URI template: shells, and curl without -g, take braces away",
        ),
        ("uritemplate", "https://a.com/{id}", "https://a.com/b/1", "with {+…} for {…}, which takes slashes"),
        ("uritemplate", "/{id}{?page}", "/b/1?page=2", "with {+…} for {…}, which takes slashes"),
        ("exact", "/books/1", "/films/2", None),
        ("exact", "/a", "/b/c", None),
        ("amqp", "stock.*", "/books/1", None),
        ("exact", "x" * MAX_LENGTH + "/", "x" * MAX_LENGTH, None),
        ("exact", "a/" * 40 + "user", "a/" * 40 + "users", None),
    ],
)
def test_a_near_miss_names_the_change(matcher_type: str, pattern: str, topic: str, change: str | None) -> None:
    assert miss(matcher_type, pattern, topic) == change


def test_a_near_miss_is_never_false(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each one that is returned was compiled and matches; at most MAX_GUESSES are."""
    matched: list[tuple[str, str, str]] = []
    compiled: list[tuple[str, str]] = []

    def checked(matcher_type: str, pattern: str) -> Exact | None:
        compiled.append((matcher_type, pattern))
        return compile(matcher_type, pattern)  # type: ignore[return-value]

    guesses = near_misses._guesses

    def noted(*asked: str) -> object:
        for guess in guesses(*asked):
            matched.append(guess[1:])
            yield guess

    monkeypatch.setattr(near_misses, "_guesses", noted)
    source = random.Random(75)
    words = ["user", "users", "id", "42", "{id}", "+", "#", "*", ":id", "A", "a", "%2F", "b c", ""]
    found = 0
    for _ in range(3_000):
        matcher_type = source.choice(["exact", "uritemplate", "urlpattern", "amqp", "mqtt"])
        start = source.choice(["", "/", "https://a.com/", "http://a.com/"])
        chosen = source.choices(words, k=source.randint(1, 4))
        pattern = start + source.choice("/.").join(chosen)
        chosen[source.randrange(len(chosen))] = source.choice(words)
        topic = source.choice(["", "/", "https://a.com/"]) + "/".join(chosen)
        try:
            if compile(matcher_type, pattern).match(topic):
                continue
        except PatternError:
            continue
        matched.clear()
        compiled.clear()
        if near_miss(matcher_type, pattern, topic, checked) is not None:
            found += 1
            kind, changed, other = matched[-1]
            assert compile(kind, changed).match(other)
        assert len(compiled) <= MAX_GUESSES
    assert found > 300


def test_the_number_of_guesses_is_bounded() -> None:
    words = [f"user{n}x" for n in range(30)]
    compiled = []

    def count(matcher_type: str, pattern: str) -> Exact:
        compiled.append(pattern)
        return Exact("")

    assert near_miss("exact", "/".join(words), "/".join(reversed([f"{word}s" for word in words])), count) is None
    assert len(compiled) == MAX_GUESSES


def test_long_texts_that_are_alike_take_little_time(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[int] = []

    class Counting(SequenceMatcher[str]):
        def ratio(self) -> float:
            compared.append(1)
            return super().ratio()

    monkeypatch.setattr(near_misses, "SequenceMatcher", Counting)
    for word, other in (("ab" * 19 + "x" * 22, "a" * 20 + "q" * 20 + "a" * 20), ("ab" * 12, "ba" * 12)):
        pattern, topic = ("/".join(f"{n:02}{text}" for n in range(31)) for text in (word, other))
        near_miss("exact", pattern, topic, compile)
        assert sum(compared) <= 32 * (2 * near_misses.MAX_SHIFT + 1)
    assert compared


def test_an_explanation_has_the_near_miss() -> None:
    readers: SkipFilter[str, str] = SkipFilter(SelectorIndex())
    readers.add("alice", [("exact", "http://a.com/1"), ("exact", "/2")])
    near, far = readers.explain("https://a.com/1", "alice")
    assert near.near_miss == "with 'https' for 'http'"
    assert str(near) == (
        "exact 'http://a.com/1' does not match: character 5 is 's', not ':'; it would match with 'https' for 'http'"
    )
    assert far.near_miss is None


def test_a_type_of_a_users_own_may_refuse_a_guess() -> None:
    class Odd:
        def __init__(self, pattern: str) -> None:
            if pattern != "user/1":
                raise ValueError(pattern)
            self.pattern = pattern

        def match(self, topic: str) -> bool:
            return False

        def why_not(self, topic: str) -> str:
            return "it never matches"

    readers: SkipFilter[str, str] = SkipFilter(SelectorIndex(matchers={"odd": Odd}))
    readers.add("alice", [("odd", "user/1")])
    assert [one.near_miss for one in readers.explain("users/1", "alice")] == [None]
